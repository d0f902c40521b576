"""Random words from a counter: Philox4x32-10, which needs no state, so that word i of a key is the same on every device.

Word i is lane i mod 4 of the block with counter i div 4; `triton.language.randint4x(key, i // 4)` gives the same block.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def mix(*parts: int) -> int:
    """One key below 2^63 from several whole numbers, by the finaliser of SplitMix64: a change of any part changes half the bits."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK64)) + 0x9E3779B97F4A7C15 & _MASK64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state >> 1


def philox_block(counter: Tensor, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four 32-bit output words at each counter, int64 in [0, 2^32), in the counter's shape.

    counter: int64, not negative; its two halves are the lower words of the 128-bit counter, whose upper words are 0.
    key: in [0, 2^64). Neither is checked here: this is the inner loop of those who check."""
    a, b = counter & _MASK32, counter >> 32
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    k0, k1 = key & _MASK32, key >> 32
    for _ in range(_ROUNDS):
        # 64-bit products wrap around in int64; both halves come out right once the sign's copies are masked away.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a = ((second >> 32) & _MASK32) ^ b ^ k0
        c = ((first >> 32) & _MASK32) ^ d ^ k1
        b, d = second & _MASK32, first & _MASK32
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK32, (k1 + _KEY_STEPS[1]) & _MASK32
    return a, b, c, d


def philox_words(key: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """The first `count` 32-bit words of a key, int64 in [0, 2^32), shape (count,).

    Raises ValueError for a key outside [0, 2^64) or a negative count."""
    if not 0 <= key <= _MASK64 or count < 0:
        raise ValueError(f"a key lies in [0, 2^64) and a count is not negative, got key {key} and count {count}")
    counter = torch.arange((count + 3) // 4, dtype=torch.int64, device=device)
    return torch.stack(philox_block(counter, key), dim=-1).flatten()[:count]
