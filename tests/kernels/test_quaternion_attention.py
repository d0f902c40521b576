"""Quaternion attention, kernels and reference, against float64 attention of torch with keys turned by the units' own products."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode
from triton.backends import backends

from kernels import quaternion_attention as module
from kernels.quaternion_attention import (
    attention_pairs,
    bytes_moved,
    component_score_attention,
    exponentials,
    flops,
    shared_score_attention,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("backend", ["reference", "triton"])
MODES = {
    "shared": (shared_score_attention, {}),
    "component": (component_score_attention, {}),
    "conjugate": (component_score_attention, {"conjugate": True}),
}
modes = pytest.mark.parametrize("mode", MODES)


def unit_product(a, b):
    """(component, sign) of e_a e_b, from the rules i^2 = j^2 = k^2 = -1 and ij = k, jk = i, ki = j."""
    if a == 0 or b == 0:
        return a + b, 1
    if a == b:
        return 0, -1
    return 6 - a - b, 1 if (b - a) % 3 == 1 else -1


def turned(k, c):
    """K with <q, K> = (q k)_c for keys (..., 4, h)."""
    out = torch.zeros_like(k)
    for a in range(4):
        for b in range(4):
            component, sign = unit_product(a, b)
            if component == c:
                out[..., a, :] = sign * k[..., b, :]
    return out


def wanted(mode, q, k, v, heads, causal=False, gains=None, eps=1e-6):
    """float64, [B, L, 4, n]."""
    if gains is not None:
        q, k = (
            torch.nn.functional.rms_norm(x.double().transpose(-1, -2), (4,), eps=eps).transpose(-1, -2) * gain.double()
            for x, gain in zip((q, k), gains, strict=True)
        )
    h = q.shape[-1] // heads
    q, k, v = (x.double().unflatten(-1, (heads, h)).permute(0, 3, 1, 2, 4) for x in (q, k, v))  # (B, H, L, 4, h)
    if mode == "shared":
        y = scaled_dot_product_attention(*(x.flatten(-2) for x in (q, k, v)), is_causal=causal).unflatten(-1, (4, h))
    else:
        if mode == "conjugate":
            k = k * torch.tensor([1.0, -1, -1, -1], dtype=k.dtype, device=k.device)[:, None]
        y = torch.stack(
            [
                scaled_dot_product_attention(
                    q.flatten(-2), turned(k, c).flatten(-2), v[..., c, :], is_causal=causal, scale=h**-0.5
                )
                for c in range(4)
            ],
            -2,
        )
    return y.permute(0, 2, 3, 1, 4).flatten(-2)


def tensors(batch, length, n, seed=0, dtype=torch.float32):
    """q, k, v and a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, length, 4, n, generator=generator).to(DEVICE, dtype) for _ in range(4)]


def gains_of(n, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [(0.5 + torch.rand(n, generator=generator)).to(DEVICE) for _ in range(2)]


def with_gradients(function, leaves, gradient):
    leaves = [x.detach().requires_grad_() for x in leaves]
    out = function(*leaves)
    out.backward(gradient.to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves)]


def assert_same(found, expected, atol=1e-4):
    names = ("out", "dq", "dk", "dv", "dq_gain", "dk_gain")
    for name, a, b in zip(names, found, expected, strict=False):
        torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=atol, msg=lambda m, n=name: f"{n}: {m}")


SIZES = [  # batch, heads, length, h: the specified ones, odd ones, one token, one feature, many features
    (1, 1, 16, 4),
    (2, 2, 33, 3),
    (1, 1, 65, 8),
    (1, 3, 1, 1),
    (2, 1, 17, 17),
]


CASES = [(mode, sizes, causal) for mode in ("shared", "component") for sizes in SIZES for causal in (False, True)]
CASES += [("conjugate", SIZES[0], True), ("conjugate", SIZES[1], False)]


@both
@pytest.mark.parametrize(("mode", "sizes", "causal"), CASES)
def test_equals_attention_with_turned_keys_and_all_gradients(backend, mode, causal, sizes):
    batch, heads, length, h = sizes
    q, k, v, gradient = tensors(batch, length, heads * h)
    function, options = MODES[mode]
    found = with_gradients(lambda *x: function(*x, heads=heads, causal=causal, backend=backend, **options), (q, k, v), gradient)
    assert_same(found, with_gradients(lambda *x: wanted(mode, *x, heads, causal), (q, k, v), gradient))


@both
@pytest.mark.parametrize("mode", ["shared", "conjugate"])
def test_norms_with_gains_and_their_gradients(backend, mode):
    q, k, v, gradient = tensors(2, 21, 6)
    function, options = MODES[mode]

    def call(q, k, v, a, b):
        return function(q, k, v, heads=2, causal=True, q_gain=a, k_gain=b, eps=1e-3, backend=backend, **options)

    leaves = (q, k, v, *gains_of(6))
    expected = with_gradients(lambda q, k, v, a, b: wanted(mode, q, k, v, 2, True, (a, b), 1e-3), leaves, gradient)
    assert_same(with_gradients(call, leaves, gradient), expected)


@pytest.mark.parametrize(
    ("tiles", "mode", "causal"),
    [
        ((16, 16), "shared", True),
        ((16, 32), "shared", False),
        ((16, 32), "shared", True),
        ((32, 16), "shared", True),
        ((32, 16), "component", False),
        ((16, 32), "component", True),
    ],
)
def test_tiles_that_differ(tiles, mode, causal):
    q, k, v, gradient = tensors(1, 51, 3)
    function, options = MODES[mode]
    found = with_gradients(
        lambda *x: function(*x, heads=1, causal=causal, backend="triton", tiles=tiles, **options), (q, k, v), gradient
    )
    assert_same(found, with_gradients(lambda *x: wanted(mode, *x, 1, causal), (q, k, v), gradient))


@both
@modes
def test_any_strides(backend, mode):
    """Inputs as a projection leaves them: parts of one tensor, other orders of axes, every second token."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, 38, 4, 18, generator=generator).to(DEVICE)[:, ::2]
    q, k, v = packed.chunk(3, -1)
    k = k.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    gradient = torch.randn(2, 4, 19, 6, generator=generator).to(DEVICE).transpose(1, 2)
    function, options = MODES[mode]
    found = with_gradients(lambda *x: function(*x, heads=2, backend=backend, **options), (q, k, v), gradient)
    assert_same(found, with_gradients(lambda *x: wanted(mode, *x, 2), (q, k, v), gradient))


@both
@pytest.mark.parametrize("shape", [(0, 5, 4, 4), (2, 0, 4, 4)])
def test_nothing_to_do(backend, shape):
    leaves = [torch.zeros(shape, device=DEVICE, requires_grad=True) for _ in range(3)]
    y = shared_score_attention(*leaves, heads=2, backend=backend)
    assert y.shape == shape
    y.sum().backward()
    assert all(x.grad.shape == shape for x in leaves)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    # The interpreter cannot multiply bfloat16.
    [("reference", torch.bfloat16), *((way, torch.float16) for way in ("reference", "triton"))],
)
def test_half_precision_is_accumulated_in_float32(backend, dtype):
    q, k, v, gradient = tensors(1, 70, 8, dtype=dtype)
    found = with_gradients(lambda *x: shared_score_attention(*x, heads=2, backend=backend), (q, k, v), gradient)
    assert found[0].dtype == dtype
    assert_same(found, with_gradients(lambda *x: wanted("shared", *x, 2), (q, k, v), gradient), atol=0.03)


@both
@modes
def test_large_scores_do_not_overflow(backend, mode):
    q, k, v, _ = tensors(1, 33, 4)
    function, options = MODES[mode]
    found = function(60 * q, 60 * k, v, heads=1, backend=backend, **options)
    torch.testing.assert_close(found.double(), wanted(mode, 60 * q, 60 * k, v, 1), atol=1e-3, rtol=1e-3)


@both
@modes
def test_the_future_changes_nothing(backend, mode):
    q, k, v, _ = tensors(1, 40, 6)
    function, options = MODES[mode]
    before = function(q, k, v, heads=2, causal=True, backend=backend, **options)
    for x in (q, k, v):
        x[:, 23:] = 1e3
    after = function(q, k, v, heads=2, causal=True, backend=backend, **options)
    assert torch.equal(before[:, :23], after[:, :23]) and not torch.equal(before[:, 23:], after[:, 23:])


def test_twice_the_same_bits():
    q, k, v, gradient = tensors(1, 35, 6)
    runs = [
        with_gradients(lambda *x: component_score_attention(*x, heads=2, backend="triton"), (q, k, v), gradient)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 50), st.integers(1, 9), st.booleans(), st.sampled_from(sorted(MODES))
)
def test_property_any_sizes(batch, heads, length, h, causal, mode):
    q, k, v, _ = tensors(batch, length, heads * h, seed=length)
    function, options = MODES[mode]
    found = function(q, k, v, heads=heads, causal=causal, backend="triton", **options)
    torch.testing.assert_close(found.double(), wanted(mode, q, k, v, heads, causal), atol=1e-4, rtol=1e-4)


@modes
def test_gradcheck_of_the_reference(mode):
    function, options = MODES[mode]
    leaves = [x[:3].double().requires_grad_() for x in tensors(1, 4, 2)[:3]]
    gains = [gain.double().requires_grad_() for gain in gains_of(2)]
    assert torch.autograd.gradcheck(
        lambda q, k, v, a, b: function(q, k, v, heads=1, causal=True, q_gain=a, k_gain=b, **options), (*leaves, *gains)
    )


@pytest.mark.parametrize("score", ["shared", "component"])
def test_counted_operations(score):
    """torch's own counter over the reference's products, forward and backward; exponentials are the maps' entries."""
    batch, heads, length, h = 2, 3, 20, 4
    leaves = [torch.randn(batch, length, 4, heads * h, requires_grad=True) for _ in range(3)]
    with FlopCounterMode(display=False) as forward:
        y = module.quaternion_attention_reference(*leaves, heads=heads, score=score)
    assert forward.get_total_flops() == flops(batch, heads, length, h, score=score)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    # Flash attention computes the scores a second time; this reference keeps them.
    again = {"shared": 1, "component": 4}[score] * batch * heads * length**2 * 2 * 4 * h
    assert backward.get_total_flops() + again == flops(batch, heads, length, h, score=score, backward=True)
    assert flops(1, 1, length, h, score=score) == {"shared": 16, "component": 40}[score] * length**2 * h
    assert exponentials(1, 1, length, score=score) == {"shared": 1, "component": 4}[score] * length**2
    assert attention_pairs(7, causal=True) == torch.ones(7, 7).tril().sum()
    q, k, v, gradient = tensors(batch, length, heads * h)
    moved = sum(x.numel() * x.element_size() for x in (q, k, v, gradient))
    assert bytes_moved(batch, length, heads * h, 4) == moved
    assert bytes_moved(batch, length, heads * h, 4, backward=True) == 2 * moved


@pytest.mark.parametrize("function", [shared_score_attention, component_score_attention])
def test_bad_input_is_named(function):
    q, k, v, _ = tensors(1, 5, 6)
    gain = torch.ones(6, device=DEVICE)
    for error, words, call in (
        (ValueError, r"one shape \(B, L, 4, n\)", lambda: function(q, k[:, :3], v, heads=2)),
        (ValueError, r"one shape \(B, L, 4, n\)", lambda: function(*(x.flatten(-2) for x in (q, k, v)), heads=2)),
        (TypeError, "share one floating point dtype", lambda: function(q, k.double(), v, heads=2)),
        (TypeError, "share one floating point dtype", lambda: function(*(x.int() for x in (q, k, v)), heads=2)),
        (ValueError, "multiple of heads", lambda: function(q, k, v, heads=4)),
        (ValueError, "heads at least 1", lambda: function(q, k, v, heads=0)),
        (ValueError, "given together", lambda: function(q, k, v, heads=2, q_gain=gain)),
        (ValueError, r"k_gain must have shape \(6,\)", lambda: function(q, k, v, heads=2, q_gain=gain, k_gain=gain[:3])),
        (TypeError, "q_gain must be a floating", lambda: function(q, k, v, heads=2, q_gain=gain.int(), k_gain=gain)),
        (ValueError, "eps must be positive", lambda: function(q, k, v, heads=2, eps=0.0)),
        (ValueError, "backend must be", lambda: function(q, k, v, heads=2, backend="flash")),
        (ValueError, "two powers of two from 16", lambda: function(q, k, v, heads=2, tiles=(8, 16))),
        (TypeError, "float32, float16", lambda: function(*(x.double() for x in (q, k, v)), heads=2, backend="triton")),
    ):
        with pytest.raises(error, match=words):
            call()
    wide = torch.zeros(1, 2, 4, 65, device=DEVICE)
    with pytest.raises(ValueError, match="at most 64 quaternion features"):
        function(wide, wide, wide, heads=1, backend="triton")


def test_the_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(module, "interpreted", lambda: False)
    q, k, v = (x.cpu() for x in tensors(1, 5, 6)[:3])
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        shared_score_attention(q, k, v, heads=2, backend="triton")
    assert shared_score_attention(q, k, v, heads=2).shape == q.shape


COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import quaternion_attention as attention

FIXED = {"lse_ptr": "*fp32", "delta_ptr": "*fp32", "q_gain_ptr": "*fp32", "k_gain_ptr": "*fp32",
         "scale": "fp32", "qk_scale": "fp32", "eps": "fp32"}

def build(kernel, element, products, **constants):
    names = kernel.arg_names
    kinds = {n: FIXED.get(n) or ("*" + element if n.endswith("_ptr") else "i32") for n in names}
    signature = {n: "constexpr" if n in constants else kinds[n] for n in names}
    # The features' stride is 1, as a launch sees it.
    for n in names:
        if n.startswith("stride") and n.endswith("n"):
            signature[n] = "constexpr"
            constants = constants | {n: 1}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if n not in constants and (kinds[n].startswith("*") or n.startswith("stride"))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
    assert f".visible .entry {kernel.__name__}" in built.asm["ptx"]
    assert products in built.asm["ptx"], "the products do not run on tensor cores"
    assert built.metadata.shared <= 227 * 1024

shared = {"N": 16, "P": 16, "W": 64, "MAPS": 1, "CONJUGATE": False, "CAUSAL": True, "NORM": True, "PRECISION": "tf32",
          "BLOCK_M": 64, "BLOCK_N": 64}
component = shared | {"N": 12, "W": 16, "MAPS": 4, "CONJUGATE": True, "CAUSAL": False, "NORM": False}
without = {"q_gain_ptr": None, "k_gain_ptr": None}
for kernel in (attention._forward_kernel, attention._dq_kernel, attention._dk_dv_kernel):
    build(kernel, "bf16", "mma", **shared)
build(attention._forward_kernel, "fp16", "mma", **component, **without)
build(attention._delta_kernel, "bf16", "", N=16, P=16, W=64, MAPS=1, BLOCK_M=64)
"""


@pytest.mark.skipif("nvidia" not in backends, reason="this build of Triton has no compiler for NVIDIA GPUs")
def test_the_kernels_compile_for_a_gpu(tmp_path):
    """Without a GPU at hand: the interpreter accepts programs that the compiler does not."""
    root = Path(__file__).resolve().parents[2]
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(root)}
    variables["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
