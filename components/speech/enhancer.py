"""Removes noise from speech: a quaternion encoder, attention along time and along frequency, a decoder that gives a complex mask.

Each point of the spectrum is a pure quaternion: compressed magnitude, real and imaginary part. Two convolutions halve the
frequencies; a block attends along time for every frequency, another along frequency for every frame; a transposed convolution
restores the frequencies and a real 1 x 1 convolution gives two numbers per point, the mask M = 1.5 tanh(.), complex: S = M X.

Source: Yamauchi et al., "Quaternion Self-Attention with Shared Scores", speech enhancement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.quaternion.blocks import Block, Kind, check_kind
from components.quaternion.layers import QuaternionConv2d, QuaternionConvTranspose2d, check_whole
from components.speech.metrics import si_sdr
from components.speech.stft import STFT, compressed

LIMIT = 1.5  # of the mask's parts: above 1, so that a point can grow where noise cancelled it


def convolution(real: bool, n_in: int, n_out: int, kernel: int | tuple[int, int], **options: Any) -> nn.Module:
    """4 n_in to 4 n_out channels by Hamilton products, or by free weights."""
    return nn.Conv2d(4 * n_in, 4 * n_out, kernel, **options) if real else QuaternionConv2d(n_in, n_out, kernel, **options)


class DenseEncoder(nn.Module):
    """Gated dilated convolutions along time, each of which sees the outputs of all before it; (B, 4 n, T, F) to the same."""

    def __init__(self, n: int, growth: int, dilations: Sequence[int], real: bool) -> None:
        super().__init__()
        widths = [n + growth * i for i in range(len(dilations) + 1)]
        self.layers = nn.ModuleList(
            convolution(real, width, 2 * growth, 3, padding=(d, 1), dilation=(d, 1))
            for width, d in zip(widths, dilations, strict=False)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, 4 * growth) for _ in dilations)
        self.reduce = convolution(real, widths[-1], n, 1)

    def forward(self, x: Tensor) -> Tensor:
        # Component-major channels: features are put together per component, or quaternions would fall apart.
        parts = [x.unflatten(1, (4, -1))]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            value, gate = layer(torch.cat(parts, 2).flatten(1, 2)).unflatten(1, (4, -1)).chunk(2, 2)
            parts.append(F.silu(norm(value.flatten(1, 2)) * gate.flatten(1, 2).sigmoid()).unflatten(1, (4, -1)))
        return self.reduce(torch.cat(parts, 2).flatten(1, 2))


class Enhancer(nn.Module):
    """Noisy waves [B, N] to clean ones.

    Parameters
    ----------
    n, heads, layers : quaternion features (4 n channels), heads, pairs of blocks.
    kind : "shared" (default), "component", "none" or "real".   block : "transformer" (default) or "conformer".
    n_fft, hop : of the spectra, default 160 and 80 samples.
    dilations, growth : of dense layers in the encoder, default none.
    options : of `components.quaternion.blocks.Block`, such as kernel, dropout, qk_norm, fused, backend.

    Raises ValueError for names or sizes that do not fit; `forward` what `STFT` raises.
    """

    def __init__(
        self,
        n: int = 6,
        heads: int = 2,
        layers: int = 1,
        kind: Kind = "shared",
        block: Literal["transformer", "conformer"] = "transformer",
        n_fft: int = 160,
        hop: int = 80,
        dilations: Sequence[int] = (),
        growth: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_whole(n=n, heads=heads, layers=layers)
        check_kind(kind)
        real = kind == "real"
        self.stft = STFT(n_fft, hop)
        self.first = convolution(real, 1, n, 3, padding=1)
        self.dense = DenseEncoder(n, growth, dilations, real) if dilations else None
        self.second = convolution(real, n, n, 3, stride=(1, 2), padding=1)
        self.first_norm, self.second_norm = nn.GroupNorm(1, 4 * n), nn.GroupNorm(1, 4 * n)
        self.along_time = nn.ModuleList(Block(n, heads, kind, block, **options) for _ in range(layers))
        self.along_frequency = nn.ModuleList(Block(n, heads, kind, block, **options) for _ in range(layers))
        up = {"stride": (1, 2), "padding": (1, 1)}
        if real:
            self.up: nn.Module = nn.ConvTranspose2d(8 * n, 4 * n, (3, 3), **up)
        else:
            self.up = QuaternionConvTranspose2d(2 * n, n, (3, 3), **up)
        self.up_norm, self.out = nn.GroupNorm(1, 4 * n), nn.Conv2d(4 * n, 2, 1)

    def mask(self, spectrum: Tensor) -> Tensor:
        """Complex mask of a spectrum [B, T, F]."""
        features = F.pad(compressed(spectrum), (1, 0)).permute(0, 3, 1, 2)  # a pure quaternion: no real part
        x = F.silu(self.first_norm(self.first(features)))
        if self.dense is not None:
            x = self.dense(x)
        coded = F.silu(self.second_norm(self.second(x)))  # [B, 4 n, T, F']
        batch, channels, frames, bins = coded.shape
        y = coded.unflatten(1, (4, -1)).permute(0, 3, 4, 1, 2)  # [B, T, F', 4, n]
        for time, frequency in zip(self.along_time, self.along_frequency, strict=True):
            y = time(y.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, bins)).transpose(1, 2)
            y = frequency(y.flatten(0, 1)).unflatten(0, (batch, frames))
        y = y.permute(0, 3, 4, 1, 2)  # [B, 4, n, T, F']
        both = torch.cat((y, coded.unflatten(1, (4, channels // 4))), 2).flatten(1, 2)
        parts = LIMIT * self.out(F.silu(self.up_norm(self.up(both)))).tanh()
        return torch.complex(parts[:, 0], parts[:, 1])

    def spectra(self, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """The enhanced spectrum [B, T, F] and the enhanced wave [B, N]."""
        spectrum = self.stft(noisy)
        enhanced = self.mask(spectrum) * spectrum
        return enhanced, self.stft.inverse(enhanced, noisy.shape[1])

    def forward(self, noisy: Tensor) -> Tensor:
        return self.spectra(noisy)[1]


def multi_resolution(estimate: Tensor, clean: Tensor, sizes: Sequence[int] = (512, 1024, 2048)) -> Tensor:
    """Spectral convergence plus mean difference of log magnitudes, over frame sizes with hops of a quarter.

    Waves [B, N] with N at least the largest size. Source: Yamamoto et al., "Parallel WaveGAN"."""
    total = estimate.new_zeros(())
    for size in sizes:
        stft = STFT(size, size // 4).to(estimate.device)
        found, wanted = (stft(x).abs().clamp(min=1e-5) for x in (estimate, clean))
        total = total + (wanted - found).norm() / wanted.norm() + (wanted.log() - found.log()).abs().mean()
    return total / len(sizes)


def enhancement_loss(model: Enhancer, noisy: Tensor, clean: Tensor, weights: dict[str, float]) -> Tensor:
    """Weighted sum of the terms named in `weights`, waves [B, N].

    si_sdr : minus the mean SI-SDR in decibels.   complex : mean |S_hat - S|.   magnitude : mean ||S_hat| - |S||.
    rms : root mean square of the waves' difference.   multi_resolution : see there.
    Raises ValueError for another name."""
    spectrum, wave = model.spectra(noisy)
    wanted = model.stft(clean)
    terms = {
        "si_sdr": lambda: -si_sdr(wave, clean).mean(),
        "complex": lambda: (spectrum - wanted).abs().mean(),
        "magnitude": lambda: (spectrum.abs() - wanted.abs()).abs().mean(),
        "rms": lambda: (wave - clean).square().mean().add(1e-12).sqrt(),
        "multi_resolution": lambda: multi_resolution(wave, clean),
    }
    for name in weights:
        if name not in terms:
            raise ValueError(f"a loss has the terms {', '.join(terms)}, got {name!r}")
    return sum((weight * terms[name]() for name, weight in weights.items() if weight), noisy.new_zeros(()))
