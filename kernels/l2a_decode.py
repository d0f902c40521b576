"""Attention of one new token per sequence over a key/value cache, for the sequences whose router says so.

    y_b = softmax_{n < length_b}(scale q_b k_n) v     for the chosen sequences, zeros for the others

One query per sequence leaves most of a GPU idle, so the cache is split: a program per part, sequence and key head computes
the partial softmax of all G query heads (maximum, sum, weighted values), and a second kernel adds the parts up. Programs of
sequences that were not chosen end at once; with `rows` they are not launched at all, and with no rows nothing is.

Operations: 4 length Hq D per chosen sequence. Memory: its K and V once, 4 length Hk D bytes in 16-bit, so about G operations
per byte: the speed is that of memory. Partial results: 4 (D + 2) Hq bytes per part.

The order of the cache's entries does not matter, so that a ring buffer of the last W tokens is read in the same way.
`decode_attention` is the public entry: the kernels on CUDA tensors (and, under Triton's interpreter, with backend="triton" on
the CPU); on the CPU the torch reference. It is made for inference and not differentiable.

References: Choudhary et al., "Learning When to Attend: Conditional Memory Access for Long-Context LLMs"; the split of keys
follows Dao et al., "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.l2a_attention import LOG2E, _attend, choose_backend, dense_rows, dot_precision, on_device
from kernels.reference_attention import check_heads, check_scale, masked_attention

BLOCK_KEYS = 64
MOST_SPLITS = 64


@triton.jit(do_not_specialize=["capacity", "kv_heads", "splits"])
def _split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    rows_ptr,
    lengths_ptr,
    stride_qb,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    capacity,
    kv_heads,
    splits,
    qk_scale,
    G: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    split = tl.program_id(0)
    row = tl.program_id(1) // kv_heads
    hk = tl.program_id(1) % kv_heads
    b = tl.load(rows_ptr + row)
    if b >= 0:
        length = tl.minimum(tl.load(lengths_ptr + b), capacity)
        share = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
        low = tl.minimum(split * share, length)
        high = tl.minimum(low + share, length)
        whole = low + (high - low) // BLOCK_N * BLOCK_N

        g = tl.arange(0, BLOCK_G)
        d = tl.arange(0, D)[None, :]
        head = (hk * G + g).to(tl.int64)
        batch = b.to(tl.int64)
        q = tl.load(q_ptr + batch * stride_qb + (head * stride_qh)[:, None] + d, mask=(g < G)[:, None], other=0.0)
        k_base = k_ptr + batch * stride_kb + hk.to(tl.int64) * stride_kh
        v_base = v_ptr + batch * stride_vb + hk.to(tl.int64) * stride_vh
        acc = tl.zeros((BLOCK_G, D), dtype=tl.float32)
        m = tl.full((BLOCK_G,), float("-inf"), dtype=tl.float32)
        l = tl.zeros((BLOCK_G,), dtype=tl.float32)
        last = tl.zeros((BLOCK_G,), dtype=tl.int32) + high - 1
        for masked in tl.static_range(2):
            acc, m, l = _attend(
                acc,
                m,
                l,
                q,
                last,
                k_base,
                v_base,
                whole if masked else low,
                high if masked else whole,
                high,
                stride_kt,
                stride_vt,
                qk_scale,
                D,
                0,
                masked == 1,
                PRECISION,
                BLOCK_N,
            )
        part = ((row * kv_heads * G + hk * G + g).to(tl.int64)) * splits + split
        tl.store(acc_ptr + part[:, None] * D + d, acc, mask=(g < G)[:, None])
        tl.store(max_ptr + part, m, mask=g < G)
        tl.store(sum_ptr + part, l, mask=g < G)


@triton.jit(do_not_specialize=["heads", "splits"])
def _reduce_kernel(acc_ptr, max_ptr, sum_ptr, out_ptr, rows_ptr, heads, splits, D: tl.constexpr, BLOCK_S: tl.constexpr):
    row = tl.program_id(0) // heads
    b = tl.load(rows_ptr + row)
    if b >= 0:
        s = tl.arange(0, BLOCK_S)
        d = tl.arange(0, D)
        part = tl.program_id(0).to(tl.int64) * splits + s
        m = tl.load(max_ptr + part, mask=s < splits, other=float("-inf"))
        l = tl.load(sum_ptr + part, mask=s < splits, other=0.0)
        acc = tl.load(acc_ptr + part[:, None] * D + d[None, :], mask=(s < splits)[:, None], other=0.0)
        best = tl.max(m, 0)
        # An empty cache: every part's maximum is minus infinity, and the result zero.
        weight = tl.exp2(m - tl.where(best == float("-inf"), 0.0, best))
        total = tl.sum(weight * l, 0)
        out = tl.sum(weight[:, None] * acc, 0) / tl.where(total == 0.0, 1.0, total)
        where = (b.to(tl.int64) * heads + tl.program_id(0) % heads) * D + d
        tl.store(out_ptr + where, out.to(out_ptr.dtype.element_ty))


def _check(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, active: Tensor | None, rows: Tensor | None, debug: bool) -> None:
    if q.ndim != 3:
        raise ValueError(f"q must have shape [batch, heads, width], one token per sequence, got {list(q.shape)}")
    check_heads(q[:, None], k, v, same_length=False)
    batch, device = q.shape[0], q.device
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be integers of shape {[batch]}, got {lengths.dtype} of shape {list(lengths.shape)}")
    if active is not None and rows is not None:
        raise ValueError("give active, a bool per sequence, or rows, the chosen sequences, not both")
    if active is not None and (active.shape != (batch,) or active.dtype != torch.bool):
        raise TypeError(f"active must be bool of shape {[batch]}, got {active.dtype} of shape {list(active.shape)}")
    if rows is not None and (rows.ndim != 1 or rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        raise TypeError(f"rows must be a vector of integers, got {rows.dtype} of shape {list(rows.shape)}")
    for name, x in (("lengths", lengths), ("active", active), ("rows", rows)):
        if x is not None and x.device != device:
            raise ValueError(f"{name} must be on {device}, where q is, got {x.device}")
    if debug or device.type == "cpu":
        if not ((lengths >= 0) & (lengths <= k.shape[1])).all():
            raise ValueError(f"lengths must lie in [0, {k.shape[1]}], the capacity of the cache, got {lengths.tolist()}")
        if rows is not None and not ((rows >= 0) & (rows < batch)).all():
            raise ValueError(f"rows must lie in [0, {batch}), got {rows.tolist()}")


def decode_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    active: Tensor | None = None,
    rows: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The definition in plain torch; arguments and errors as for `decode_attention`."""
    _check(q, k, v, lengths, active, rows, True)
    scale = check_scale(scale, q.shape[2])
    out = torch.zeros_like(q)
    if active is not None:
        rows = active.nonzero().flatten()
    chosen = slice(None) if rows is None else rows.long()
    lengths = lengths[chosen]
    if lengths.numel():
        keys = int(lengths.max())
        seen = (torch.arange(keys, device=q.device) < lengths[:, None])[:, None]
        out[chosen] = masked_attention(q[chosen][:, None], k[chosen, :keys], v[chosen, :keys], seen, scale=scale)[:, 0]
    return out


def _splits(programs: int, capacity: int, device: torch.device) -> int:
    """Parts of the cache: twice as many programs as the GPU has processors, each with at least four blocks of keys."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return max(1, min(-(-2 * processors // max(programs, 1)), capacity // (4 * BLOCK_KEYS), MOST_SPLITS))


def _decode_triton(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, rows: Tensor, scale: float, splits: int | None) -> Tensor:
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    batch, heads, dim = q.shape
    capacity, kv_heads = k.shape[1:3]
    out = torch.zeros((batch, heads, dim), dtype=q.dtype, device=q.device)
    count = rows.numel()
    if count == 0 or capacity == 0:
        return out
    parts = splits or _splits(count * kv_heads, capacity, q.device)
    acc = torch.empty((count, heads, parts, dim), dtype=torch.float32, device=q.device)
    most, total = (torch.empty((count, heads, parts), dtype=torch.float32, device=q.device) for _ in range(2))
    group = heads // kv_heads
    with on_device(q):
        _split_kernel[(parts, count * kv_heads)](
            *(q, k, v, acc, most, total, rows, lengths.int()),
            *(q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3]),
            *(capacity, kv_heads, parts, scale * LOG2E),
            G=group,
            D=dim,
            PRECISION=dot_precision(q),
            BLOCK_G=max(16, triton.next_power_of_2(group)),
            BLOCK_N=BLOCK_KEYS if dim * q.element_size() <= 512 else BLOCK_KEYS // 2,
            num_warps=4,
            num_stages=2,
        )
        _reduce_kernel[(count * heads,)](
            acc, most, total, out, rows, heads, parts, D=dim, BLOCK_S=triton.next_power_of_2(parts), num_warps=4
        )
    return out


@torch.no_grad()
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    active: Tensor | None = None,
    rows: Tensor | None = None,
    scale: float | None = None,
    backend: str | None = None,
    splits: int | None = None,
    debug: bool = False,
) -> Tensor:
    """Attention of one query per sequence over its cache, for the chosen sequences.

    Parameters
    ----------
    q : [B, Hq, D] floating point, the new token's queries.
    k, v : [B, S, Hk, D], the caches, of which sequence b has filled `lengths[b]` entries, the new token's included. Any strides.
    lengths : [B] integer, 0 .. S; an empty cache gives zeros.
    active : [B] bool, the router's decisions, read on the device; or
    rows : [A] integer, the chosen sequences without repetition, where the host knows them: then the others cost nothing.
        Neither: all sequences.
    scale : positive factor of the scores, default 1 / sqrt(D).
    backend : "triton", "reference" or None: Triton on CUDA, the reference on the CPU.
    splits : parts of the cache that are read side by side, default by the size of the GPU.
    debug : check the values of lengths and rows on a GPU too, which waits for it. On the CPU they are always checked.

    Returns
    -------
    [B, Hq, D] of q's dtype, zeros for sequences that were not chosen.

    Raises
    ------
    TypeError : dtypes that differ or that the backend does not know; lengths, active or rows of the wrong shape or kind.
    ValueError : shapes that do not fit, values out of range, both active and rows, scale <= 0, splits outside 1 .. 64.
    RuntimeError : the Triton backend on the CPU without TRITON_INTERPRET=1.
    """
    _check(q, k, v, lengths, active, rows, debug)
    scale = check_scale(scale, q.shape[2])
    if splits is not None and not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits must lie in 1 .. {MOST_SPLITS}, got {splits}")
    if choose_backend(backend, q[:, None]) == "reference":
        return decode_attention_reference(q, k, v, lengths, active=active, rows=rows, scale=scale)
    if rows is None:
        rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
        if active is not None:
            rows = torch.where(active, rows, -1)
    return _decode_triton(q, k, v, lengths, rows.int(), scale, splits)
