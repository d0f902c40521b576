"""Causal attention at chosen tokens alone, and causal attention over a sliding window: one fused kernel, forward and backward.

    token_gathered   y_t = softmax_{n <= t}(scale q_t k_n) v        for the tokens with active_t = 1, zeros elsewhere
    sliding_window   y_t = softmax_{t - W < n <= t}(scale q_t k_n) v

Keys and values of every token stay visible; only queries are skipped. No score matrix reaches memory, no query is copied:
a tile of rows reads its queries through the sorted list of active positions and writes its results there.

Index      per sequence the active positions, ascending, packed one sequence after the other (`ActiveIndex`). It is built and
           used without waiting for the device: buffers and grids have the size B T, programs without rows return at once.
Forward    a program per tile of BLOCK_M rows and key head. Row r of a sequence is query r // G, head hk G + r % G, so that
           K and V are read once for all G query heads. Keys up to the tile's last position, in blocks of BLOCK_N; blocks
           that every row sees whole carry no mask. Online softmax in base 2; the longest tiles start first.
Backward   from LSE = log2 of the softmax's denominator: dQ per tile of rows, which also leaves Delta = dO . O behind; then
           dK, dV per block of keys over the rows that see it, the first of which the index knows. No atomics: the same
           bits every time, and the sum over the G query heads of a key head happens inside the tile.

Operations, for P = sum of the numbers of visible keys over the computed queries: 4 P Hq D forward, 10 P Hq D backward
(`flops`); token-gathered P = sum over active t of t + 1, about active share x T^2 / 2 per sequence (`gathered_pairs`);
window P about T W (`window_pairs`). Memory: K and V are re-read from cache once per tile, 4 P Hq D / BLOCK_M bytes in 16-bit,
hence BLOCK_M operations per byte; Q, O and LSE once (`bytes_moved`).

`token_gathered_attention` and `sliding_window_attention` are the public entries: the kernels on CUDA tensors (and, under
Triton's interpreter, with backend="triton" on the CPU); on the CPU the torch reference of `kernels.reference_attention`.

References: Choudhary et al., "Learning When to Attend: Conditional Memory Access for Long-Context LLMs"; Dao et al.,
"FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness".
"""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.reference_attention import (
    check_active,
    check_heads,
    check_scale,
    check_window,
    sliding_window_attention_reference,
    token_gathered_attention_reference,
)

LOG2E = math.log2(math.e)
WIDTHS = (16, 32, 64, 128, 256)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHARED_MEMORY = 220 * 1024  # bytes of a Hopper multiprocessor that one program may use
ACCUMULATORS = 2 * 128 * 128  # float32 numbers that fit into its registers beside the rest
INTERPRETED_TILES = (16, 16)


def interpreted() -> bool:
    """Whether this module's kernels were made for Triton's interpreter."""
    return not isinstance(_forward_kernel, triton.runtime.JITFunction)


def choose_backend(backend: str | None, q: Tensor) -> str:
    """ "triton" or "reference"; by default Triton on CUDA and the reference on the CPU.

    Raises ValueError for other names, for widths and TypeError for dtypes that the kernels do not know, RuntimeError for
    Triton without a GPU or its interpreter."""
    if backend not in (None, "triton", "reference"):
        raise ValueError(f"backend must be 'triton', 'reference' or None, got {backend!r}")
    if backend == "reference" or (backend is None and not q.is_cuda):
        return "reference"
    if not q.is_cuda and not interpreted():
        raise RuntimeError(
            f"the Triton kernels need CUDA tensors, got {q.device}; set TRITON_INTERPRET=1 before import to run them on the CPU"
        )
    if q.shape[3] not in WIDTHS:
        raise ValueError(f"the Triton kernels take heads of width {WIDTHS}, got {q.shape[3]}; backend='reference' takes any")
    if q.dtype not in DTYPES:
        raise TypeError(
            f"the Triton kernels take float32, float16 and bfloat16, got {q.dtype}; backend='reference' takes others"
        )
    if q.dtype == torch.bfloat16 and interpreted():
        raise TypeError("Triton's interpreter cannot multiply bfloat16; take float32 or float16, or backend='reference'")
    return "triton"


@dataclass(frozen=True)
class ActiveIndex:
    """Where the active tokens are; one serves all heads, forward and backward. Made by `build_index` or `index_of_positions`.

    idx : [B T] int32, of which the first N count: positions of sequence 0 ascending, then of sequence 1, ...
    cu : [B + 1] int32, sequence b owns idx[cu[b] : cu[b + 1]]; cu[B] = N.
    before : [B, T + 1] int32, the number of active tokens of b before position t.
    """

    idx: Tensor
    cu: Tensor
    before: Tensor

    @property
    def length(self) -> int:
        return self.before.shape[1] - 1

    def first(self, block: int) -> Tensor:
        """[B, ceil(T / block)] int32: the first active query of b that can see key block kb, as an index into b's own."""
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        return self.before[:, : self.length : block]

    def mask(self) -> Tensor:
        """[B, T] bool, what the index was made of."""
        return self.before[:, 1:] > self.before[:, :-1]

    def check(self) -> ActiveIndex:
        """For debugging; waits for the device. Raises ValueError unless positions are in range and strictly ascending."""
        cu, length = self.cu.tolist(), self.length
        if cu[0] != 0 or any(a > b for a, b in itertools.pairwise(cu)) or cu[-1] > self.idx.numel():
            raise ValueError(f"cu must rise from 0 to at most the number of positions, {self.idx.numel()}, got {cu}")
        for b, (start, end) in enumerate(itertools.pairwise(cu)):
            positions = self.idx[start:end]
            if positions.numel() and not ((positions >= 0) & (positions < length)).all():
                raise ValueError(f"idx of sequence {b} must lie in [0, {length}), got {positions.tolist()}")
            if not (positions[1:] > positions[:-1]).all():
                raise ValueError(f"idx of sequence {b} must be strictly ascending, got {positions.tolist()}")
        wanted = _packed(self.mask())
        if not (torch.equal(wanted.cu, self.cu) and torch.equal(wanted.idx[: cu[-1]], self.idx[: cu[-1]])):
            raise ValueError("before must count the positions of idx, but the two differ")
        return self


def _packed(active: Tensor) -> ActiveIndex:
    batch, length = active.shape
    before = torch.zeros((batch, length + 1), dtype=torch.int32, device=active.device)
    torch.cumsum(active, 1, dtype=torch.int32, out=before[:, 1:])
    cu = torch.zeros(batch + 1, dtype=torch.int32, device=active.device)
    torch.cumsum(before[:, -1], 0, dtype=torch.int32, out=cu[1:])
    # Each active token knows its place; the others share one place behind the list.
    place = torch.where(active, cu[:-1, None] + before[:, :-1], batch * length).flatten().long()
    time = torch.arange(length, dtype=torch.int32, device=active.device).expand(batch, length).reshape(-1)
    idx = torch.zeros(batch * length + 1, dtype=torch.int32, device=active.device).scatter_(0, place, time)
    return ActiveIndex(idx[:-1], cu, before)


def build_index(active: Tensor) -> ActiveIndex:
    """The index of a mask [B, T] of bool (or 0 and 1), without waiting for the device. Raises TypeError for other masks,
    ValueError for 2^31 tokens or more."""
    if not isinstance(active, Tensor) or active.ndim != 2:
        got = list(active.shape) if isinstance(active, Tensor) else type(active).__name__
        raise TypeError(f"active must be a tensor of shape [batch, time], got {got}")
    if active.numel() + active.shape[0] >= 2**31:
        raise ValueError(f"an index holds fewer than 2^31 tokens, got {list(active.shape)}")
    return _packed(check_active(active, active[:, :, None, None]))


def index_of_positions(idx: Tensor, cu: Tensor, length: int, *, debug: bool = True) -> ActiveIndex:
    """The index of packed positions, such as another library keeps.

    idx : [N] integer, per sequence ascending; cu : [B + 1] integer, sequence b owns idx[cu[b] : cu[b + 1]]; length : T.
    With `debug` the positions are checked, which waits for the device.

    Raises TypeError for tensors that are not integer vectors, ValueError for positions out of order or range."""
    for name, x in (("idx", idx), ("cu", cu)):
        if x.ndim != 1 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise TypeError(f"{name} must be a vector of integers, got {x.dtype} of shape {list(x.shape)}")
    if cu.numel() < 1:
        raise ValueError("cu must have one entry more than there are sequences, got none")
    batch = cu.numel() - 1
    # searchsorted: the row of each packed position; positions behind cu[B] fall into no row.
    place = torch.arange(idx.numel(), device=idx.device)
    row = torch.searchsorted(cu.long(), place, right=True) - 1
    inside = (row >= 0) & (row < batch) & (idx >= 0) & (idx < length)
    flat = torch.where(inside, row * length + idx, batch * length)
    active = torch.zeros(batch * length + 1, dtype=torch.bool, device=idx.device).scatter_(0, flat, True)
    made = _packed(active[:-1].view(batch, length))
    if debug:
        ActiveIndex(idx.int(), cu.int(), made.before).check()
    return made


# Kernels. Offsets of rows and of blocks of keys are 64-bit; inside a block 32-bit ones do. Widths are contiguous.


@triton.jit
def _extent(cu_ptr, b, T, GATHERED: tl.constexpr):
    """The first slot of a sequence in the packed lists and its number of computed queries."""
    if GATHERED:
        first = tl.load(cu_ptr + b)
        count = tl.load(cu_ptr + b + 1) - first
    else:
        first = b * T
        count = T
    return first, count


@triton.jit
def _rows(idx_ptr, first, count, r, G: tl.constexpr, GATHERED: tl.constexpr):
    """Of rows r: whether they exist, their position in time (-1 where not), their slot and their head within the group."""
    exists = r < count * G
    slot = first + r // G
    t = tl.load(idx_ptr + slot, mask=exists, other=-1) if GATHERED else tl.where(exists, r // G, -1)
    return exists, t, slot, r % G


@triton.jit
def _key_spans(t, exists, T, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Blocks of keys of a tile: [low, inner) and [outer, high) need the mask, [inner, outer) every row sees whole."""
    last = tl.max(t, 0)
    earliest = tl.min(tl.where(exists, t, T), 0)
    high = last + 1
    low = earliest * 0
    inner = low
    outer = (earliest + 1) // BLOCK_N * BLOCK_N
    if WINDOW > 0:
        low = tl.maximum(earliest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(last - WINDOW + 1, 0), BLOCK_N) * BLOCK_N
        outer = tl.maximum(outer, inner)
    return low, inner, outer, high


@triton.jit
def _visible(t, n, WINDOW: tl.constexpr):
    """Whether queries at t see keys at n, both shaped to broadcast."""
    seen = n <= t
    if WINDOW > 0:
        seen = seen & (n > t - WINDOW)
    return seen


@triton.jit
def _load_keys(base, start, T, stride, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """[BLOCK_N, D] keys or values from position `start` on; zeros behind the end."""
    n = tl.arange(0, BLOCK_N)
    where = base + tl.cast(start, tl.int64) * stride + (n[:, None] * stride + tl.arange(0, D)[None, :])
    return tl.load(where, mask=(start + n < T)[:, None], other=0.0) if MASKED else tl.load(where)


@triton.jit
def _attend(
    acc,
    m,
    l,
    q,
    t,
    k_base,
    v_base,
    low,
    high,
    T,
    stride_kt,
    stride_vt,
    qk_scale,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Online softmax over keys low .. high - 1: `acc` and `l` are sums relative to 2^m."""
    for start in range(low, high, BLOCK_N):
        k = _load_keys(k_base, start, T, stride_kt, D, BLOCK_N, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            n = start + tl.arange(0, BLOCK_N)
            s = tl.where(_visible(t[:, None], n[None, :], WINDOW), s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * qk_scale)
        # A row that has seen no key yet: minus infinity less itself would be NaN.
        origin = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
        p = tl.exp2(s * qk_scale - origin[:, None])
        shrink = tl.exp2(m - origin)
        l = l * shrink + tl.sum(p, 1)
        v = _load_keys(v_base, start, T, stride_vt, D, BLOCK_N, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        m = m_new
    return acc, m, l


@triton.jit(do_not_specialize=["T", "kv_heads", "bucket"])
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    idx_ptr,
    cu_ptr,
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    T,
    kv_heads,
    qk_scale,
    bucket,  # of lengths, for the tuner alone
    G: tl.constexpr,
    D: tl.constexpr,
    GATHERED: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: no bound
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1) // kv_heads
    hk = tl.program_id(1) % kv_heads
    first, count = _extent(cu_ptr, b, T, GATHERED)
    tile = tl.cdiv(count * G, BLOCK_M) - 1 - tl.program_id(0)
    if tile >= 0:
        exists, t, slot, g = _rows(idx_ptr, first, count, tile * BLOCK_M + tl.arange(0, BLOCK_M), G, GATHERED)
        batch = b.to(tl.int64)
        kv_head = hk.to(tl.int64)
        head = kv_head * G + g
        heads = tl.cast(kv_heads * G, tl.int64)
        d = tl.arange(0, D)[None, :]
        q_rows = batch * stride_qb + t.to(tl.int64) * stride_qt + head * stride_qh
        q = tl.load(q_ptr + q_rows[:, None] + d, mask=exists[:, None], other=0.0)
        k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
        v_base = v_ptr + batch * stride_vb + kv_head * stride_vh

        acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
        m = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        l = tl.zeros((BLOCK_M,), dtype=tl.float32)
        low, inner, outer, high = _key_spans(t, exists, T, WINDOW, BLOCK_N)
        for span in tl.static_range(0 if WINDOW > 0 else 1, 3):
            acc, m, l = _attend(
                acc,
                m,
                l,
                q,
                t,
                k_base,
                v_base,
                low if span == 0 else (inner if span == 1 else outer),
                # The window's first span may reach the end: a short window has no block that all rows see whole.
                tl.minimum(inner, high) if span == 0 else (outer if span == 1 else high),
                T,
                stride_kt,
                stride_vt,
                qk_scale,
                D,
                WINDOW,
                span != 1,
                PRECISION,
                BLOCK_N,
            )

        l = tl.where(exists, l, 1.0)
        o_rows = ((batch * T + t) * heads + head) * D
        tl.store(o_ptr + o_rows[:, None] + d, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=exists[:, None])
        tl.store(lse_ptr + slot.to(tl.int64) * heads + head, m + tl.log2(l), mask=exists)


@triton.jit
def _add_to_dq(
    dq,
    q,
    do,
    lse,
    delta,
    t,
    k_base,
    v_base,
    low,
    high,
    T,
    stride_kt,
    stride_vt,
    qk_scale,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add dS K over keys low .. high - 1, with dS = P (dO V^T - Delta)."""
    for start in range(low, high, BLOCK_N):
        k = _load_keys(k_base, start, T, stride_kt, D, BLOCK_N, MASKED)
        v = _load_keys(v_base, start, T, stride_vt, D, BLOCK_N, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        s = s * qk_scale - lse[:, None]
        if MASKED:
            n = start + tl.arange(0, BLOCK_N)
            s = tl.where(_visible(t[:, None], n[None, :], WINDOW), s, float("-inf"))
        p = tl.exp2(s)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["T", "kv_heads", "bucket"])
def _dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    idx_ptr,
    cu_ptr,
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_ob,
    stride_ot,
    stride_oh,
    T,
    kv_heads,
    scale,
    qk_scale,
    bucket,
    G: tl.constexpr,
    D: tl.constexpr,
    GATHERED: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1) // kv_heads
    hk = tl.program_id(1) % kv_heads
    first, count = _extent(cu_ptr, b, T, GATHERED)
    tile = tl.cdiv(count * G, BLOCK_M) - 1 - tl.program_id(0)
    if tile >= 0:
        exists, t, slot, g = _rows(idx_ptr, first, count, tile * BLOCK_M + tl.arange(0, BLOCK_M), G, GATHERED)
        batch = b.to(tl.int64)
        kv_head = hk.to(tl.int64)
        head = kv_head * G + g
        heads = tl.cast(kv_heads * G, tl.int64)
        time = t.to(tl.int64)
        d = tl.arange(0, D)[None, :]
        own = ((batch * T + time) * heads + head) * D
        q_rows = batch * stride_qb + time * stride_qt + head * stride_qh
        do_rows = batch * stride_ob + time * stride_ot + head * stride_oh
        q = tl.load(q_ptr + q_rows[:, None] + d, mask=exists[:, None], other=0.0)
        do = tl.load(do_ptr + do_rows[:, None] + d, mask=exists[:, None], other=0.0)
        o = tl.load(o_ptr + own[:, None] + d, mask=exists[:, None], other=0.0)
        lse = tl.load(lse_ptr + slot.to(tl.int64) * heads + head, mask=exists, other=0.0)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        tl.store(delta_ptr + slot.to(tl.int64) * heads + head, delta, mask=exists)
        k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
        v_base = v_ptr + batch * stride_vb + kv_head * stride_vh

        dq = tl.zeros((BLOCK_M, D), dtype=tl.float32)
        low, inner, outer, high = _key_spans(t, exists, T, WINDOW, BLOCK_N)
        for span in tl.static_range(0 if WINDOW > 0 else 1, 3):
            dq = _add_to_dq(
                dq,
                q,
                do,
                lse,
                delta,
                t,
                k_base,
                v_base,
                low if span == 0 else (inner if span == 1 else outer),
                tl.minimum(inner, high) if span == 0 else (outer if span == 1 else high),
                T,
                stride_kt,
                stride_vt,
                qk_scale,
                D,
                WINDOW,
                span != 1,
                PRECISION,
                BLOCK_N,
            )
        tl.store(dq_ptr + own[:, None] + d, (dq * scale).to(dq_ptr.dtype.element_ty), mask=exists[:, None])


@triton.jit
def _add_to_dk_dv(
    dk,
    dv,
    k,
    v,
    n,
    low,
    high,
    q_base,
    do_base,
    lse_ptr,
    delta_ptr,
    idx_ptr,
    first,
    count,
    kv_head,
    heads,
    stride_qt,
    stride_qh,
    stride_ot,
    stride_oh,
    qk_scale,
    G: tl.constexpr,
    D: tl.constexpr,
    GATHERED: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Add P^T dO and dS^T Q over rows low .. high - 1 in tiles; a last tile may run over unless rows are masked."""
    d = tl.arange(0, D)[None, :]
    for start in range(low, high, BLOCK_M):
        exists, t, slot, g = _rows(idx_ptr, first, count, start + tl.arange(0, BLOCK_M), G, GATHERED)
        head = kv_head * G + g
        time = t.to(tl.int64)
        statistics = slot.to(tl.int64) * heads + head
        q_rows = (q_base + time * stride_qt + head * stride_qh)[:, None] + d
        do_rows = (do_base + time * stride_ot + head * stride_oh)[:, None] + d
        if MASKED:
            q = tl.load(q_rows, mask=exists[:, None], other=0.0)
            do = tl.load(do_rows, mask=exists[:, None], other=0.0)
            lse = tl.load(lse_ptr + statistics, mask=exists, other=0.0)
            delta = tl.load(delta_ptr + statistics, mask=exists, other=0.0)
        else:
            q = tl.load(q_rows)
            do = tl.load(do_rows)
            lse = tl.load(lse_ptr + statistics)
            delta = tl.load(delta_ptr + statistics)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        s = s * qk_scale - lse[None, :]
        if MASKED:
            s = tl.where(_visible(t[None, :], n[:, None], WINDOW), s, float("-inf"))
        p = tl.exp2(s)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["T", "kv_heads", "bucket"])
def _dk_dv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    idx_ptr,
    cu_ptr,
    before_ptr,
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_ob,
    stride_ot,
    stride_oh,
    T,
    kv_heads,
    scale,
    qk_scale,
    bucket,
    G: tl.constexpr,
    D: tl.constexpr,
    GATHERED: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1) // kv_heads
    hk = tl.program_id(1) % kv_heads
    start = tl.program_id(0) * BLOCK_N
    n = start + tl.arange(0, BLOCK_N)
    batch = b.to(tl.int64)
    kv_head = hk.to(tl.int64)
    heads = tl.cast(kv_heads * G, tl.int64)
    first, count = _extent(cu_ptr, b, T, GATHERED)
    k = _load_keys(k_ptr + batch * stride_kb + kv_head * stride_kh, start, T, stride_kt, D, BLOCK_N, True)
    v = _load_keys(v_ptr + batch * stride_vb + kv_head * stride_vh, start, T, stride_vt, D, BLOCK_N, True)

    # Rows [low, high) see something of this block, rows [whole, whole_end) all of it.
    newest = tl.minimum(start + BLOCK_N - 1, T)
    if GATHERED:
        counts = before_ptr + batch * (T + 1)
        low = tl.load(counts + start) * G
        whole = tl.load(counts + newest) * G
        high = count * G
        whole_end = high
    else:
        low = start * G
        whole = newest * G
        high = T * G
        whole_end = high
        if WINDOW > 0:
            high = tl.minimum(T, start + BLOCK_N - 1 + WINDOW) * G
            whole_end = tl.minimum(T, start + WINDOW) * G
    # Tiles of rows begin at `low`; the mask is needed up to `inner` and again from `outer` on.
    inner = low + tl.cdiv(whole - low, BLOCK_M) * BLOCK_M
    outer = inner + tl.maximum(whole_end - inner, 0) // BLOCK_M * BLOCK_M

    dk = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    for span in tl.static_range(3):
        dk, dv = _add_to_dk_dv(
            dk,
            dv,
            k,
            v,
            n,
            low if span == 0 else (inner if span == 1 else outer),
            tl.minimum(inner, high) if span == 0 else (outer if span == 1 else high),
            q_ptr + batch * stride_qb,
            do_ptr + batch * stride_ob,
            lse_ptr,
            delta_ptr,
            idx_ptr,
            first,
            count,
            kv_head,
            heads,
            stride_qt,
            stride_qh,
            stride_ot,
            stride_oh,
            qk_scale,
            G,
            D,
            GATHERED,
            WINDOW,
            span != 1,
            PRECISION,
            BLOCK_M,
        )
    rows = ((batch * T + n) * kv_heads + kv_head) * D
    where = rows[:, None] + tl.arange(0, D)[None, :]
    tl.store(dk_ptr + where, (dk * scale).to(dk_ptr.dtype.element_ty), mask=(n < T)[:, None])
    tl.store(dv_ptr + where, dv.to(dv_ptr.dtype.element_ty), mask=(n < T)[:, None])


# Tuning and launching.

_SMALLEST = triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4, num_stages=1)  # wide float32 heads fit into no other
_FORWARD_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m in (64, 128)
    for n in (32, 64, 128)
    for stages in (2, 3, 4)
    for warps in (4, 8)
] + [_SMALLEST]
_BACKWARD_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n in ((64, 128), (64, 64), (128, 64), (32, 128))
    for stages in (1, 2, 3)
    for warps in (4, 8)
] + [_SMALLEST]


def _forward_bytes(m: int, n: int, stages: int, dim: int, size: int) -> int:
    """Shared memory of a forward tile: keys and values of all stages, the queries."""
    return 2 * n * dim * size * stages + m * dim * size


def _dq_bytes(m: int, n: int, stages: int, dim: int, size: int) -> int:
    """Keys and values of all stages; queries and gradients of the output."""
    return 2 * n * dim * size * stages + 2 * m * dim * size


def _dk_dv_bytes(m: int, n: int, stages: int, dim: int, size: int) -> int:
    """Queries and gradients of the output of all stages; keys and values."""
    return 2 * m * dim * size * stages + 2 * n * dim * size


def _pruner(shared: Any, accumulators: Any) -> Any:
    """Keeps tilings that fit into shared memory and registers, and 8 warps for large tiles only; at least the smallest."""

    def footprint(config: triton.Config, dim: int, size: int) -> int:
        return shared(config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"], config.num_stages, dim, size)

    def prune(configs: list[triton.Config], named_args: dict[str, Any], **kwargs: Any) -> list[triton.Config]:
        # Products in three parts keep a second, smaller copy of half of what they multiply.
        dim, size = kwargs["D"], 6 if kwargs["PRECISION"] == "tf32x3" else named_args["q_ptr"].element_size()
        kept = [
            config
            for config in configs
            if footprint(config, dim, size) <= SHARED_MEMORY
            and accumulators(config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]) * dim <= ACCUMULATORS
            and (config.num_warps < 8 or config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] >= 128 * 128)
        ]
        return kept or [min(configs, key=lambda config: footprint(config, dim, size))]

    return prune


def _tuned(kernel: Any, configs: list[triton.Config], shared: Any, accumulators: Any) -> Any:
    return triton.autotune(
        configs=configs,
        key=["bucket", "G", "D", "GATHERED", "WINDOW"],
        prune_configs_by={"early_config_prune": _pruner(shared, accumulators)},
    )(kernel)


_forward_tuned = _tuned(_forward_kernel, _FORWARD_CONFIGS, _forward_bytes, lambda m, n: m)
_dq_tuned = _tuned(_dq_kernel, _BACKWARD_CONFIGS, _dq_bytes, lambda m, n: m)
_dk_dv_tuned = _tuned(_dk_dv_kernel, _BACKWARD_CONFIGS, _dk_dv_bytes, lambda m, n: 2 * n)


def on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def dot_precision(x: Tensor) -> str:
    """How float32 products are made: three TF32 products that together keep float32's digits, or one, as
    `torch.set_float32_matmul_precision` says. Products of 16-bit numbers are exact either way."""
    return "tf32x3" if x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def _launch(kernel: Any, tuned: Any, grid: Any, q: Tensor, args: tuple, constants: dict, tiles: tuple[int, int] | None) -> None:
    with on_device(q):
        if tiles is None and not interpreted():
            tuned[grid](*args, **constants)
        else:
            block_m, block_n = tiles or INTERPRETED_TILES
            kernel[grid](*args, **constants, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4, num_stages=2)


def dense_rows(x: Tensor) -> Tensor:
    """The tensor itself if its widths are contiguous, as the kernels want them, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Attention(torch.autograd.Function):
    """Fused attention of [B, T, H, D]; `index` None means that all tokens are active, window 0 that there is no bound."""

    @staticmethod
    def forward(ctx, q, k, v, idx, cu, before, window, scale, tiles):
        q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
        batch, length, heads, dim = q.shape
        kv_heads = k.shape[2]
        group = heads // kv_heads
        gathered = idx is not None
        out = (torch.zeros if gathered else torch.empty)(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((batch * length, heads), dtype=torch.float32, device=q.device)
        ctx.constants = {"G": group, "D": dim, "GATHERED": gathered, "WINDOW": window, "PRECISION": dot_precision(q)}
        ctx.scale, ctx.tiles, ctx.bucket = scale, tiles, (max(length, 2) - 1).bit_length()
        ctx.save_for_backward(q, k, v, out, lse, idx, cu, before)
        _launch(
            _forward_kernel,
            _forward_tuned,
            lambda meta: (triton.cdiv(length * group, meta["BLOCK_M"]), batch * kv_heads),
            q,
            (
                *(q, k, v, out, lse, idx, cu),
                *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]),
                *(length, kv_heads, scale * LOG2E, ctx.bucket),
            ),
            ctx.constants,
            tiles,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, lse, idx, cu, before = ctx.saved_tensors
        grad = dense_rows(grad)
        batch, length, heads, _ = q.shape
        kv_heads = k.shape[2]
        group = heads // kv_heads
        delta = torch.empty_like(lse)
        dq = (torch.zeros if idx is not None else torch.empty)(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
        numbers = (length, kv_heads, ctx.scale, ctx.scale * LOG2E, ctx.bucket)
        # This order: dq leaves delta behind for the other.
        _launch(
            _dq_kernel,
            _dq_tuned,
            lambda meta: (triton.cdiv(length * group, meta["BLOCK_M"]), batch * kv_heads),
            q,
            (q, k, v, out, grad, lse, delta, dq, idx, cu, *strides, *numbers),
            ctx.constants,
            ctx.tiles,
        )
        _launch(
            _dk_dv_kernel,
            _dk_dv_tuned,
            lambda meta: (triton.cdiv(length, meta["BLOCK_N"]), batch * kv_heads),
            q,
            (q, k, v, grad, lse, delta, dk, dv, idx, cu, before, *strides, *numbers),
            ctx.constants,
            ctx.tiles,
        )
        return dq, dk, dv, None, None, None, None, None, None


def _check_tiles(tiles: tuple[int, int] | None) -> None:
    if tiles is not None and (len(tiles) != 2 or any(size < 16 or size & (size - 1) for size in tiles)):
        raise ValueError(f"tiles must be two powers of two from 16, (BLOCK_M, BLOCK_N), got {tiles}")


def token_gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    active: Tensor | ActiveIndex,
    *,
    scale: float | None = None,
    backend: str | None = None,
    tiles: tuple[int, int] | None = None,
    debug: bool = False,
) -> Tensor:
    """Causal attention over all earlier tokens, for the active tokens alone. Differentiable in q, k and v.

    Parameters
    ----------
    q : [B, T, Hq, D]. The kernels take float32, float16 and bfloat16 and D in 16, 32, 64, 128, 256; the reference also others.
    k, v : [B, T, Hk, D] of every token, active or not; Hk divides Hq. Any strides.
    active : [B, T] bool (or 0 and 1), or an `ActiveIndex` made once for several layers or passes.
    scale : positive factor of the scores, default 1 / sqrt(D).
    backend : "triton", "reference" or None: Triton on CUDA, the reference on the CPU.
    tiles : (BLOCK_M, BLOCK_N) of the kernels instead of tuned ones.
    debug : check an `ActiveIndex`, which waits for the device.

    Returns
    -------
    [B, T, Hq, D] of q's dtype; rows of inactive tokens are zero, and gradients that arrive there are not read.

    Raises
    ------
    TypeError : dtypes that differ or that the backend does not know; active not [B, T] or not of 0 and 1.
    ValueError : shapes that do not fit, Hq no multiple of Hk, a width that the kernels do not know, scale <= 0, a bad index.
    RuntimeError : the Triton backend on the CPU without TRITON_INTERPRET=1.
    """
    check_heads(q, k, v)
    scale = check_scale(scale, q.shape[3])
    _check_tiles(tiles)
    chosen = choose_backend(backend, q)
    if isinstance(active, ActiveIndex):
        if active.before.shape != (q.shape[0], q.shape[1] + 1) or active.before.device != q.device:
            raise ValueError(
                f"the index must be of {list(q.shape[:2])} tokens on {q.device}, "
                f"got {[active.before.shape[0], active.length]} on {active.before.device}"
            )
        if debug:
            active.check()
    if chosen == "reference":
        mask = active.mask() if isinstance(active, ActiveIndex) else active
        return token_gathered_attention_reference(q, k, v, mask, scale=scale)
    index = active if isinstance(active, ActiveIndex) else build_index(check_active(active, q))
    if q.numel() == 0:
        return _nothing(q, k, v)
    return _Attention.apply(q, k, v, index.idx, index.cu, index.before, 0, scale, tiles)


def sliding_window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    *,
    scale: float | None = None,
    backend: str | None = None,
    tiles: tuple[int, int] | None = None,
) -> Tensor:
    """Causal attention over the last `window` tokens. Differentiable in q, k and v.

    Parameters
    ----------
    q, k, v, scale, backend, tiles : as for `token_gathered_attention`.
    window : W >= 1, keys t - W + 1 .. t, so the own token is counted (libraries that count tokens to the left call this
        W - 1). W >= T is full causal attention.

    Returns
    -------
    [B, T, Hq, D] of q's dtype.

    Raises
    ------
    TypeError, ValueError, RuntimeError : as for `token_gathered_attention`; ValueError for a window below 1.
    """
    check_heads(q, k, v)
    scale = check_scale(scale, q.shape[3])
    check_window(window)
    _check_tiles(tiles)
    if choose_backend(backend, q) == "reference":
        return sliding_window_attention_reference(q, k, v, window, scale=scale)
    if q.numel() == 0:
        return _nothing(q, k, v)
    return _Attention.apply(q, k, v, None, None, None, window if window < q.shape[1] else 0, scale, tiles)


def _nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The result where there is no query: empty, but still a function of q, k and v."""
    return torch.zeros_like(q) + 0.0 * (q.sum() + k.sum() + v.sum())


# What it costs, counted.


def gathered_pairs(active: Tensor) -> int:
    """Pairs of query and key that token-gathered attention looks at per head: the sum over active tokens of t + 1."""
    length = active.shape[-1]
    return int((active.long() * torch.arange(1, length + 1, device=active.device)).sum())


def window_pairs(batch: int, length: int, window: int) -> int:
    """Pairs per head of sliding window attention: the sum over tokens of min(t + 1, W). W >= T gives causal attention."""
    full = min(check_window(window), length)
    return batch * (full * (full + 1) // 2 + (length - full) * full)


def flops(pairs: int, heads: int, dim: int, *, backward: bool = False) -> int:
    """Floating point operations of the products: 2 of 2 D per pair and query head forward, 5 backward."""
    return (10 if backward else 4) * pairs * heads * dim


def bytes_moved(
    pairs: int,
    rows: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    dim: int,
    element_size: int,
    *,
    backward: bool = False,
    tiles: tuple[int, int] | None = None,
) -> int:
    """Bytes that the kernels read and write.

    pairs : as counted by `gathered_pairs` or `window_pairs`; rows : computed queries, N or B T; tokens : B T.
    tiles : None counts every tensor once, what main memory must at least carry; (BLOCK_M, BLOCK_N) counts the repeated reads
        too, which caches carry: K and V once per tile of rows, backward also Q and dO once per block of keys.
    """
    row = heads * dim * element_size  # of q, o, do or dq
    key_values = 2 * tokens * kv_heads * dim * element_size
    statistics = 4 * heads  # of LSE or Delta
    if tiles is None:
        repeated_keys = repeated_rows = 0
    else:
        repeated_keys = 2 * pairs * heads * dim * element_size // tiles[0]
        repeated_rows = pairs * heads * (2 * dim * element_size + 8) // tiles[1]
    if not backward:
        return (repeated_keys or key_values) + rows * (2 * row + statistics + 4)
    # dq: q, o, do in, dq and Delta out; dk, dv: q, do and both statistics in, K and V in, dK and dV out.
    once = rows * (4 * row + 2 * statistics + 4) + 2 * key_values
    again = (repeated_keys or key_values) + (repeated_rows or rows * (2 * row + 2 * statistics + 4))
    return once + again
