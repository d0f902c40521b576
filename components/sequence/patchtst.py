"""PatchTST: forecast each channel of a series from patches of its past, all channels by one small transformer.

    x_c in R^context -> (x_c - mean) / std -> patches of `patch` values every `stride` -> linear to d, plus a learned position
    -> transformer encoder -> all patches flattened -> linear to R^horizon -> times std, plus mean

Source: Nie et al., "A Time Series is Worth 64 Words: Long-term Forecasting with Transformers".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PatchTST(nn.Module):
    """The model; weights are drawn from torch's global generator.

    Parameters
    ----------
    context, horizon : steps that are seen and that are forecast.
    patch, stride : length of a patch and distance of two; default stride = patch. (context - patch) must be a multiple of it.
    d, heads, layers : width of the encoder, heads and number of its layers; feed-forward width 2 d.
    instance_norm : normalise each window and channel by its own mean and standard deviation.
    dropout : in the encoder, default 0.

    Raises ValueError for sizes below 1 or that do not fit.
    """

    def __init__(
        self,
        context: int,
        horizon: int,
        patch: int = 12,
        d: int = 32,
        heads: int = 4,
        layers: int = 2,
        instance_norm: bool = True,
        stride: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        stride = patch if stride is None else stride
        sizes = {
            "context": context,
            "horizon": horizon,
            "patch": patch,
            "stride": stride,
            "d": d,
            "heads": heads,
            "layers": layers,
        }
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if patch > context or (context - patch) % stride:
            raise ValueError(f"patches of {patch} every {stride} do not cover a context of {context} exactly")
        if d % heads:
            raise ValueError(f"d must be a multiple of heads = {heads}, got {d}")
        self.context, self.horizon, self.patch, self.stride, self.instance_norm = context, horizon, patch, stride, instance_norm
        patches = (context - patch) // stride + 1
        self.embed = nn.Linear(patch, d)
        self.position = nn.Parameter(0.02 * torch.randn(patches, d))
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(patches * d, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts (batch, horizon, channels) of x (batch, context, channels), any number of channels.

        Raises ValueError for another shape."""
        if x.ndim != 3 or x.shape[1] != self.context:
            raise ValueError(f"x must have shape (batch, {self.context}, channels), got {tuple(x.shape)}")
        x = x.transpose(1, 2)  # (batch, channels, context)
        if self.instance_norm:
            centre = x.mean(-1, keepdim=True)
            spread = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            x = (x - centre) / spread
        patches = x.flatten(0, 1).unfold(-1, self.patch, self.stride)  # (batch * channels, patches, patch)
        y = self.head(self.encoder(self.embed(patches) + self.position).flatten(1)).unflatten(0, x.shape[:2])
        if self.instance_norm:
            y = y * spread + centre
        return y.transpose(1, 2)
