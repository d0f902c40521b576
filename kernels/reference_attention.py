"""Attention in plain torch: the definitions that the Triton kernels are measured against, and what runs on a CPU.

Layout [batch, time, heads, width] throughout. With Hk key heads and Hq = G Hk query heads, query head h reads key head h // G.
Scores, softmax and sums are made in float32 (in float64 where the inputs are float64); the result has the inputs' dtype.

  masked_attention                    any mask, scores in memory
  sliding_window_attention_reference  keys t - W + 1 .. t by chunks: memory O(T W), never T x T
  token_gathered_attention_reference  causal attention at chosen tokens, zeros elsewhere; other rows are not computed
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

REFERENCE_ROWS = 128  # active queries of a sequence that are worked on at a time
SMALLEST_CHUNK = 16  # narrower windows share a chunk: tiny matrix products cost more than the masked scores that they save


def check_heads(q: Tensor, k: Tensor, v: Tensor, *, same_length: bool = True) -> None:
    """Validate q [B, T, Hq, D] and k, v [B, S, Hk, D].

    Raises TypeError for dtypes that are not floating point or differ, ValueError for shapes that do not fit, Hq that is no
    multiple of Hk, tensors on several devices, and, with `same_length`, S that differs from T."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise TypeError(f"q, k and v must share one floating point dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
        if x.ndim != 4:
            raise ValueError(f"{name} must have shape [batch, time, heads, width], got {list(x.shape)}")
        if x.device != q.device:
            raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape, got {list(k.shape)} and {list(v.shape)}")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or (same_length and q.shape[1] != k.shape[1]):
        raise ValueError(f"q and k must agree in batch, width and time, got {list(q.shape)} and {list(k.shape)}")
    if k.shape[2] < 1 or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"the number of query heads must be a multiple of that of key heads, got {q.shape[2]} and {k.shape[2]}"
        )
    if q.shape[3] < 1:
        raise ValueError("the width of a head must be at least 1, got 0")


def check_scale(scale: float | None, dim: int) -> float:
    """The factor of the scores, 1 / sqrt(D) unless given. Raises ValueError unless it is positive and finite."""
    if scale is None:
        return 1 / math.sqrt(dim)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}")
    return float(scale)


def check_window(window: int) -> int:
    """Raises TypeError for a window that is no whole number, ValueError for one below 1."""
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"window must be a whole number of tokens, the query's own included, got {window!r}")
    if window < 1:
        raise ValueError(f"window must be at least 1, the query's own token, got {window}")
    return window


def check_active(active: Tensor, q: Tensor) -> Tensor:
    """The router's decisions as a bool tensor. Raises TypeError unless they have shape [B, T] and are bool or 0 and 1.

    Looking at the values of numbers waits for the device; bool is free of that."""
    if not isinstance(active, Tensor) or active.shape != q.shape[:2]:
        got = list(active.shape) if isinstance(active, Tensor) else type(active).__name__
        raise TypeError(f"active must be a tensor of shape {list(q.shape[:2])}, batch and time of q, got {got}")
    if active.device != q.device:
        raise ValueError(f"active must be on {q.device}, where q is, got {active.device}")
    if active.dtype == torch.bool:
        return active
    if active.is_complex() or not ((active == 0) | (active == 1)).all():
        raise TypeError(f"active must be bool or hold only 0 and 1, got {active.dtype} with other values")
    return active.bool()


def _working(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None) -> Tensor:
    """softmax(scale q k^T) v over the keys that `mask` admits.

    Parameters
    ----------
    q : [B, T, Hq, D] floating point.
    k, v : [B, S, Hk, D], Hk dividing Hq.
    mask : bool, True where a query may look: [T, S], [B, T, S] or [B, Hq or 1, T, S]; default all.
    scale : factor of the scores, default 1 / sqrt(D).

    Returns
    -------
    [B, T, Hq, D] of q's dtype. A query that may look nowhere gets zeros.

    Raises
    ------
    TypeError : dtypes that differ or are not floating point, a mask that is not bool.
    ValueError : shapes, devices or scale that do not fit.
    """
    check_heads(q, k, v, same_length=False)
    scale = check_scale(scale, q.shape[3])
    batch, length, heads, dim = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    group = heads // kv_heads
    # All query heads of a key head in one product: K and V are not repeated.
    rows = (
        (_working(q) * scale)
        .unflatten(2, (kv_heads, group))
        .permute(0, 2, 3, 1, 4)
        .reshape(batch, kv_heads, group * length, dim)
    )
    scores = (rows @ _working(k).permute(0, 2, 3, 1)).view(batch, kv_heads, group, length, keys)
    if mask is None:
        weights = scores.softmax(-1) if keys else scores
    else:
        refused = ~_grouped(mask, q, kv_heads, keys)
        # The lowest number instead of minus infinity: a row without any key has no NaN in its gradient.
        weights = scores.masked_fill(refused, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(refused, 0.0)
    out = weights.view(batch, kv_heads, group * length, keys) @ _working(v).permute(0, 2, 1, 3)
    out = out.view(batch, kv_heads, group, length, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, length, heads, dim).to(q.dtype)


def _grouped(mask: Tensor, q: Tensor, kv_heads: int, keys: int) -> Tensor:
    """The mask as something that broadcasts to [B, Hk, G, T, S]."""
    batch, length, heads, _ = q.shape
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True where a query may look, got {mask.dtype}")
    if mask.shape == (length, keys):
        return mask[None, None, None]
    if mask.shape == (batch, length, keys):
        return mask[:, None, None]
    if mask.shape == (batch, 1, length, keys):
        return mask[:, :, None]
    if mask.shape == (batch, heads, length, keys):
        return mask.unflatten(1, (kv_heads, heads // kv_heads))
    raise ValueError(
        f"mask must have shape {[length, keys]}, {[batch, length, keys]} or {[batch, heads, length, keys]}, got {list(mask.shape)}"
    )


def sliding_window_attention_reference(q: Tensor, k: Tensor, v: Tensor, window: int, *, scale: float | None = None) -> Tensor:
    """Causal attention over the last `window` tokens, the own one included; arguments as for `sliding_window_attention`.

    Queries of chunk c look at the keys of chunks c - 1 and c, which is exact for chunks of at least `window` tokens:
    about 8 T W Hq D operations and 2 T W scores per head, whatever T."""
    check_heads(q, k, v)
    scale = check_scale(scale, q.shape[3])
    batch, length, heads, dim = q.shape
    chunk = max(min(max(check_window(window), SMALLEST_CHUNK), length), 1)
    chunks = -(-length // chunk)
    query = torch.arange(chunk, device=q.device)[:, None]
    if chunks <= 1:
        key = torch.arange(length, device=q.device)
        query = query[:length]
        return masked_attention(q, k, v, (key <= query) & (key > query - window), scale=scale)

    def split(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, chunks * chunk - length))
        return padded.unflatten(1, (chunks, chunk))

    def with_previous(x: Tensor) -> Tensor:
        x = split(x)
        previous = torch.nn.functional.pad(x[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        return torch.cat((previous, x), 2).flatten(0, 1)

    key = torch.arange(-chunk, chunk, device=q.device)
    allowed = (key <= query) & (key > query - window)
    # What stands before the first chunk is padding. (Padding after the last one lies in every real query's future.)
    allowed = allowed.expand(chunks, -1, -1) & ((torch.arange(chunks, device=q.device) > 0)[:, None, None] | (key >= 0))
    allowed = allowed.expand(batch, -1, -1, -1).flatten(0, 1)
    out = masked_attention(split(q).flatten(0, 1), with_previous(k), with_previous(v), allowed, scale=scale)
    return out.reshape(batch, chunks * chunk, heads, dim)[:, :length]


def token_gathered_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, active: Tensor, *, scale: float | None = None
) -> Tensor:
    """Causal attention at the active tokens, zeros elsewhere; arguments as for `token_gathered_attention`.

    Active queries are gathered, REFERENCE_ROWS of each sequence at a time, and meet the keys up to the last of them."""
    check_heads(q, k, v)
    scale = check_scale(scale, q.shape[3])
    active = check_active(active, q)
    counts = active.sum(1)
    # Active positions first, in order of time: argsort of a bool must be stable.
    order = (~active).int().argsort(dim=1, stable=True)
    parts, places = [], []
    for start in range(0, int(counts.max()) if counts.numel() else 0, REFERENCE_ROWS):
        sequence = (counts > start).nonzero().flatten()
        width = min(int(counts.max()) - start, REFERENCE_ROWS)
        filled = start + torch.arange(width, device=q.device) < counts[sequence, None]
        time = torch.where(filled, order[sequence, start : start + width], 0)
        keys = int(time.max()) + 1
        allowed = torch.arange(keys, device=q.device) <= time[:, :, None]
        out = masked_attention(q[sequence[:, None], time], k[sequence, :keys], v[sequence, :keys], allowed, scale=scale)
        parts.append(out[filled])
        places.append(torch.stack((sequence[:, None].expand_as(time)[filled], time[filled])))
    if not parts:
        # No row at all, but still a function of q, k and v: a backward pass finds gradients of zero.
        return torch.zeros_like(q) + 0.0 * (q[:0].sum() + k[:0].sum() + v[:0].sum())
    place = torch.cat(places, 1)
    return torch.zeros_like(q).index_put((place[0], place[1]), torch.cat(parts))
