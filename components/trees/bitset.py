"""Sets of rows as bits in 64-bit words, so that counting an intersection costs one instruction per 64 rows.

`pack` turns a boolean matrix into words, one bitset per column. The counting kernels are numba; `..._reference` are the same in
plain Python, for tests and for reading.
"""

from __future__ import annotations

import numpy as np
from numba import njit

WORD = 64

_M1, _M2, _M4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_ONES = np.uint64(0x0101010101010101)
_S1, _S2, _S4, _S56 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


def pack(X: np.ndarray) -> np.ndarray:
    """One bitset per column: bit i of word w is row 64 w + i.

    Parameters
    ----------
    X : (n, p) bool, n >= 1.

    Returns
    -------
    (p, ceil(n / 64)) uint64, C-contiguous; the bits beyond row n are 0.

    Raises
    ------
    TypeError : not a boolean array.
    ValueError : not two-dimensional, or without rows.
    """
    X = np.asarray(X)
    if X.dtype != np.bool_:
        raise TypeError(f"X must be boolean, got dtype {X.dtype}")
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must be a matrix of rows by columns with at least one row, got shape {X.shape}")
    words = -(-X.shape[0] // WORD)
    octets = np.zeros((X.shape[1], words * 8), dtype=np.uint8)
    packed = np.packbits(X.T, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(octets.view("<u8").astype(np.uint64))


def unpack(words: np.ndarray, rows: int) -> np.ndarray:
    """The first `rows` bits of a bitset as booleans, (rows,). ValueError where the words hold fewer."""
    words = np.ascontiguousarray(words, dtype="<u8")
    if words.ndim != 1 or not 0 <= rows <= words.size * WORD:
        raise ValueError(f"a one-dimensional bitset of at least {rows} bits is wanted, got shape {words.shape}")
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:rows].astype(bool)


@njit(cache=True, inline="always")
def _bits(word):
    word = word - ((word >> _S1) & _M1)
    word = (word & _M2) + ((word >> _S2) & _M2)
    word = (word + (word >> _S4)) & _M4
    return np.int64((word * _ONES) >> _S56)


@njit(cache=True)
def popcount(words):
    """Rows in a bitset: (W,) uint64 -> int64."""
    total = np.int64(0)
    for w in range(words.shape[0]):
        total += _bits(words[w])
    return total


@njit(cache=True)
def and_count(first, second, start, stop):
    """Rows in both bitsets, counted over the words [start, stop)."""
    total = np.int64(0)
    for w in range(start, stop):
        total += _bits(first[w] & second[w])
    return total


def popcount_reference(words: np.ndarray) -> int:
    """`popcount` word by word."""
    return sum(int(word).bit_count() for word in words)


def and_count_reference(first: np.ndarray, second: np.ndarray, start: int, stop: int) -> int:
    """`and_count` word by word."""
    return sum((int(a) & int(b)).bit_count() for a, b in zip(first[start:stop], second[start:stop], strict=True))
