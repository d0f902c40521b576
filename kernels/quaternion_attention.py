"""Self-attention over quaternion features, forward and backward: one shared score, or a score per component as the baseline.

    shared      out_c = softmax(Re(q conj(k)) / sqrt(4 h)) v_c          one map for all four components
    component   out_c = softmax((q k)_c / sqrt(h)) v_c                  four maps; q conj(k) with conjugate=True

Queries, keys, values and outputs stay [B, L, 4, n], n = H h, in any strides; nothing is copied or transposed. Column w of a tile
is feature w mod P of component w div P, P = max(4, next power of two of h), so D = 4 P >= 16 columns, padded ones masked.
Component c of q k is one dot of q with k whose component a is s(a, a xor c) k_(a xor c), s the sign of e_a e_(a xor c): the
permutation and the signs are part of the load.

Norm       optional: q / sqrt(mean_c q_c^2 + eps) * gain of queries and keys, in registers; its own backward is in torch.
Forward    a program per tile of BLOCK_M queries and head; queries are loaded once, keys in blocks of BLOCK_N; online softmax in
           base 2 with float32 sums. It leaves LSE = m + log2 l behind. Blocks that every row sees whole carry no mask.
           The component mode walks over the keys once per map.
Backward   Delta = sum_d dO O first; then dK, dV per block of keys, then dQ per tile of queries, P recomputed from LSE.
           No atomics: the same bits every time.

Per head, without causal mask: shared 16 L^2 h operations and L^2 exponentials forward, component 40 L^2 h and 4 L^2; backward
40 L^2 h and 112 L^2 h (`flops`, `exponentials`). Either mode must move q, k, v and out, 16 h L elements: 32 h L bytes in 16-bit
(`bytes_moved`), so the shared mode makes L / 2 operations per byte and is bound by arithmetic from a few hundred tokens on.

    q, k, v = (torch.randn(2, 1024, 4, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    y = shared_score_attention(q, k, v, heads=4, causal=True)          # [2, 1024, 4, 64]; h = 16

`shared_score_attention` and `component_score_attention` are the public entries: the kernels on CUDA tensors (and, under
Triton's interpreter, with backend="triton" on the CPU); on the CPU `quaternion_attention_reference`.

References: Yamauchi et al., "Quaternion Self-Attention with Shared Scores"; Tay et al., "Lightweight and Efficient Neural
Natural Language Processing with Quaternion Networks"; Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention
with IO-Awareness".
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG2E = math.log2(math.e)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 64  # quaternion features of a head, 256 real columns
INTERPRETED_TILES = (32, 32)
SCORES = ("shared", "component")
_NEGATIVE = tl.constexpr(0xC6A0)  # bit 4 a + b: whether e_a e_b = -e_(a xor b)
SIGNS = tuple(tuple(1 - 2 * (_NEGATIVE.value >> (4 * a + b) & 1) for b in range(4)) for a in range(4))


# --- the definition -------------------------------------------------------------------------------------------------


def _normalised(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    return x if gain is None else x * torch.rsqrt(x.square().mean(-2, keepdim=True) + eps) * gain


def quaternion_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads: int,
    score: str = "shared",
    conjugate: bool = False,
    causal: bool = False,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """The definition in plain torch, all maps in memory; float32 inside, float64 for float64 inputs.

    score : "shared" or "component". Other arguments, results and errors as for the two public functions."""
    _check(q, k, v, heads, score, q_gain, k_gain, eps)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    gains = (None if gain is None else gain.to(wide) for gain in (q_gain, k_gain))
    q_, k_ = (_normalised(x.to(wide), gain, eps) for x, gain in zip((q, k), gains, strict=True))
    batch, length, _, n = q.shape
    # (4, B, H, L, h)
    q_, k_, v_ = (x.unflatten(-1, (heads, n // heads)).permute(2, 0, 3, 1, 4) for x in (q_, k_, v.to(wide)))
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1) if causal else None

    def outputs(scores: Tensor, values: Tensor) -> Tensor:
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ values

    if score == "shared":
        scores = sum(q_[c] @ k_[c].transpose(-1, -2) for c in range(4)) / math.sqrt(4 * n // heads)
        y = torch.stack([outputs(scores, v_[c]) for c in range(4)])
    else:
        if conjugate:
            k_ = torch.cat([k_[:1], -k_[1:]])
        parts = []
        for c in range(4):
            terms = (SIGNS[a][a ^ c] * (q_[a] @ k_[a ^ c].transpose(-1, -2)) for a in range(4))
            parts.append(outputs(sum(terms) / math.sqrt(n // heads), v_[c]))
        y = torch.stack(parts)
    return y.permute(1, 3, 0, 2, 4).reshape(batch, length, 4, n).to(q.dtype)


def _check(
    q: Tensor, k: Tensor, v: Tensor, heads: int, score: str, q_gain: Tensor | None, k_gain: Tensor | None, eps: float
) -> None:
    for x in (q, k, v):
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise TypeError(f"q, k and v must share one floating point dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
        if x.device != q.device:
            raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
        if x.ndim != 4 or x.shape[2] != 4 or x.shape != q.shape:
            shapes = f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
            raise ValueError(f"q, k and v must have one shape (B, L, 4, n), got {shapes}")
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1 or q.shape[3] < 1 or q.shape[3] % heads:
        raise ValueError(f"n must be a positive multiple of heads and heads at least 1, got n = {q.shape[3]}, heads = {heads}")
    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
    if (q_gain is None) != (k_gain is None):
        raise ValueError("q_gain and k_gain are given together or not at all")
    for name, gain in (("q_gain", q_gain), ("k_gain", k_gain)):
        if gain is None:
            continue
        if gain.shape != (q.shape[3],) or gain.device != q.device:
            wanted = f"shape ({q.shape[3]},) on {q.device}"
            raise ValueError(f"{name} must have {wanted}, got {tuple(gain.shape)} on {gain.device}")
        if not gain.is_floating_point():
            raise TypeError(f"{name} must be a floating point tensor, got {gain.dtype}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")


# --- kernels --------------------------------------------------------------------------------------------------------
# Offsets of rows, heads and batches are 64-bit. `N` is h, `P` its padded width, `W` the columns of a tile of values: all 4 P, or
# those of one component, at least 16.


@triton.jit
def _load_tile(
    base,
    rows,
    L,
    stride_l,
    stride_c,
    stride_n,
    c,
    ROLE: tl.constexpr,  # 0: components from c on; 1: keys for map c; 2: queries for map c
    CONJUGATE: tl.constexpr,
    SPAN: tl.constexpr,  # columns per component
    N: tl.constexpr,
    W: tl.constexpr,
    MASKED: tl.constexpr,  # whether rows may lie behind the end
):
    """[rows, W] with zeros in padded columns and behind the end."""
    w = tl.arange(0, W)
    f = w % SPAN
    a = w // SPAN
    component = a + c if ROLE == 0 else a ^ c
    where = base + rows.to(tl.int64)[:, None] * stride_l + (component * stride_c + f * stride_n)[None, :]
    if MASKED:
        if SPAN > N:
            x = tl.load(where, mask=(rows < L)[:, None] & (f < N)[None, :], other=0.0)
        else:
            x = tl.load(where, mask=(rows < L)[:, None], other=0.0)
    else:
        x = tl.load(where, mask=(f < N)[None, :], other=0.0) if SPAN > N else tl.load(where)
    if ROLE != 0:
        # Keys stand at the query's component a, queries at the key's: the sign is that of e_query e_key.
        if ROLE == 1:
            of_query = a
            of_key = component
        else:
            of_query = component
            of_key = a
        negative = (_NEGATIVE >> (4 * of_query + of_key)) & 1
        if CONJUGATE:
            negative = negative ^ (of_key > 0).to(tl.int32)
        x = x * (1 - 2 * negative).to(x.dtype)[None, :]
    return x


@triton.jit
def _norm(x, gain_ptr, first, eps, NORM: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """Every quaternion of the tile divided by its root mean square and times its gain."""
    if NORM:
        rows: tl.constexpr = x.shape[0]
        f = tl.arange(0, P)
        gain = tl.load(gain_ptr + first + f, mask=f < N, other=0.0).to(tl.float32)
        cube = tl.reshape(x.to(tl.float32), (rows, 4, P))
        scale = tl.math.rsqrt(tl.sum(cube * cube, 1) * 0.25 + eps) * gain[None, :]
        y = tl.reshape(cube * scale[:, None, :], (rows, 4 * P)).to(x.dtype)
    else:
        y = x
    return y


@triton.jit
def _store_tile(
    base,
    x,
    rows,
    L,
    stride_l,
    stride_c,
    stride_n,
    c,
    SPAN: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
):
    w = tl.arange(0, W)
    f = w % SPAN
    where = base + rows.to(tl.int64)[:, None] * stride_l + ((w // SPAN + c) * stride_c + f * stride_n)[None, :]
    tl.store(where, x.to(base.dtype.element_ty), mask=(rows < L)[:, None] & (f < N)[None, :])


@triton.jit
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_gain_ptr,
    k_gain_ptr,
    stride_qb,
    stride_ql,
    stride_qc,
    stride_qn,
    stride_kb,
    stride_kl,
    stride_kc,
    stride_kn,
    stride_vb,
    stride_vl,
    stride_vc,
    stride_vn,
    stride_ob,
    stride_ol,
    stride_oc,
    stride_on,
    L,
    heads,
    qk_scale,
    eps,
    bucket,  # of lengths, for the tuner alone
    N: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    MAPS: tl.constexpr,
    CONJUGATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    D: tl.constexpr = 4 * P
    SPAN: tl.constexpr = P if MAPS == 1 else W
    ROLE: tl.constexpr = 0 if MAPS == 1 else 1
    batch = (tl.program_id(0) // heads).to(tl.int64)
    first = (tl.program_id(0) % heads) * N
    tile = tl.program_id(1)
    if CAUSAL:
        tile = tl.num_programs(1) - 1 - tile  # the longest first
    i = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    q_base = q_ptr + batch * stride_qb + first * stride_qn
    k_base = k_ptr + batch * stride_kb + first * stride_kn
    v_base = v_ptr + batch * stride_vb + first * stride_vn
    o_base = o_ptr + batch * stride_ob + first * stride_on

    q = _load_tile(q_base, i, L, stride_ql, stride_qc, stride_qn, 0, 0, False, P, N, D, True)
    q = _norm(q, q_gain_ptr, first, eps, NORM, N, P)
    if CAUSAL:
        whole = (tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
        end = tl.minimum(L, (tile + 1) * BLOCK_M)
    else:
        whole = L // BLOCK_N * BLOCK_N
        end = L
    for c in tl.static_range(MAPS):
        acc = tl.zeros((BLOCK_M, W), dtype=tl.float32)
        m = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        l = tl.zeros((BLOCK_M,), dtype=tl.float32)
        for span in tl.static_range(2):
            for start in range(0 if span == 0 else whole, whole if span == 0 else end, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                k = _load_tile(k_base, j, L, stride_kl, stride_kc, stride_kn, c, ROLE, CONJUGATE, P, N, D, span == 1)
                k = _norm(k, k_gain_ptr, first, eps, NORM, N, P)
                s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * qk_scale
                if span == 1:
                    seen = (j < L)[None, :]
                    if CAUSAL:
                        seen = seen & (j[None, :] <= i[:, None])
                    s = tl.where(seen, s, float("-inf"))
                # Finite from the first block on: every row sees key 0.
                m_new = tl.maximum(m, tl.max(s, 1))
                p = tl.exp2(s - m_new[:, None])
                shrink = tl.exp2(m - m_new)
                l = l * shrink + tl.sum(p, 1)
                v = _load_tile(v_base, j, L, stride_vl, stride_vc, stride_vn, c, 0, False, SPAN, N, W, span == 1)
                acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
                m = m_new
        _store_tile(o_base, acc / l[:, None], i, L, stride_ol, stride_oc, stride_on, c, SPAN, N, W)
        statistics = (tl.program_id(0).to(tl.int64) * MAPS + c) * L + i
        tl.store(lse_ptr + statistics, m + tl.log2(l), mask=i < L)


@triton.jit
def _delta_kernel(
    o_ptr,
    do_ptr,
    delta_ptr,
    stride_ob,
    stride_ol,
    stride_oc,
    stride_on,
    stride_gb,
    stride_gl,
    stride_gc,
    stride_gn,
    L,
    heads,
    N: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    MAPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    SPAN: tl.constexpr = P if MAPS == 1 else W
    batch = (tl.program_id(0) // heads).to(tl.int64)
    first = (tl.program_id(0) % heads) * N
    i = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_base = o_ptr + batch * stride_ob + first * stride_on
    g_base = do_ptr + batch * stride_gb + first * stride_gn
    for c in tl.static_range(MAPS):
        o = _load_tile(o_base, i, L, stride_ol, stride_oc, stride_on, c, 0, False, SPAN, N, W, True)
        g = _load_tile(g_base, i, L, stride_gl, stride_gc, stride_gn, c, 0, False, SPAN, N, W, True)
        statistics = (tl.program_id(0).to(tl.int64) * MAPS + c) * L + i
        tl.store(delta_ptr + statistics, tl.sum(o.to(tl.float32) * g.to(tl.float32), 1), mask=i < L)


@triton.jit
def _dk_dv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    q_gain_ptr,
    k_gain_ptr,
    stride_qb,
    stride_ql,
    stride_qc,
    stride_qn,
    stride_kb,
    stride_kl,
    stride_kc,
    stride_kn,
    stride_vb,
    stride_vl,
    stride_vc,
    stride_vn,
    stride_gb,
    stride_gl,
    stride_gc,
    stride_gn,
    stride_db,
    stride_dl,
    stride_dc,
    stride_dn,
    L,
    heads,
    scale,
    qk_scale,
    eps,
    bucket,
    N: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    MAPS: tl.constexpr,
    CONJUGATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    D: tl.constexpr = 4 * P
    SPAN: tl.constexpr = P if MAPS == 1 else W
    ROLE: tl.constexpr = 0 if MAPS == 1 else 2
    batch = (tl.program_id(0) // heads).to(tl.int64)
    first = (tl.program_id(0) % heads) * N
    j = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    q_base = q_ptr + batch * stride_qb + first * stride_qn
    k_base = k_ptr + batch * stride_kb + first * stride_kn
    v_base = v_ptr + batch * stride_vb + first * stride_vn
    g_base = do_ptr + batch * stride_gb + first * stride_gn

    k = _load_tile(k_base, j, L, stride_kl, stride_kc, stride_kn, 0, 0, False, P, N, D, True)
    k = _norm(k, k_gain_ptr, first, eps, NORM, N, P)
    # Tiles of queries from `low`: a mask up to `inner`, where the diagonal is, and from `outer`, where the end is.
    low = tl.program_id(1) * 0
    inner = low
    if CAUSAL:
        low = tl.program_id(1) * BLOCK_N // BLOCK_M * BLOCK_M
        inner = low + tl.cdiv((tl.program_id(1) + 1) * BLOCK_N - 1 - low, BLOCK_M) * BLOCK_M
    outer = tl.maximum(inner, L // BLOCK_M * BLOCK_M)
    dk = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    for c in tl.static_range(MAPS):
        v = _load_tile(v_base, j, L, stride_vl, stride_vc, stride_vn, c, 0, False, SPAN, N, W, True)
        dv = tl.zeros((BLOCK_N, W), dtype=tl.float32)
        statistics = (tl.program_id(0).to(tl.int64) * MAPS + c) * L
        for span in tl.static_range(3):
            begin = low if span == 0 else (inner if span == 1 else outer)
            end = tl.minimum(inner, L) if span == 0 else (outer if span == 1 else L)
            for start in range(begin, end, BLOCK_M):
                i = start + tl.arange(0, BLOCK_M)
                q = _load_tile(q_base, i, L, stride_ql, stride_qc, stride_qn, c, ROLE, CONJUGATE, P, N, D, span != 1)
                q = _norm(q, q_gain_ptr, first, eps, NORM, N, P)
                g = _load_tile(g_base, i, L, stride_gl, stride_gc, stride_gn, c, 0, False, SPAN, N, W, span != 1)
                if span == 1:
                    lse = tl.load(lse_ptr + statistics + i)
                    delta = tl.load(delta_ptr + statistics + i)
                else:
                    lse = tl.load(lse_ptr + statistics + i, mask=i < L, other=0.0)
                    delta = tl.load(delta_ptr + statistics + i, mask=i < L, other=0.0)
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * qk_scale
                p = tl.exp2(s - lse[None, :])
                if span != 1:
                    seen = (i < L)[None, :]
                    if CAUSAL:
                        seen = seen & (j[:, None] <= i[None, :])
                    p = tl.where(seen, p, 0.0)
                dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
                dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
                ds = p * (dp - delta[None, :])
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        dv_base = dv_ptr + batch * stride_db + first * stride_dn
        _store_tile(dv_base, dv, j, L, stride_dl, stride_dc, stride_dn, c, SPAN, N, W)
    dk_base = dk_ptr + batch * stride_db + first * stride_dn
    _store_tile(dk_base, dk * scale, j, L, stride_dl, stride_dc, stride_dn, 0, P, N, D)


@triton.jit
def _dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    q_gain_ptr,
    k_gain_ptr,
    stride_qb,
    stride_ql,
    stride_qc,
    stride_qn,
    stride_kb,
    stride_kl,
    stride_kc,
    stride_kn,
    stride_vb,
    stride_vl,
    stride_vc,
    stride_vn,
    stride_gb,
    stride_gl,
    stride_gc,
    stride_gn,
    stride_db,
    stride_dl,
    stride_dc,
    stride_dn,
    L,
    heads,
    scale,
    qk_scale,
    eps,
    bucket,
    N: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    MAPS: tl.constexpr,
    CONJUGATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    D: tl.constexpr = 4 * P
    SPAN: tl.constexpr = P if MAPS == 1 else W
    ROLE: tl.constexpr = 0 if MAPS == 1 else 1
    batch = (tl.program_id(0) // heads).to(tl.int64)
    first = (tl.program_id(0) % heads) * N
    tile = tl.program_id(1)
    if CAUSAL:
        tile = tl.num_programs(1) - 1 - tile
    i = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    q_base = q_ptr + batch * stride_qb + first * stride_qn
    k_base = k_ptr + batch * stride_kb + first * stride_kn
    v_base = v_ptr + batch * stride_vb + first * stride_vn
    g_base = do_ptr + batch * stride_gb + first * stride_gn

    q = _load_tile(q_base, i, L, stride_ql, stride_qc, stride_qn, 0, 0, False, P, N, D, True)
    q = _norm(q, q_gain_ptr, first, eps, NORM, N, P)
    if CAUSAL:
        whole = (tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
        end = tl.minimum(L, (tile + 1) * BLOCK_M)
    else:
        whole = L // BLOCK_N * BLOCK_N
        end = L
    dq = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for c in tl.static_range(MAPS):
        g = _load_tile(g_base, i, L, stride_gl, stride_gc, stride_gn, c, 0, False, SPAN, N, W, True)
        statistics = (tl.program_id(0).to(tl.int64) * MAPS + c) * L + i
        lse = tl.load(lse_ptr + statistics, mask=i < L, other=0.0)
        delta = tl.load(delta_ptr + statistics, mask=i < L, other=0.0)
        for span in tl.static_range(2):
            for start in range(0 if span == 0 else whole, whole if span == 0 else end, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                k = _load_tile(k_base, j, L, stride_kl, stride_kc, stride_kn, c, ROLE, CONJUGATE, P, N, D, span == 1)
                k = _norm(k, k_gain_ptr, first, eps, NORM, N, P)
                v = _load_tile(v_base, j, L, stride_vl, stride_vc, stride_vn, c, 0, False, SPAN, N, W, span == 1)
                s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * qk_scale
                p = tl.exp2(s - lse[:, None])
                if span == 1:
                    seen = (j < L)[None, :]
                    if CAUSAL:
                        seen = seen & (j[None, :] <= i[:, None])
                    p = tl.where(seen, p, 0.0)
                dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
                ds = p * (dp - delta[:, None])
                dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    dq_base = dq_ptr + batch * stride_db + first * stride_dn
    _store_tile(dq_base, dq * scale, i, L, stride_dl, stride_dc, stride_dn, 0, P, N, D)


# --- tuning and launching -------------------------------------------------------------------------------------------

_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m in (32, 64, 128)
    for n in (32, 64, 128)
    for warps in (2, 4, 8)
    for stages in (2, 3, 4)
]
ACCUMULATORS = 2 * 128 * 128  # float32 numbers that fit into a program's registers beside the rest


def _pruner(walks_over_queries: bool) -> Any:
    """Keeps tilings that fit: 1,024 to 2,048 scores per warp, accumulators in registers, the walked tiles of all stages in shared
    memory; at least the smallest."""

    def footprint(config: triton.Config, columns: int, size: int) -> int:
        m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        walked, kept = (m, n) if walks_over_queries else (n, m)
        return (walked * config.num_stages + kept) * columns * size

    def prune(configs: list[triton.Config], named_args: dict[str, Any], **kwargs: Any) -> list[triton.Config]:
        q, columns = named_args["q_ptr"], 4 * kwargs["P"] + kwargs["W"]
        limit = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
        kept = []
        for config in configs:
            m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
            rows = n if walks_over_queries else m
            if (
                1024 <= m * n // config.num_warps <= 2048
                and rows * columns <= ACCUMULATORS
                and footprint(config, columns, q.element_size()) <= limit
            ):
                kept.append(config)
        return kept or [min(configs, key=lambda config: footprint(config, columns, q.element_size()))]

    return prune


def _tuned(kernel: Any, walks_over_queries: bool = False) -> Any:
    return triton.autotune(
        configs=_CONFIGS,
        key=["bucket", "N", "MAPS", "CAUSAL", "NORM"],
        prune_configs_by={"early_config_prune": _pruner(walks_over_queries)},
    )(kernel)


_forward_tuned = _tuned(_forward_kernel)
_dq_tuned = _tuned(_dq_kernel)
_dk_dv_tuned = _tuned(_dk_dv_kernel, walks_over_queries=True)


def interpreted() -> bool:
    """Whether this module's kernels were made for Triton's interpreter."""
    return not isinstance(_forward_kernel, triton.runtime.JITFunction)


def _launch(kernel: Any, tuned: Any, grid: Any, args: tuple, constants: dict, tiles: tuple[int, int] | None) -> None:
    if tiles is None and not interpreted():
        tuned[grid](*args, **constants)
    else:
        block_m, block_n = tiles or INTERPRETED_TILES
        kernel[grid](*args, **constants, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4, num_stages=2)


def _on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _norm_backward(x: Tensor, gain: Tensor, eps: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x r gain, r = 1 / sqrt(mean_c x_c^2 + eps), with respect to x and gain, for `grad` in float32."""
    x, wide = x.float(), gain.float()
    r = torch.rsqrt(x.square().mean(-2, keepdim=True) + eps)
    scaled = grad * wide
    dx = r * scaled - x * (r**3 * (scaled * x).mean(-2, keepdim=True))
    return dx, (grad * x * r).sum((0, 1, 2)).to(gain.dtype)


class _Attention(torch.autograd.Function):
    """The fused kernels on [B, L, 4, n]; gains are both given or both None."""

    @staticmethod
    def forward(ctx, q, k, v, q_gain, k_gain, heads, component, conjugate, causal, eps, tiles):
        batch, length, _, n = q.shape
        h = n // heads
        padded = max(4, triton.next_power_of_2(h))
        maps = 4 if component else 1
        exact = q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        ctx.constants = {
            "N": h,
            "P": padded,
            "W": max(16, padded) if component else 4 * padded,
            "MAPS": maps,
            "CONJUGATE": conjugate,
            "CAUSAL": causal,
            "NORM": q_gain is not None,
            "PRECISION": "ieee" if exact else "tf32",
        }
        ctx.scale = 1 / math.sqrt(h if component else 4 * h)
        ctx.heads, ctx.eps, ctx.tiles = heads, eps, tiles
        bucket = (max(length, 2) - 1).bit_length()
        ctx.numbers = (ctx.scale * LOG2E, eps, bucket)
        out = torch.empty((batch, length, 4, n), dtype=q.dtype, device=q.device)
        lse = torch.empty((batch * heads, maps, length), dtype=torch.float32, device=q.device)
        gains = (None, None) if q_gain is None else (q_gain.contiguous(), k_gain.contiguous())
        ctx.save_for_backward(q, k, v, out, lse, *gains)
        with _on_device(q):
            _launch(
                _forward_kernel,
                _forward_tuned,
                lambda meta: (batch * heads, triton.cdiv(length, meta["BLOCK_M"])),
                (
                    *(q, k, v, out, lse, *gains),
                    *(*q.stride(), *k.stride(), *v.stride(), *out.stride()),
                    *(length, heads, *ctx.numbers),
                ),
                ctx.constants,
                tiles,
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, lse, q_gain, k_gain = ctx.saved_tensors
        batch, length = q.shape[:2]
        normed = q_gain is not None
        dq, dk = (torch.empty(out.shape, dtype=torch.float32 if normed else q.dtype, device=q.device) for _ in range(2))
        dv, delta = torch.empty_like(out), torch.empty_like(lse)
        strides = (*q.stride(), *k.stride(), *v.stride(), *grad.stride(), *dv.stride())
        numbers = (length, ctx.heads, ctx.scale, *ctx.numbers)
        sizes = {name: ctx.constants[name] for name in ("N", "P", "W", "MAPS")}
        with _on_device(q):
            block = 64
            _delta_kernel[(batch * ctx.heads, triton.cdiv(length, block))](
                *(out, grad, delta, *out.stride(), *grad.stride(), length, ctx.heads), **sizes, BLOCK_M=block
            )
            _launch(
                _dk_dv_kernel,
                _dk_dv_tuned,
                lambda meta: (batch * ctx.heads, triton.cdiv(length, meta["BLOCK_N"])),
                (q, k, v, grad, lse, delta, dk, dv, q_gain, k_gain, *strides, *numbers),
                ctx.constants,
                ctx.tiles,
            )
            _launch(
                _dq_kernel,
                _dq_tuned,
                lambda meta: (batch * ctx.heads, triton.cdiv(length, meta["BLOCK_M"])),
                (q, k, v, grad, lse, delta, dq, q_gain, k_gain, *strides, *numbers),
                ctx.constants,
                ctx.tiles,
            )
        gains = (None, None)
        if normed:
            (dq, dq_gain), (dk, dk_gain) = (
                _norm_backward(*given) for given in ((q, q_gain, ctx.eps, dq), (k, k_gain, ctx.eps, dk))
            )
            dq, dk, gains = dq.to(q.dtype), dk.to(k.dtype), (dq_gain, dk_gain)
        return dq, dk, dv, *gains, None, None, None, None, None, None


def choose_backend(backend: str | None, q: Tensor, heads: int) -> str:
    """ "triton" or "reference" for q [B, L, 4, n]; by default Triton on CUDA where the kernels take the input, else the reference.

    Raises ValueError for other names and, where Triton is asked for, for heads too wide, TypeError for dtypes that the kernels
    do not know, RuntimeError for the CPU without the interpreter."""
    if backend not in (None, "triton", "reference"):
        raise ValueError(f"backend must be 'triton', 'reference' or None, got {backend!r}")
    h = q.shape[3] // heads
    if backend is None:
        return "triton" if q.is_cuda and q.dtype in DTYPES and h <= WIDEST else "reference"
    if backend == "reference":
        return "reference"
    if not q.is_cuda and not interpreted():
        raise RuntimeError(
            f"the Triton kernels need CUDA tensors, got {q.device}; set TRITON_INTERPRET=1 before import to run them on the CPU"
        )
    if q.dtype not in DTYPES:
        raise TypeError(
            f"the Triton kernels take float32, float16 and bfloat16, got {q.dtype}; backend='reference' takes others"
        )
    if q.dtype == torch.bfloat16 and interpreted():
        raise TypeError("Triton's interpreter cannot multiply bfloat16; take float32 or float16, or backend='reference'")
    if h > WIDEST:
        raise ValueError(f"the Triton kernels take heads of at most {WIDEST} quaternion features, got {h}")
    return "triton"


def _attend(q, k, v, *, heads, score, conjugate, causal, q_gain, k_gain, eps, backend, tiles) -> Tensor:
    _check(q, k, v, heads, score, q_gain, k_gain, eps)
    if tiles is not None and (len(tiles) != 2 or any(size < 16 or size & (size - 1) for size in tiles)):
        raise ValueError(f"tiles must be two powers of two from 16, (BLOCK_M, BLOCK_N), got {tiles}")
    if choose_backend(backend, q, heads) == "reference" or q.numel() == 0:
        return quaternion_attention_reference(
            q, k, v, heads=heads, score=score, conjugate=conjugate, causal=causal, q_gain=q_gain, k_gain=k_gain, eps=eps
        )
    return _Attention.apply(q, k, v, q_gain, k_gain, heads, score == "component", conjugate, causal, eps, tiles)


def shared_score_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads: int,
    causal: bool = False,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
    eps: float = 1e-6,
    backend: str | None = None,
    tiles: tuple[int, int] | None = None,
) -> Tensor:
    """out_c = softmax(Re(q conj(k)) / sqrt(4 h)) v_c per head of h = n / heads quaternion features. Differentiable once.

    Parameters
    ----------
    q, k, v : [B, L, 4, n] of one dtype, any strides. The kernels take float32 (products as `torch.set_float32_matmul_precision`
        says), float16 and bfloat16, and h up to 64; the reference also others.
    heads : divides n; a head owns the quaternion features head h .. head h + h - 1.
    causal : query i sees keys up to i alone (default False).
    q_gain, k_gain : [n], gains of a quaternion RMS norm of queries and keys with `eps`; both or neither.
    backend : "triton", "reference", or None: Triton on CUDA where the kernels take the input, else the reference.
    tiles : (BLOCK_M, BLOCK_N) of the kernels instead of tuned ones.

    Returns
    -------
    [B, L, 4, n] of q's dtype.

    Raises
    ------
    TypeError : dtypes that differ or that the backend does not know.
    ValueError : shapes that do not fit, n no multiple of heads, one gain without the other, eps <= 0, heads too wide.
    RuntimeError : the Triton backend on the CPU without TRITON_INTERPRET=1.
    """
    options = {"heads": heads, "causal": causal, "q_gain": q_gain, "k_gain": k_gain, "eps": eps}
    return _attend(q, k, v, score="shared", conjugate=False, backend=backend, tiles=tiles, **options)


def component_score_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads: int,
    causal: bool = False,
    conjugate: bool = False,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
    eps: float = 1e-6,
    backend: str | None = None,
    tiles: tuple[int, int] | None = None,
) -> Tensor:
    """out_c = softmax((q k)_c / sqrt(h)) v_c, four maps per head: what the shared score replaces.

    conjugate : of q conj(k) instead of q k (default False). Everything else as for `shared_score_attention`."""
    options = {"heads": heads, "causal": causal, "q_gain": q_gain, "k_gain": k_gain, "eps": eps}
    return _attend(q, k, v, score="component", conjugate=conjugate, backend=backend, tiles=tiles, **options)


# --- what it costs, counted -----------------------------------------------------------------------------------------


def attention_pairs(length: int, causal: bool = False) -> int:
    """Pairs of query and key of one head that see each other."""
    return length * (length + 1) // 2 if causal else length * length


def flops(
    batch: int, heads: int, length: int, h: int, *, score: str = "shared", causal: bool = False, backward: bool = False
) -> int:
    """Floating point operations of the products, 2 per multiplication; backward counts each of the five products once."""
    maps = {"shared": 1, "component": 4}[score]
    scores, values = maps * 2 * 4 * h, 2 * 4 * h  # per pair
    per_pair = 3 * scores + 2 * values if backward else scores + values
    return batch * heads * attention_pairs(length, causal) * per_pair


def exponentials(batch: int, heads: int, length: int, *, score: str = "shared", causal: bool = False) -> int:
    """Exponentials of the softmaxes of a forward pass."""
    return {"shared": 1, "component": 4}[score] * batch * heads * attention_pairs(length, causal)


def bytes_moved(batch: int, length: int, n: int, element_size: int, *, backward: bool = False) -> int:
    """Bytes of q, k, v and out, backward also of the four gradients, each moved once: what memory must at least carry."""
    return batch * length * 4 * n * element_size * (8 if backward else 4)
