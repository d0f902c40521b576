"""How close an estimate of speech is to the speech: scale-invariant signal-to-distortion ratio, and intelligibility."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from components.speech.stft import check_wave


def si_sdr(estimate: Tensor, reference: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio, decibels.

    10 log10(|a s|^2 / |a s - e|^2) with a = <e, s> / |s|^2, both without their means; a factor of the estimate changes nothing.

    estimate, reference : [batch, samples]. Returns [batch]; estimates that are exact are limited to about 80 dB in float32.
    Raises ValueError for shapes that differ, a silent reference, or samples that are not finite.

    Source: Le Roux et al., "SDR - half-baked or well done?"."""
    check_wave(estimate)
    check_wave(reference)
    if estimate.shape != reference.shape:
        raise ValueError(f"estimate and reference must have one shape, got {list(estimate.shape)} and {list(reference.shape)}")
    e, s = (x - x.mean(-1, keepdim=True) for x in (estimate, reference))
    energy = s.square().sum(-1, keepdim=True)
    if (energy == 0).any():
        raise ValueError(f"reference {int((energy == 0).flatten().nonzero()[0])} is silent: the ratio is not defined")
    target = (e * s).sum(-1, keepdim=True) / energy * s
    floor = 1e-8 * energy.squeeze(-1)
    return 10 * torch.log10((target.square().sum(-1) + floor) / ((target - e).square().sum(-1) + floor))


def stoi(estimate: np.ndarray, reference: np.ndarray, rate: int) -> float:
    """Short-time objective intelligibility in [0, 1] of one wave (samples,) at `rate` hertz, by pystoi.

    Raises ValueError for waves of another shape, a rate below 1, or a reference without enough speech for one segment (0.4 s)."""
    import warnings

    from pystoi import stoi as measure

    if estimate.ndim != 1 or estimate.shape != reference.shape or rate < 1:
        raise ValueError(f"waves must be of one length and rate at least 1, got {estimate.shape}, {reference.shape}, {rate}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(measure(reference, estimate, rate))
        except RuntimeWarning as warning:
            raise ValueError(f"the reference has too little speech for an intelligibility: {warning}") from None
