"""Short-time Fourier transform with a Hann window, its inverse, and the features that an enhancer sees."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class STFT(nn.Module):
    """Spectra of waveforms and back.

    Parameters
    ----------
    n_fft : samples of a frame, at least 2.   hop : samples between frames, at most n_fft / 2 (Hann windows then overlap enough).

    Raises ValueError for other sizes.
    """

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        if n_fft < 2 or not 1 <= hop <= n_fft // 2:
            raise ValueError(f"n_fft must be at least 2 and hop in 1 .. n_fft / 2, got {n_fft} and {hop}")
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)

    @property
    def bins(self) -> int:
        return self.n_fft // 2 + 1

    def forward(self, wave: Tensor) -> Tensor:
        """[batch, samples] real to complex [batch, frames, bins].

        Raises ValueError for another shape, waves shorter than a frame, or samples that are not finite."""
        check_wave(wave, self.n_fft)
        return torch.stft(wave, self.n_fft, self.hop, window=self.window.to(wave.dtype), return_complex=True).transpose(1, 2)

    def inverse(self, spectrum: Tensor, length: int) -> Tensor:
        """Complex [batch, frames, bins] to [batch, length]."""
        window = self.window.to(spectrum.real.dtype)
        return torch.istft(spectrum.transpose(1, 2), self.n_fft, self.hop, window=window, length=length)


def check_wave(wave: Tensor, least: int = 1) -> None:
    """Raise ValueError unless `wave` is [batch, samples], real, finite and at least `least` samples long."""
    if wave.ndim != 2 or not wave.is_floating_point():
        raise ValueError(f"wave must be real of shape [batch, samples], got {wave.dtype} of shape {list(wave.shape)}")
    if wave.shape[1] < least:
        raise ValueError(f"wave must have at least {least} samples, one frame, got {wave.shape[1]}")
    if not torch.isfinite(wave).all():
        raise ValueError("wave holds samples that are not finite")


def compressed(spectrum: Tensor, power: float = 0.3) -> Tensor:
    """Magnitude, real and imaginary part of a spectrum whose magnitudes are raised to `power`, [..., 3].

    The sum of squares of the two parts is the magnitude's square. Silence gives zeros. Raises ValueError for a power outside (0, 1]."""
    if not 0 < power <= 1:
        raise ValueError(f"power must lie in (0, 1], got {power}")
    magnitude = spectrum.abs()
    scale = magnitude.clamp(min=1e-8) ** (power - 1)
    return torch.stack((magnitude * scale, spectrum.real * scale, spectrum.imag * scale), -1)
