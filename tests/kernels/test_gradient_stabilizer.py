"""The fused kernels and their reference against the equations in plain Python numbers, on awkward sizes and bad gradients."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.backends import backends

from kernels.gradient_stabilizer import CHUNK, stabilize, stabilize_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("function", [stabilize_reference, stabilize])
SIZES = (1, 7, 1024, 1025, 70001)


def fresh(count):
    m, v = (torch.zeros(count, dtype=torch.float64, device=DEVICE) for _ in range(2))
    t, skipped = (torch.zeros(count, dtype=torch.int64, device=DEVICE) for _ in range(2))
    return m, v, t, skipped


def gradients(step, dtype=torch.float32, sizes=SIZES):
    generator = torch.Generator().manual_seed(step)
    return [(10.0 ** (i - 2) * torch.randn(n, generator=generator)).to(DEVICE, dtype) for i, n in enumerate(sizes)]


def by_hand(history, gamma1=0.6, gamma2=0.999, eps=1e-12, correct=True):
    """rho after a history of norms, in Python numbers."""
    m = v = 0.0
    for r in history:
        m, v = gamma1 * m + (1 - gamma1) * r, gamma2 * v + (1 - gamma2) * r * r
    c1, c2 = (1 - gamma1 ** len(history), 1 - gamma2 ** len(history)) if correct else (1, 1)
    return m / c1 / (math.sqrt(v / c2) + eps)


@both
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 1e-2), (torch.float64, 1e-10)]
)
@pytest.mark.parametrize("correct", [True, False])
def test_equals_the_equations(function, dtype, tolerance, correct):
    state, history = fresh(len(SIZES)), [[] for _ in SIZES]
    for step in range(3):
        tensors = gradients(step, dtype)
        before = [g.double().clone() for g in tensors]
        norms, rho = function(tensors, *state, bias_correction=correct)
        for i, g in enumerate(before):
            history[i].append(g.norm().item())
            wanted = by_hand(history[i], correct=correct)
            assert norms[i].item() == pytest.approx(history[i][-1], rel=1e-5)
            assert rho[i].item() == pytest.approx(wanted, rel=1e-5)
            torch.testing.assert_close(
                tensors[i].double(), g * wanted / history[i][-1], rtol=tolerance, atol=1e-6 if dtype == torch.float16 else 0
            )
    assert state[2].tolist() == [3] * 5 and state[3].tolist() == [0] * 5


@pytest.mark.parametrize("block", [1024, 4096])
@pytest.mark.parametrize("sizes", [(CHUNK + 5, 2, CHUNK), (1, 7, 1024)])
def test_kernel_equals_reference_in_every_block_size_and_twice_the_same_bits(block, sizes):
    first, second, third = fresh(3), fresh(3), fresh(3)
    for step in range(2):
        a, b, c = (gradients(step, sizes=sizes) for _ in range(3))
        stabilize(a, *first, block=block, warps=8)
        stabilize(b, *second, block=block, warps=8)
        stabilize_reference(c, *third)
        for x, y, z in zip(a, b, c, strict=True):
            assert torch.equal(x, y)
            torch.testing.assert_close(x, z, rtol=1e-5, atol=0)
        torch.testing.assert_close(torch.stack(first[:2]), torch.stack(third[:2]), rtol=1e-5, atol=0)


@both
def test_bad_and_zero_gradients_do_not_advance(function):
    state = fresh(5)
    function([torch.ones(9, device=DEVICE) for _ in range(5)], *state)
    kept = [x.clone() for x in state]
    bad = [torch.ones(9, device=DEVICE) for _ in range(5)]
    bad[0][4], bad[1][0], bad[2][8] = torch.nan, torch.inf, 1e25  # the square of the last is beyond float32
    bad[3].zero_()
    norms, rho = function(bad, *state)
    assert all(g.tolist() == [0.0] * 9 for g in bad[:4]) and bad[4].norm().item() == pytest.approx(1, abs=1e-6)
    assert torch.isfinite(norms).tolist() == [False, False, False, True, True]
    assert rho[:4].tolist() == [0.0] * 4
    for new, old in zip(state[:3], kept[:3], strict=True):
        assert torch.equal(new[:4], old[:4])
    assert state[2].tolist() == [1, 1, 1, 1, 2] and state[3].tolist() == [1, 1, 1, 0, 0]


@both
def test_strided_mixed_and_empty(function):
    state, wide = fresh(4), torch.full((6, 8), 9.0, device=DEVICE)
    view = wide[::2, ::2].T
    view.copy_(torch.arange(12.0, device=DEVICE).reshape(4, 3))
    assert not view.is_contiguous()
    tensors = [
        view,
        torch.ones(4, dtype=torch.bfloat16, device=DEVICE),
        torch.zeros(0, device=DEVICE),
        torch.full((1, 1), -3.0, device=DEVICE),
    ]
    wanted = torch.arange(12.0).reshape(4, 3)
    function(tensors, *state)
    torch.testing.assert_close(view.cpu(), wanted / wanted.norm())
    assert (wide == 9).sum().item() == 36  # what lies between is untouched
    assert tensors[1].tolist() == [0.5] * 4 and tensors[3].item() == pytest.approx(-1)
    assert state[2].tolist() == [1, 1, 0, 1]


@both
def test_gamma_zero_is_normalised_gradient(function):
    state = fresh(1)
    for scale in (1.0, 100.0, 0.01):
        g = torch.full((16,), scale, device=DEVICE)
        function([g], *state, gamma1=0.0, gamma2=0.0)
        torch.testing.assert_close(g.norm().item(), 1.0, rtol=1e-6, atol=0)


@both
def test_bad_input(function):
    with pytest.raises(ValueError, match="no tensor"):
        function([], *fresh(0))
    with pytest.raises(TypeError, match=r"tensor 0 is torch\.int64"):
        function([torch.ones(2, dtype=torch.int64, device=DEVICE)], *fresh(1))
    with pytest.raises(TypeError, match="complex64"):
        function([torch.ones(2, dtype=torch.complex64, device=DEVICE)], *fresh(1))
    with pytest.raises(ValueError, match=r"m must be a contiguous torch\.float64 tensor of shape \(1,\)"):
        function([torch.ones(2, device=DEVICE)], *fresh(2))


def test_other_blocks_are_refused():
    with pytest.raises(ValueError, match="block must be 1024, 2048 or 4096 and warps 4 or 8, got 1000 and 4"):
        stabilize([torch.ones(2, device=DEVICE)], *fresh(1), block=1000)


COMPILE = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import gradient_stabilizer as module

def build(kernel, constants, kinds):
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*i64") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert f".visible .entry {kernel.__name__}" in built.asm["ptx"]

numbers = ("partial", "m_ptr", "v_ptr", "norm_ptr", "rho_ptr", "factor_ptr", "hyper", "limits")
kinds = dict.fromkeys(numbers, "*fp64")
for element in (tl.float32, tl.bfloat16, tl.float64):
    constants = {"ELEMENT": element, "SIZE": module.CHUNK, "BLOCK": 2048}
    build(module._squares_kernel, constants, kinds)
    build(module._scale_kernel, constants, kinds)
build(module._scalars_kernel, {"CORRECT": True, "BLOCK": 128}, kinds)
"""


@pytest.mark.skipif("nvidia" not in backends, reason="this build of Triton has no compiler for NVIDIA GPUs")
def test_the_kernels_compile_for_a_gpu(tmp_path):
    """Without a GPU at hand: the interpreter accepts programs that the compiler does not."""
    root = Path(__file__).resolve().parents[2]
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(root)}
    settings["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=settings, check=False)
    assert done.returncode == 0, done.stderr
