"""Noises of unit variance, and mixing at a signal-to-noise ratio. Everything is drawn from a numpy Generator.

white    independent samples
pink     spectrum falling as 1 / sqrt(frequency) in amplitude
babble   several voices at once
hum      mains at 50 Hz with overtones, over white noise that swells three times a second
burst    one random band-limited pattern of 40 ms, pasted at random times: predictable from its other copies alone
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

KINDS = ("white", "pink", "babble", "hum", "burst")
VOICES = 6
PATTERN_SECONDS = 0.04


def _unit(x: np.ndarray) -> np.ndarray:
    x = x - x.mean()
    deviation = x.std()
    return x / deviation if deviation > 0 else x


def _shaped(rng: np.random.Generator, length: int, gains: np.ndarray) -> np.ndarray:
    """White noise whose spectrum is multiplied by gains (length // 2 + 1,)."""
    return np.fft.irfft(np.fft.rfft(rng.standard_normal(length)) * gains, length)


def noise(kind: str, length: int, rate: int, rng: np.random.Generator, voices: Sequence[np.ndarray] = ()) -> np.ndarray:
    """`length` samples of unit variance at `rate` hertz, float64.

    voices : waves that babble is made of (training speech alone, lest tests leak); each may be of any length above 0.
    Raises ValueError for another kind, a length of less than two patterns, a rate below 1, or babble without voices."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    pattern = round(PATTERN_SECONDS * rate)
    if rate < 1 or length < max(2 * pattern, 2):
        raise ValueError(f"rate must be at least 1 and length at least {max(2 * pattern, 2)}, got {rate} and {length}")
    if kind == "white":
        return _unit(rng.standard_normal(length))
    if kind == "pink":
        k = np.arange(length // 2 + 1)
        return _unit(_shaped(rng, length, np.where(k > 0, np.maximum(k, 1) ** -0.5, 0.0)))
    if kind == "hum":
        t = np.arange(length) / rate
        tones = sum(rng.uniform(0.3, 1) * np.sin(2 * np.pi * (50 * k * t + rng.random())) for k in (1, 2, 3, 5))
        swell = 1 + 0.8 * np.sin(2 * np.pi * (3 * t + rng.random()))
        return _unit(_unit(tones) + _unit(rng.standard_normal(length) * swell))
    if kind == "babble":
        if not voices:
            raise ValueError("babble needs at least one voice")
        mixed = np.zeros(length)
        for _ in range(VOICES):
            mixed += _unit(segment(voices[int(rng.integers(len(voices)))].astype(np.float64), length, rng))
        return _unit(mixed)
    low = rng.uniform(0.05, 0.5)
    k = np.linspace(0, 1, pattern // 2 + 1)
    one = _unit(_shaped(rng, pattern, ((k >= low) & (k <= low + 0.35)).astype(float))) * np.hanning(pattern)
    made = 0.01 * rng.standard_normal(length)
    for start in rng.integers(0, length - pattern + 1, int(rng.integers(5, 9))):
        made[start : start + pattern] += one
    return _unit(made)


def segment(wave: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """A part of `length` samples from a random place; a shorter wave is repeated. Raises ValueError for an empty one."""
    if not len(wave):
        raise ValueError("wave must not be empty")
    if len(wave) < length:
        wave = np.tile(wave, -(-length // len(wave)))
    start = int(rng.integers(len(wave) - length + 1))
    return wave[start : start + length]


def mix_at_snr(clean: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """clean + g noise, g such that the ratio of their powers is `snr` decibels.

    Raises ValueError for shapes that differ, silence in either, or an snr that is not finite."""
    if clean.shape != noise.shape or clean.ndim != 1:
        raise ValueError(f"clean and noise must be waves of one length, got {clean.shape} and {noise.shape}")
    powers = [float(np.mean(np.square(x, dtype=np.float64))) for x in (clean, noise)]
    if min(powers) == 0 or not np.isfinite(snr):
        raise ValueError(f"clean and noise must not be silent and snr finite, got powers {powers} and snr {snr}")
    return clean + np.sqrt(powers[0] / powers[1] * 10 ** (-snr / 10)) * noise
