"""What attention costs, counted exactly: pairs of query and key, operations, bytes of the key/value cache.

A pair costs 4 D operations per query head: 2 D for the score, 2 D for the weighted sum of values.

    dense causal          T (T + 1) / 2 pairs
    window of W           min(t + 1, W) pairs at position t
    global at tokens a    sum of (t + 1) over active t
    cache                 2 Hk D bytes_per_number * sum over layers of (min(T, W) + T where not pruned)

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", cost.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def dense_pairs(length: int) -> int:
    """Pairs of causal attention over `length` tokens."""
    return length * (length + 1) // 2


def window_pairs(length: int, window: int) -> int:
    """Pairs of causal attention over the last `window` tokens, the own one included. Raises ValueError for a window below 1."""
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    short = min(length, window)
    return dense_pairs(short) + (length - short) * window


def active_pairs(active: Tensor) -> int:
    """Pairs of causal attention at the active tokens of active [..., time], bool. Raises TypeError for another dtype."""
    if active.dtype != torch.bool:
        raise TypeError(f"active must be bool, got {active.dtype}")
    position = torch.arange(1, active.shape[-1] + 1, device=active.device)
    return int((active * position).sum())


def attention_flops(pairs: int, heads: int, width: int) -> int:
    """Operations of `pairs` pairs in each of `heads` query heads of width `width`."""
    return 4 * pairs * heads * width


def share_of_dense(active_share: float, window: int, length: int) -> float:
    """The paper's estimate of L2A's attention over dense attention: active share + 2 W / T."""
    return active_share + 2 * window / length


def l2a_cache_bytes(length: int, window: int, kv_heads: int, width: int, item: int, pruned: Iterable[bool]) -> int:
    """Bytes of the cache of one sequence; `pruned` says for each layer whether its global branch is gone, `item` is bytes per number."""
    return sum(2 * kv_heads * width * item * (min(length, window) + (0 if gone else length)) for gone in pruned)


def dense_cache_bytes(length: int, layers: int, kv_heads: int, width: int, item: int) -> int:
    """Bytes of the cache of one sequence of a dense model."""
    return 2 * kv_heads * width * item * layers * length


def cache_saving(length: int, window: int, pruned: Iterable[bool]) -> float:
    """1 - bytes over those of a dense model; negative without pruning, by W / T."""
    gone = list(pruned)
    return 1 - l2a_cache_bytes(length, window, 1, 1, 1, gone) / dense_cache_bytes(length, len(gone), 1, 1, 1)
