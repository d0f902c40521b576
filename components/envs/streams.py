"""Independent streams of random numbers that are advanced together: row b of a batch draws what it would draw alone.

SplitMix64 in counter form: the i-th number of a stream is a mix of (key + i * golden gamma), so any set of streams yields its
next numbers in one array operation, and a stream does not depend on who is beside it. (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators".)
"""

import numpy as np
from numpy.typing import ArrayLike

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


class Streams:
    """B streams of uniform numbers.

    Args:
        keys: (B,) integers in [0, 2^64), one a stream; equal keys give equal streams.
    """

    def __init__(self, keys: ArrayLike) -> None:
        keys = np.asarray(keys)
        if keys.ndim != 1 or not len(keys) or not np.issubdtype(keys.dtype, np.integer):
            raise ValueError(f"keys must be a vector of at least one integer, got {keys.dtype} of shape {keys.shape}")
        self.keys = keys.astype(np.uint64)
        self.counters = np.zeros(len(keys), dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, rows: np.ndarray | slice, n: int) -> np.ndarray:
        """The next `n` numbers of each of the streams `rows` (each at most once) -> (len(rows), n) float64 in [0, 1)."""
        start = self.counters[rows]
        z = self.keys[rows, None] + (start[:, None] + np.arange(1, n + 1, dtype=np.uint64)) * _GAMMA
        self.counters[rows] = start + np.uint64(n)
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        return ((z ^ (z >> _S31)) >> _S11) * 2.0**-53


def normal(uniforms: np.ndarray) -> np.ndarray:
    """Uniform numbers (..., 2 m) in [0, 1) -> as many standard normal ones (Box and Muller)."""
    half = uniforms.shape[-1] // 2
    radius = np.sqrt(-2.0 * np.log1p(-uniforms[..., :half]))
    angle = (2.0 * np.pi) * uniforms[..., half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
