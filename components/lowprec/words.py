"""The random words of stochastic rounding: a function of (key, position), fast on the CPU.

The generator is Philox4x32-10, as in `kernels.philox`; compiled, a word costs about a tenth of what it costs there.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from kernels.philox import philox_words


@numba.njit(cache=True)
def _philox(key: np.uint64, words: np.ndarray) -> None:
    """Fill `words` (count,) int64."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for block in range((words.size + 3) // 4):
        a, b = np.uint64(block) & mask, np.uint64(block) >> half
        c, d = np.uint64(0), np.uint64(0)
        k0, k1 = key & mask, key >> half
        for _ in range(10):
            first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
            a = (second >> half) ^ b ^ k0
            c = (first >> half) ^ d ^ k1
            b, d = second & mask, first & mask
            k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
        start = 4 * block
        words[start] = np.int64(a)
        if start + 1 < words.size:
            words[start + 1] = np.int64(b)
        if start + 2 < words.size:
            words[start + 2] = np.int64(c)
        if start + 3 < words.size:
            words[start + 3] = np.int64(d)


def counter_words(key: int, shape: torch.Size | tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """Words of a key in row-major order, int64 in [0, 2^32), of the given shape; the same on every device.

    `key`: in [0, 2^64), for instance `kernels.philox.mix(seed, step, tensor)`; ValueError otherwise."""
    if torch.device(device).type != "cpu":
        return philox_words(key, torch.Size(shape).numel(), device).reshape(shape)
    if not 0 <= key < 1 << 64:
        raise ValueError(f"a key lies in [0, 2^64), got {key}")
    words = np.empty(torch.Size(shape).numel(), dtype=np.int64)
    _philox(np.uint64(key), words)
    return torch.from_numpy(words).reshape(shape)
