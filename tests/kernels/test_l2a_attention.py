"""Token-gathered, sliding window and decode attention, kernels and references, against float64 attention of torch.

What is expected comes from `scaled_dot_product_attention` with an explicit mask and repeated key heads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from triton.backends import backends

from kernels import l2a_attention as module
from kernels.l2a_attention import (
    ActiveIndex,
    build_index,
    bytes_moved,
    flops,
    gathered_pairs,
    index_of_positions,
    sliding_window_attention,
    token_gathered_attention,
    window_pairs,
)
from kernels.l2a_decode import decode_attention
from kernels.reference_attention import masked_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {"atol": 1e-4, "rtol": 0}
both = pytest.mark.parametrize("backend", ["reference", "triton"])


def tensors(batch, length, heads, group, dim, seed=0, dtype=torch.float32):
    """q, k, v and a gradient for the result."""
    generator = torch.Generator().manual_seed(seed)
    counts = (heads, heads // group, heads // group, heads)
    return [torch.randn(batch, length, h, dim, generator=generator).to(DEVICE, dtype) for h in counts]


def mask_of(batch, length, share, seed=1):
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < share).to(DEVICE)


def causal(length, window=None):
    distance = torch.arange(length, device=DEVICE)[:, None] - torch.arange(length, device=DEVICE)
    return (distance >= 0) & (distance < (window or length + 1))


def wanted(q, k, v, allowed, active=None, scale=None):
    """float64, [B, T, H, D]; rows of inactive tokens are zero."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double().transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    out = scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale).transpose(1, 2)
    return out if active is None else out * active[:, :, None, None]


def with_gradients(function, q, k, v, gradient):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = function(*leaves)
    out.backward(gradient.to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves)]


def assert_same(found, expected, **tolerance):
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), **(tolerance or TOLERANCE), msg=lambda m, n=name: f"{n}: {m}")


def single(length, *positions):
    active = torch.zeros(1, length, dtype=torch.bool)
    active[0, list(positions)] = True
    return active


GATHERED = {
    "quarter": ((1, 32, 2, 1, 16), mask_of(1, 32, 0.25)),
    "two heads per key head": ((2, 50, 4, 2, 16), mask_of(2, 50, 0.3)),
    "none": ((2, 33, 4, 4, 32), mask_of(2, 33, 0.0)),
    "all": ((1, 40, 2, 2, 16), mask_of(1, 40, 1.0)),
    "one token": ((1, 1, 2, 1, 16), single(1, 0)),
    "first alone": ((1, 17, 2, 2, 16), single(17, 0)),
    "last alone": ((1, 17, 2, 2, 16), single(17, 16)),
    "an empty sequence": ((3, 20, 3, 3, 16), torch.stack([mask_of(1, 20, s)[0] for s in (0.6, 0.0, 0.4)])),
    "late ones": ((1, 80, 6, 3, 16), single(80, 63, 64, 65, 79)),
}


@both
@pytest.mark.parametrize("name", GATHERED)
def test_gathered_equals_masked_dense_with_all_gradients(backend, name):
    sizes, active = GATHERED[name]
    active = active.to(DEVICE)
    given = tensors(*sizes)
    found = with_gradients(lambda *x: token_gathered_attention(*x, active, backend=backend), *given)
    expected = with_gradients(lambda *x: wanted(*x, causal(sizes[1]), active), *given)
    assert_same(found, expected)
    assert found[0].dtype == torch.float32 and not found[0][~active].any() and not found[1][~active].any()


@both
@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ((1, 50, 2, 1, 16), 12),
        ((2, 64, 4, 2, 16), 16),
        ((1, 45, 3, 3, 16), 1),
        ((1, 70, 2, 2, 16), 33),
        ((1, 20, 2, 2, 16), 20),
    ],
)
def test_window_equals_masked_dense_with_all_gradients(backend, sizes, window):
    given = tensors(*sizes)
    found = with_gradients(lambda *x: sliding_window_attention(*x, window, backend=backend), *given)
    assert_same(found, with_gradients(lambda *x: wanted(*x, causal(sizes[1], window)), *given))


@pytest.mark.parametrize("tiles", [(16, 32), (32, 16)])
def test_tiles_that_differ(tiles):
    """Tiles of rows and of keys begin and end at different tokens; a group of three straddles them."""
    given, active = tensors(1, 55, 3, 3, 16), mask_of(1, 55, 0.5).to(DEVICE)
    found = with_gradients(lambda *x: token_gathered_attention(*x, active, backend="triton", tiles=tiles), *given)
    assert_same(found, with_gradients(lambda *x: wanted(*x, causal(55), active), *given))
    for window in (3, 40):
        found = with_gradients(lambda *x, w=window: sliding_window_attention(*x, w, backend="triton", tiles=tiles), *given)
        assert_same(found, with_gradients(lambda *x, w=window: wanted(*x, causal(55, w)), *given))


@both
def test_all_active_and_wide_windows_are_causal_attention(backend):
    given = tensors(1, 37, 2, 1, 16)

    def dense(q, k, v):
        q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    expected = with_gradients(dense, *given)
    everything = torch.ones(1, 37, dtype=torch.bool, device=DEVICE)
    assert_same(with_gradients(lambda *x: token_gathered_attention(*x, everything, backend=backend), *given), expected)
    for window in (37, 38, 10**9):
        found = with_gradients(lambda *x, w=window: sliding_window_attention(*x, w, backend=backend), *given)
        assert_same(found, expected)


@both
def test_scale_strides_and_numbers_as_masks(backend):
    """Transposed, sliced and expanded views; 0 and 1 for bool; a scale of one's own."""
    q, k, v, gradient = tensors(2, 21, 2, 1, 16)
    active = mask_of(2, 21, 0.5)
    wide = torch.zeros(2, 2, 21, 32, device=DEVICE)
    wide[..., ::2] = q.transpose(1, 2)
    views = (wide[..., ::2].transpose(1, 2), k.transpose(0, 1).contiguous().transpose(0, 1), v[:, :1].expand(-1, 21, -1, -1))
    assert not any(x.is_contiguous() for x in views)
    once = gradient[:, :1, :1].expand_as(gradient)
    found = with_gradients(lambda *x: token_gathered_attention(*x, active.int(), scale=0.7, backend=backend), *views, once)
    assert_same(found, with_gradients(lambda *x: wanted(*x, causal(21), active, scale=0.7), *views, once))
    found = with_gradients(lambda *x: sliding_window_attention(*x, 5, scale=0.7, backend=backend), *views, once)
    assert_same(found, with_gradients(lambda *x: wanted(*x, causal(21, 5), scale=0.7), *views, once))


@both
def test_half_precision_is_accumulated_in_float32(backend):
    given = [x.half() for x in tensors(1, 40, 2, 2, 16)]
    active = mask_of(1, 40, 0.5)
    found = with_gradients(lambda *x: token_gathered_attention(*x, active, backend=backend), *given)
    assert all(x.dtype == torch.float16 for x in found)
    assert_same(found, with_gradients(lambda *x: wanted(*x, causal(40), active), *given), atol=4e-3, rtol=4e-3)


@both
def test_large_scores_do_not_overflow(backend):
    q, k, v, gradient = tensors(1, 24, 2, 2, 16)
    given = (100 * q, 100 * k, v, gradient)
    active = mask_of(1, 24, 0.7)
    found = with_gradients(lambda *x: token_gathered_attention(*x, active, backend=backend), *given)
    expected = with_gradients(lambda *x: wanted(*x, causal(24), active), *given)
    torch.testing.assert_close(found[0].double(), expected[0], atol=2e-2, rtol=0)
    assert all(torch.isfinite(x).all() for x in found)


@both
def test_the_future_changes_nothing(backend):
    q, k, v, _ = tensors(1, 40, 1, 1, 16)
    active = mask_of(1, 40, 0.6)
    for now in (0, 15, 16, 30):
        later = [x.clone() for x in (q, k, v)]
        for x in later:
            x[:, now + 1 :] += 3.0
        for function in (
            lambda *x: token_gathered_attention(*x, active, backend=backend),
            lambda *x: sliding_window_attention(*x, 9, backend=backend),
        ):
            assert torch.equal(function(*later)[:, : now + 1], function(q, k, v)[:, : now + 1])


@both
def test_what_lies_before_the_window_changes_nothing(backend):
    q, k, v, _ = tensors(1, 60, 2, 1, 16)
    older = [k.clone(), v.clone()]
    for x in older:
        x[:, :20] = 50.0
    a = sliding_window_attention(q, k, v, 7, backend=backend)
    b = sliding_window_attention(q, *older, 7, backend=backend)
    assert torch.equal(a[:, 26:], b[:, 26:]) and not torch.equal(a[:, 25], b[:, 25])


@both
def test_skipping_is_per_token(backend):
    """Another token's decision changes its own row alone; gradients that arrive at skipped rows are not read."""
    q, k, v, gradient = tensors(2, 30, 4, 2, 16)
    active = mask_of(2, 30, 0.4)
    flipped = active.clone()
    flipped[1, 11] = ~flipped[1, 11]
    a, b = (token_gathered_attention(q, k, v, mask, backend=backend) for mask in (active, flipped))
    changed = (a != b).any(-1).any(-1)
    assert changed.nonzero().tolist() == [[1, 11]]
    poisoned = torch.where(active[:, :, None, None], gradient, torch.nan)
    function = lambda *x: token_gathered_attention(*x, active, backend=backend)  # noqa: E731
    clean = with_gradients(function, q, k, v, torch.nan_to_num(poisoned))
    for x, y in zip(with_gradients(function, q, k, v, poisoned), clean, strict=True):
        assert torch.equal(x, y)


@both
def test_a_key_heads_gradient_is_the_sum_over_its_group(backend):
    q, k, v, gradient = tensors(1, 30, 6, 3, 16)
    active = mask_of(1, 30, 0.5)
    function = lambda *x: token_gathered_attention(*x, active, backend=backend)  # noqa: E731
    grouped = with_gradients(function, q, k, v, gradient)
    repeated = with_gradients(function, q, k.repeat_interleave(3, 2), v.repeat_interleave(3, 2), gradient)
    for x, y in zip(grouped[2:], repeated[2:], strict=True):
        torch.testing.assert_close(x, y.unflatten(2, (2, 3)).sum(3), atol=1e-5, rtol=0)


@both
@pytest.mark.parametrize("sizes", [(0, 5, 2, 1, 16), (2, 0, 2, 1, 16)])
def test_nothing_to_do(backend, sizes):
    given = tensors(*sizes)
    for function in (
        lambda *x: token_gathered_attention(*x, torch.ones(sizes[:2], dtype=torch.bool, device=DEVICE), backend=backend),
        lambda *x: sliding_window_attention(*x, 3, backend=backend),
    ):
        found = with_gradients(function, *given)
        assert [list(x.shape) for x in found] == [list(given[i].shape) for i in (0, 0, 1, 2)]


def test_twice_the_same_bits():
    given, active = tensors(1, 40, 2, 1, 16), mask_of(1, 40, 0.5)
    first, second = (
        with_gradients(lambda *x: token_gathered_attention(*x, active, backend="triton"), *given) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_gradcheck_of_the_references():
    q, k, v, _ = tensors(2, 8, 2, 2, 3, dtype=torch.float64)
    given = [x.requires_grad_() for x in (q, k, v)]
    active = mask_of(2, 8, 0.5)
    assert torch.autograd.gradcheck(lambda *x: token_gathered_attention(*x, active, backend="reference"), given)
    assert torch.autograd.gradcheck(lambda *x: sliding_window_attention(*x, 3, backend="reference"), given)
    seen = causal(8) & mask_of(8, 8, 0.5)  # some rows see nothing
    assert torch.autograd.gradcheck(lambda *x: masked_attention(*x, seen), given)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_property_compact_and_scattered_is_masked_dense(data):
    """Random masks and lengths through the reference, every few of them through the kernels."""
    batch, length, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 45)), data.draw(st.integers(1, 3))
    bits = data.draw(st.lists(st.booleans(), min_size=batch * length, max_size=batch * length))
    active = torch.tensor(bits, device=DEVICE).view(batch, length)
    q, k, v, _ = tensors(batch, length, group, group, 16, seed=length)
    expected = wanted(q, k, v, causal(length), active)
    for backend in ("reference", "triton") if length % 8 == 0 else ("reference",):
        found = token_gathered_attention(q, k, v, active, backend=backend)
        torch.testing.assert_close(found.double(), expected, **TOLERANCE)
    window = data.draw(st.integers(1, 50))
    found = sliding_window_attention(q, k, v, window, backend="reference")
    torch.testing.assert_close(found.double(), wanted(q, k, v, causal(length, window)), **TOLERANCE)


class Largest(TorchDispatchMode):
    """The largest number of elements of any tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


def test_the_window_reference_needs_memory_for_t_times_w_alone():
    given = tensors(1, 3000, 2, 1, 8)[:3]
    with Largest() as largest:
        sliding_window_attention(*given, 20, backend="reference")
    assert largest.numel <= 2 * 2 * 20 * 3020  # heads, twice the window, padded length; T x T would be 9,000,000


def test_the_reference_computes_active_rows_alone():
    q, k, v, _ = tensors(2, 300, 2, 1, 8)
    active = torch.zeros(2, 300, dtype=torch.bool, device=DEVICE)
    active[0, [5, 99, 199]] = True
    with FlopCounterMode(display=False) as counter:
        token_gathered_attention(q, k, v, active, backend="reference")
    assert counter.get_total_flops() == flops(3 * 200, 2, 8)  # three rows, keys up to the last of them


def test_counts_equal_brute_force():
    active = mask_of(3, 41, 0.4)
    seen = causal(41)[None] & active[:, :, None]
    assert gathered_pairs(active) == int(seen.sum())
    for window in (1, 7, 41, 60):
        assert window_pairs(2, 41, window) == 2 * int(causal(41, window).sum())
    q, k, v, _ = tensors(1, 41, 4, 2, 16)
    with FlopCounterMode(display=False) as counter:
        (q.transpose(1, 2) @ k.repeat_interleave(2, 2).transpose(1, 2).mT) @ v.repeat_interleave(2, 2).transpose(1, 2)
    assert flops(41 * 41, 4, 16) == counter.get_total_flops()
    assert flops(100, 4, 16, backward=True) == 2.5 * flops(100, 4, 16)


def test_bytes():
    """32,768 tokens in bfloat16, all active: by hand."""
    tokens, pairs = 2**15, window_pairs(1, 2**15, 2**15)
    once = 2 * (2 * tokens * 32 * 128 + 2 * tokens * 8 * 128) + 4 * tokens * 32 + 4 * tokens
    assert bytes_moved(pairs, tokens, tokens, 32, 8, 128, 2) == once
    tiled = bytes_moved(pairs, tokens, tokens, 32, 8, 128, 2, tiles=(128, 64))
    # BM operations per byte of keys and values
    assert flops(pairs, 32, 128) / (tiled - once + 2 * 2 * tokens * 8 * 128) == pytest.approx(128, rel=1e-6)
    assert bytes_moved(pairs, tokens, tokens, 32, 8, 128, 2, backward=True) > 2 * once
    assert bytes_moved(pairs, tokens, tokens, 32, 8, 128, 2, backward=True, tiles=(64, 64)) > tiled


def test_index():
    active = torch.stack([mask_of(1, 37, s)[0] for s in (0.5, 0.0, 1.0)])
    index = build_index(active).check()
    lists = [row.nonzero().flatten() for row in active]
    assert index.cu.tolist() == list(itertools.accumulate([0, *(len(x) for x in lists)]))
    assert index.idx[: index.cu[-1]].tolist() == torch.cat(lists).tolist()
    assert torch.equal(index.mask(), active) and index.length == 37
    assert all(x.dtype == torch.int32 for x in (index.idx, index.cu, index.before))
    for block in (1, 16, 50):
        starts = torch.arange(0, 37, block, device=DEVICE)
        searched = torch.stack([torch.searchsorted(x, starts) for x in lists])
        assert torch.equal(index.first(block).long(), searched)
    again = index_of_positions(torch.cat(lists), index.cu, 37)
    assert torch.equal(again.mask(), active)
    q, k, v, _ = tensors(3, 37, 1, 1, 16)
    for backend in ("reference", "triton"):
        out = token_gathered_attention(q, k, v, again, backend=backend, debug=True)
        assert torch.equal(out, token_gathered_attention(q, k, v, active, backend=backend))


def test_a_bad_index_is_named():
    vector = lambda *x: torch.tensor(x, device=DEVICE)  # noqa: E731
    cu = vector(0, 2, 4)
    for idx, says in (
        (vector(1, 4, 3, 2), "idx of sequence 1 must be strictly ascending, got \\[3, 2\\]"),
        (vector(1, 1, 2, 3), "idx of sequence 0 must be strictly ascending"),
        (vector(1, 8, 2, 3), "idx of sequence 0 must lie in \\[0, 8\\)"),
        (vector(-1, 4, 2, 3), "idx of sequence 0 must lie in \\[0, 8\\)"),
        (vector(1, 4), "cu must rise from 0 to at most the number of positions, 2"),
    ):
        with pytest.raises(ValueError, match=says):
            index_of_positions(idx, cu, 8)
    with pytest.raises(TypeError, match="idx must be a vector of integers"):
        index_of_positions(torch.ones(4), cu, 8)
    with pytest.raises(ValueError, match="got none"):
        index_of_positions(vector(1, 2), cu[:0], 8)
    good = index_of_positions(vector(1, 4, 2, 3), cu, 8)
    mixed = ActiveIndex(vector(1, 4, 2, 5).int(), good.cu, good.before)
    q, k, v, _ = tensors(2, 8, 1, 1, 16)
    with pytest.raises(ValueError, match="before must count"):
        token_gathered_attention(q, k, v, mixed, debug=True)
    with pytest.raises(ValueError, match=r"index must be of \[2, 7\] tokens .* got \[2, 8\]"):
        token_gathered_attention(q[:, :7], k[:, :7], v[:, :7], good)
    with pytest.raises(ValueError, match="block must be at least 1"):
        good.first(0)
    with pytest.raises(TypeError, match=r"shape \[batch, time\], got \[4\]"):
        build_index(torch.ones(4, dtype=torch.bool))


@both
def test_bad_input_is_named(backend):
    q, k, v, _ = tensors(2, 8, 4, 2, 16)
    active = mask_of(2, 8, 0.5)

    def call(q=q, k=k, v=v, active=active, **options):
        token_gathered_attention(q, k, v, active, **({"backend": backend} | options))

    for error, says, changes in (
        (ValueError, "multiple of that of key heads, got 3 and 2", {"q": q[:, :, :3]}),
        (ValueError, "k and v must have the same shape", {"v": v[:, :4]}),
        (ValueError, "agree in batch, width and time", {"q": q[:, :5]}),
        (ValueError, r"q must have shape \[batch, time, heads, width\]", {"q": q[0]}),
        (TypeError, "share one floating point dtype", {"k": k.double()}),
        (TypeError, "share one floating point dtype", {"q": q.long()}),
        (TypeError, r"active must be a tensor of shape \[2, 8\]", {"active": active[:, :7]}),
        (TypeError, "active must be a tensor of shape .* got list", {"active": active.tolist()}),
        (TypeError, "only 0 and 1, got torch.int64 with other values", {"active": active.long() + 1}),
        (ValueError, "scale must be positive and finite, got 0", {"scale": 0.0}),
        (ValueError, "backend must be 'triton', 'reference' or None, got 'sdpa'", {"backend": "sdpa"}),
        (ValueError, r"tiles must be two powers of two from 16, .* got \(16, 24\)", {"tiles": (16, 24)}),
    ):
        with pytest.raises(error, match=says):
            call(**changes)
    with pytest.raises(ValueError, match="window must be at least 1, the query's own token, got 0"):
        sliding_window_attention(q, k, v, 0, backend=backend)
    with pytest.raises(TypeError, match=r"window must be a whole number of tokens.*got 2\.0"):
        sliding_window_attention(q, k, v, 2.0, backend=backend)


def test_what_the_kernels_do_not_take(monkeypatch):
    q, k, v, _ = tensors(1, 8, 2, 1, 24)
    with pytest.raises(ValueError, match=r"width \(16, 32, 64, 128, 256\), got 24"):
        sliding_window_attention(q, k, v, 3, backend="triton")
    q, k, v, _ = tensors(1, 8, 2, 1, 16, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"float32, float16 and bfloat16, got torch\.float64"):
        sliding_window_attention(q, k, v, 3, backend="triton")
    monkeypatch.setattr(module, "interpreted", lambda: False)
    with pytest.raises(RuntimeError, match="need CUDA tensors, got cpu; set TRITON_INTERPRET=1"):
        sliding_window_attention(*(x.float().cpu() for x in (q, k, v)), 3, backend="triton")
    assert sliding_window_attention(*(x.cpu() for x in (q, k, v)), 3).shape == q.shape  # the CPU takes its reference


def test_masks_of_the_reference():
    q, k, v, _ = tensors(2, 6, 4, 2, 8)
    seen = torch.stack([causal(6), causal(6, 2)])
    expected = masked_attention(q, k, v, seen[:, None].expand(2, 4, 6, 6))
    for mask in (seen, seen[:, None]):
        assert torch.equal(masked_attention(q, k, v, mask), expected)
    torch.testing.assert_close(masked_attention(q, k, v).double(), wanted(q, k, v, None), **TOLERANCE)
    seen[1, 3] = False
    assert not masked_attention(q, k, v, seen)[1, 3].any()
    with pytest.raises(TypeError, match="mask must be bool"):
        masked_attention(q, k, v, seen.float())
    with pytest.raises(ValueError, match=r"mask must have shape \[6, 6\]"):
        masked_attention(q, k, v, seen[:, :5])


# decoding


@both
@pytest.mark.parametrize(
    ("sizes", "splits"), [((3, 150, 4, 2, 16), 3), ((2, 70, 6, 6, 32), 1), ((3, 300, 2, 1, 16), None), ((2, 40, 34, 17, 16), 2)]
)
def test_decoding_equals_attention_over_the_filled_cache(backend, sizes, splits):
    q, k, v, _ = tensors(*sizes)
    q, batch, capacity = q[:, 0], sizes[0], sizes[1]
    lengths = torch.tensor([capacity, 0, capacity // 2][:batch], device=DEVICE)
    expected = torch.zeros_like(q, dtype=torch.float64)
    for b, n in enumerate(lengths.tolist()):
        if n:
            expected[b] = wanted(q[b, None, None], k[b, None, :n], v[b, None, :n], None)[0, 0]
    for options, chosen in (
        ({}, list(range(batch))),
        ({"active": torch.arange(batch, device=DEVICE) != 1}, [b for b in range(batch) if b != 1]),
        ({"rows": torch.tensor([1, 0], device=DEVICE)}, [0, 1]),
        ({"rows": torch.tensor([], dtype=torch.int64, device=DEVICE)}, []),
    ):
        found = decode_attention(q, k, v, lengths, backend=backend, splits=splits, **options)
        torch.testing.assert_close(found[chosen].double(), expected[chosen], **TOLERANCE)
        assert not found[[b for b in range(batch) if b not in chosen]].any() and found.dtype == q.dtype


@both
def test_decoding_token_by_token_equals_one_pass(backend):
    """A ring buffer of the window for the local branch, all tokens for the global one, some of them skipped."""
    length, window = 24, 7
    q, k, v, _ = tensors(1, length, 2, 2, 16)
    active = mask_of(1, length, 0.5)
    ring_k, ring_v = (torch.zeros(1, window, 1, 16, device=DEVICE) for _ in range(2))
    local, everywhere = [], []
    for t in range(length):
        ring_k[:, t % window], ring_v[:, t % window] = k[:, t], v[:, t]
        filled = torch.tensor([min(t + 1, window)], device=DEVICE)
        local.append(decode_attention(q[:, t], ring_k, ring_v, filled, backend=backend))
        now = torch.tensor([t + 1], device=DEVICE)
        everywhere.append(decode_attention(q[:, t], k, v, now, active=active[:, t], backend=backend))
    torch.testing.assert_close(torch.stack(local, 1), sliding_window_attention(q, k, v, window), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack(everywhere, 1), token_gathered_attention(q, k, v, active), atol=1e-5, rtol=0)


@both
def test_bad_decoding_is_named(backend):
    q, k, v, _ = tensors(2, 8, 4, 2, 16)
    q, lengths = q[:, 0], torch.tensor([3, 8], device=DEVICE)
    rows = torch.tensor([0], device=DEVICE)

    def call(q=q, k=k, v=v, lengths=lengths, **options):
        decode_attention(q, k, v, lengths, backend=backend, debug=True, **options)

    for error, says, changes in (
        (ValueError, r"q must have shape \[batch, heads, width\]", {"q": q[:, None]}),
        (ValueError, "multiple of that of key heads", {"q": q[:, :3]}),
        (TypeError, r"lengths must be integers of shape \[2\]", {"lengths": lengths[:1]}),
        (TypeError, "lengths must be integers", {"lengths": lengths.float()}),
        (
            ValueError,
            r"lengths must lie in \[0, 8\], the capacity of the cache, got \[3, 9\]",
            {"lengths": lengths + rows.new_tensor([0, 1])},
        ),
        (ValueError, r"rows must lie in \[0, 2\), got \[2\]", {"rows": rows + 2}),
        (TypeError, "rows must be a vector of integers", {"rows": rows.bool()}),
        (TypeError, r"active must be bool of shape \[2\]", {"active": lengths}),
        (ValueError, "not both", {"active": lengths > 0, "rows": rows}),
        (ValueError, "splits must lie in 1 .. 64, got 0", {"splits": 0}),
    ):
        with pytest.raises(error, match=says):
            call(**changes)


# what only a GPU runs


@pytest.mark.parametrize("dim", module.WIDTHS)
@pytest.mark.parametrize("dtype", module.DTYPES)
@pytest.mark.parametrize("tuned", [module._forward_tuned, module._dq_tuned, module._dk_dv_tuned])
def test_tilings_that_are_tried_fit(dim, dtype, tuned):
    q = torch.empty(1, dtype=dtype)
    constants = {"D": dim, "PRECISION": module.dot_precision(q)}
    kept = tuned.early_config_prune(tuned.configs, {"q_ptr": q}, **constants)
    assert kept
    size = 6 if dtype == torch.float32 else 2
    for config in kept:
        m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        assert n * dim * 2 * size * config.num_stages + m * dim * size <= 225_280 or tuned is module._dk_dv_tuned
        assert 2 * m * dim * size * config.num_stages + 2 * n * dim * size <= 225_280 or tuned is not module._dk_dv_tuned
        assert config.num_warps == 4 or m * n >= 128 * 128
    if tuned is module._forward_tuned and (dim, size) == (128, 2):
        assert {(128, 128), (128, 64), (64, 64)} <= {(c.kwargs["BLOCK_M"], c.kwargs["BLOCK_N"]) for c in kept}


COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import l2a_attention as attention, l2a_decode as decode

FIXED = {"lse_ptr": "*fp32", "delta_ptr": "*fp32", "acc_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32",
         "idx_ptr": "*i32", "cu_ptr": "*i32", "before_ptr": "*i32", "rows_ptr": "*i32", "lengths_ptr": "*i32",
         "scale": "fp32", "qk_scale": "fp32"}

def build(kernel, element, products, **constants):
    names = kernel.arg_names
    kinds = {n: FIXED.get(n) or ("*" + element if n.endswith("_ptr") else "i32") for n in names}
    signature = {n: "constexpr" if n in constants else kinds[n] for n in names}
    # As a launch sees it: pointers and strides are multiples of 16.
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if n not in constants and (kinds[n].startswith("*") or n.startswith("stride"))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
    assert f".visible .entry {kernel.__name__}" in built.asm["ptx"]
    assert products in built.asm["ptx"], "the products do not run on tensor cores"
    assert built.metadata.shared <= 227 * 1024

nothing = {"idx_ptr": None, "cu_ptr": None}
common = {"G": 3, "D": 64, "BLOCK_M": 64, "BLOCK_N": 32, "PRECISION": "tf32"}
gathered = common | {"GATHERED": True, "WINDOW": 0}
window = common | {"GATHERED": False, "WINDOW": 100} | nothing
build(attention._forward_kernel, "bf16", "wgmma", **gathered)
build(attention._dq_kernel, "bf16", "wgmma", **gathered)
build(attention._dk_dv_kernel, "bf16", "mma", **gathered)
build(attention._forward_kernel, "fp16", "wgmma", **window)
build(attention._dk_dv_kernel, "bf16", "wgmma", **window | {"BLOCK_M": 32, "BLOCK_N": 64}, before_ptr=None)
build(attention._forward_kernel, "fp32", "mma", **gathered | {"PRECISION": "tf32x3", "BLOCK_M": 32})
build(decode._split_kernel, "bf16", "mma.sync", G=4, D=128, PRECISION="tf32", BLOCK_G=16, BLOCK_N=64)
build(decode._reduce_kernel, "bf16", "", D=128, BLOCK_S=16)
"""


@pytest.mark.skipif("nvidia" not in backends, reason="this build of Triton has no compiler for NVIDIA GPUs")
def test_the_kernels_compile_for_a_gpu(tmp_path):
    """Without a GPU at hand: the interpreter accepts programs that the compiler does not."""
    root = Path(__file__).resolve().parents[2]
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(root)}
    variables["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
