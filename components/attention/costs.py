"""What a model with conditional attention costs beside a dense one: operations of attention, bytes of the key/value cache.

    operations   4 D per pair of query and key and query head, pairs counted by `kernels.l2a_attention`
    cache        2 Hk D bytes_per_number * sum over layers of (min(T, W) + T where not pruned)

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", cost.
"""

from __future__ import annotations

from collections.abc import Iterable


def dense_pairs(length: int) -> int:
    """Pairs of causal attention over `length` tokens."""
    return length * (length + 1) // 2


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
