"""Real-valued counterparts: the same shapes as the quaternion layers, D = 4 n free real channels, four times the parameters.

`RealLinear`, `RealFeedForward` and `RealSelfAttention` take (..., 4, n) and are drop-in alternatives; the counterpart of a
quaternion convolution is torch's own with 4 n channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from components.quaternion.attention import QuaternionSelfAttention, Score, check_attention, masked_softmax, usable_mask
from components.quaternion.layers import check_features, check_whole


class RealLinear(nn.Module):
    """A full real matrix: (..., 4, n_in) to (..., 4, n_out); He-normal weights, zero bias.

    Raises ValueError for sizes below 1 or another shape of x, TypeError for x of integers."""

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        super().__init__()
        check_whole(n_in=n_in, n_out=n_out)
        self.n_in, self.n_out = n_in, n_out
        self.linear = nn.Linear(4 * n_in, 4 * n_out, bias=bias)
        nn.init.kaiming_normal_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        check_features(x, self.n_in)
        return self.linear(x.flatten(-2)).unflatten(-1, (4, self.n_out))


class RealFeedForward(nn.Module):
    """Linear to mult 4 n, SiLU, dropout, linear back; (..., 4, n) to the same. mult default 2, dropout in [0, 1), default 0."""

    def __init__(self, n: int, mult: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        check_whole(n=n, mult=mult)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.expand, self.dropout, self.reduce = RealLinear(n, mult * n), nn.Dropout(dropout), RealLinear(mult * n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.dropout(F.silu(self.expand(x))))


class RealSelfAttention(nn.Module):
    """Multi-head attention of D = 4 n real channels by torch's `scaled_dot_product_attention`, heads of D / H channels.

    Takes x (B, L, 4, n), masks and options as `QuaternionSelfAttention` does; qk_norm is an RMS norm over a head's channels.
    Raises the same errors.
    """

    def __init__(
        self,
        n: int,
        heads: int,
        qk_norm: bool = True,
        dropout: float = 0.0,
        allow_empty_rows: bool = False,
    ) -> None:
        super().__init__()
        check_attention(n, heads, dropout)
        self.n, self.heads, self.dropout, self.allow_empty_rows = n, heads, dropout, allow_empty_rows
        width = 4 * n // heads
        self.qkv = RealLinear(n, 3 * n)
        self.query_norm = nn.RMSNorm(width, eps=1e-6) if qk_norm else None
        self.key_norm = nn.RMSNorm(width, eps=1e-6) if qk_norm else None
        self.out = RealLinear(n, n)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False, *, causal: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Outputs (B, L, 4, n), and with `need_weights` the weights (B, H, L, L)."""
        check_features(x, self.n)
        if x.ndim != 4:
            raise ValueError(f"x must have shape (B, L, 4, {self.n}), got {tuple(x.shape)}")
        mask, empty = usable_mask(mask, x, causal, self.allow_empty_rows)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).flatten(-2).chunk(3, -1))
        if self.query_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            seen = q.new_ones(q.shape[2], q.shape[2]).bool().tril() if causal and mask is None else mask
            weights = masked_softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, seen)
            y = F.dropout(weights, dropout) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal and mask is None)
        if empty is not None:
            y = y.masked_fill(empty[..., None], 0)
            weights = None if weights is None else weights.masked_fill(empty[..., None], 0)
        y = self.out(y.transpose(1, 2).flatten(-2).unflatten(-1, (4, self.n)))
        return (y, weights) if need_weights else y


def self_attention(kind: Score | str, n: int, heads: int, **options) -> nn.Module:
    """The attention of that kind on (B, L, 4, n): "shared" or "component" (`QuaternionSelfAttention`), or "real".

    options : of the class. Raises ValueError for another kind."""
    if kind == "real":
        return RealSelfAttention(n, heads, **options)
    if kind in ("shared", "component"):
        return QuaternionSelfAttention(n, heads, score=kind, **options)
    raise ValueError(f"kind must be 'shared', 'component' or 'real', got {kind!r}")
