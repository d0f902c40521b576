"""Speech-like sound by source and filter: glottal pulses or hiss through the resonances of vowels, syllable after syllable.

A stand-in where no recording is at hand. Segments of 80 to 200 ms, a tenth silent and a fifth unvoiced (hiss at 2 to 4 kHz), the
others voiced with a drifting pitch of 90 to 250 Hz and the three formants of one of ten vowels; raised-cosine crossfades.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

# First three formants in hertz, and their bandwidths.
VOWELS = (
    (300, 2250, 3000), (390, 2000, 2600), (530, 1850, 2500), (660, 1720, 2410), (730, 1100, 2450),
    (570, 850, 2410), (440, 1020, 2240), (310, 870, 2250), (640, 1190, 2390), (490, 1350, 2200),
)  # fmt: skip
BANDWIDTHS = (60, 90, 150)


def _resonate(x: np.ndarray, frequency: float, bandwidth: float, rate: int) -> np.ndarray:
    radius, angle = np.exp(-np.pi * bandwidth / rate), 2 * np.pi * frequency / rate
    return lfilter([1 - radius], [1, -2 * radius * np.cos(angle), radius**2], x)


def speech_like(seconds: float, rate: int, rng: np.random.Generator) -> np.ndarray:
    """`seconds` of sound at `rate` hertz, float64, standard deviation 0.1.

    Raises ValueError for less than 0.3 seconds or a rate below 8,000 Hz (the third formant would not fit)."""
    if seconds < 0.3 or rate < 8000:
        raise ValueError(f"seconds must be at least 0.3 and rate at least 8000, got {seconds} and {rate}")
    length = round(seconds * rate)
    made, at, fade = np.zeros(length + rate), 0, round(0.01 * rate)
    base = rng.uniform(90, 250)
    while at < length:
        count = round(rng.uniform(0.08, 0.2) * rate)
        kind = rng.random()
        if at and kind < 0.1:
            part = np.zeros(count)
        elif at and kind < 0.3:
            part = rng.standard_normal(count)
            part = 0.3 * _resonate(part, rng.uniform(2000, min(4000, 0.45 * rate)), 600, rate)
        else:
            pitch = np.clip(base * (1 + 0.1 * np.sin(2 * np.pi * (3 * np.arange(count) / rate + rng.random()))), 90, 250)
            phase = np.cumsum(pitch) / rate
            pulses = np.diff(np.floor(phase), prepend=0.0)
            part = lfilter([1.0], [1, -0.95], pulses)
            for formant, bandwidth in zip(VOWELS[int(rng.integers(len(VOWELS)))], BANDWIDTHS, strict=True):
                part = part + _resonate(part, formant, bandwidth, rate)
        window = np.ones(count)
        ramp = 0.5 - 0.5 * np.cos(np.pi * np.arange(fade) / fade)
        window[:fade], window[-fade:] = ramp, ramp[::-1]
        level = part.std()
        made[at : at + count] += window * (part / level if level > 0 else part) * rng.uniform(0.5, 1)
        at += count - fade
    made = made[:length] - made[:length].mean()
    return 0.1 * made / made.std()
