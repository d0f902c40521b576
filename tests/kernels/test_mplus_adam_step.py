"""The fused kernel against the definition, which decodes, rounds and encodes in another way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.backends import backends

from kernels.mplus_adam_step import LAYOUTS, StepOptions, fused_formats, mplus_adam_step, mplus_adam_step_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = StepOptions(0.01, 0.1, 0.9, 0.999, 1e-8, 1e-12, 0.1, 1.0, 3)
CASES = [(fmt, scaling) for fmt in LAYOUTS for scaling in ("none", "mx", "mx_up") if fused_formats(fmt, scaling)]


def problem(fmt, scaling, shape, block=32, seed=0):
    """Random finite codes, scales of many sizes, moments of three steps."""
    generator = torch.Generator().manual_seed(seed)
    length = shape[-1]
    rows = torch.Size(shape).numel() // length
    layout = LAYOUTS[fmt]
    if fmt in ("fp32", "bf16"):
        codes = torch.randn(shape, generator=generator).to(torch.float32 if fmt == "fp32" else torch.bfloat16)
    elif layout.exp_bits + layout.man_bits < 4:
        codes = torch.randint(0, 256, (*shape[:-1], (length + 1) // 2), dtype=torch.uint8, generator=generator)
        if length % 2:
            codes[..., -1] &= 15
    else:
        # below the special codes of the top exponent
        top = {"e4m3": 0x7F, "e5m2": 0x7C}[fmt]
        codes = torch.randint(0, top, shape, generator=generator) + 128 * torch.randint(0, 2, shape, generator=generator)
        codes = codes.to(torch.uint8)
    scale = None
    if scaling != "none":
        scale = torch.randint(100, 140, (*shape[:-1], -(-length // block)), dtype=torch.uint8, generator=generator)
    grad = torch.randn(shape, generator=generator)
    size = 0.5 if scaling == "none" else 1e-3
    m, v = 0.1 * torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) * 1e-2
    me, ve = size * torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) * size**2
    parts = [codes, scale, grad, m, v, me, ve, torch.empty(shape)]
    assert rows
    return [None if part is None else part.to(DEVICE) for part in parts]


def both(parts, **options):
    first = [None if part is None else part.clone() for part in parts]
    second = [None if part is None else part.clone() for part in parts]
    mplus_adam_step(*first, options=OPTIONS, **options)
    mplus_adam_step_reference(*second, options=OPTIONS, **options)
    return first, second


def ulps(a, b):
    return (a.view(torch.int32).long() - b.view(torch.int32).long()).abs().max().item()


@pytest.mark.parametrize(("fmt", "scaling"), CASES)
@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("shape", [(1,), (31,), (3, 32), (5, 33), (4096 + 7,)])
def test_codes_scales_and_moments_equal_the_definition(fmt, scaling, rounding, shape):
    first, second = both(problem(fmt, scaling, shape), fmt=fmt, scaling=scaling, rounding=rounding, key=11)
    if fmt == "fp32":
        torch.testing.assert_close(first[0], second[0], rtol=1e-6, atol=1e-7)  # no grid hides the last bits
    else:
        assert torch.equal(first[0], second[0]) and torch.equal(first[7], second[7])
    assert first[1] is None or torch.equal(first[1], second[1])
    for a, b in zip(first[3:7], second[3:7], strict=True):
        assert ulps(a, b) <= 1


@pytest.mark.parametrize("tile_elements", [512, 1024, 2048, 4096])
def test_tiles_do_not_change_the_result(tile_elements):
    for rounding in ("rne", "sr"):
        parts = problem("e4m3", "mx", (37, 65), seed=1)
        first = [part.clone() for part in parts]
        second = [part.clone() for part in parts]
        options = {"fmt": "e4m3", "scaling": "mx", "rounding": rounding, "key": 5, "options": OPTIONS}
        mplus_adam_step(*first, tile_elements=tile_elements, num_warps=8, **options)
        mplus_adam_step(*second, **options)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_blocks_of_sixteen_and_zero_blocks(fmt):
    parts = problem(fmt, "mx", (3, 50), block=16)
    parts[0].zero_()
    parts[2][1] = 0
    parts[3][1] = 0
    first, second = both(parts, fmt=fmt, scaling="mx", block=16)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert not first[7][1].any() and (first[1][1] == 127).all()


def test_empty_tensors_are_left_alone():
    parts = [torch.empty(0, 8, dtype=torch.uint8), torch.empty(0, 1, dtype=torch.uint8), *(torch.empty(0, 8) for _ in range(6))]
    mplus_adam_step(*parts, fmt="e4m3", scaling="mx", options=OPTIONS)


def test_bad_input_is_one_clear_sentence():
    good = problem("e4m3", "mx", (4, 32))

    def call(**changes):
        parts = list(good)
        for position, part in changes.pop("parts", {}).items():
            parts[position] = part
        for function in (mplus_adam_step, mplus_adam_step_reference):
            function(*parts, **({"fmt": "e4m3", "scaling": "mx", "options": OPTIONS} | changes))

    for changes, says in (
        ({"scaling": "tensor"}, "the kernel does formats"),
        ({"fmt": "bf16"}, "the kernel does formats"),
        ({"rounding": "rz"}, "rounding must be rne or sr"),
        ({"block": 8}, "block must be 16 or 32"),
        ({"block": 16}, "scale must be 8 bytes"),
        ({"parts": {2: good[2].double()}}, "grad must be float32 of shape"),
        ({"parts": {3: good[3][:2]}}, "state 0 must be float32 of shape"),
        ({"parts": {0: good[0].int()}}, "codes of e4m3 must be 128 of torch.uint8"),
        ({"parts": {1: None}}, "scale must be 4 bytes"),
        ({"parts": {7: good[7].T.contiguous().T}}, "shown must be contiguous"),
    ):
        with pytest.raises(ValueError, match=says):
            call(**changes)


COMPILE = """
import math
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.mplus_adam_step import LAYOUTS, _step_kernel

for fmt, scaling, stochastic in (("e4m3", "mx", True), ("e2m1", "mx_up", False)):
    layout = LAYOUTS[fmt]
    mantissa, exponent = math.frexp(layout.max_value)
    constants = {"EXP": layout.exp_bits, "MAN": layout.man_bits, "BIAS": layout.bias, "LARGEST": layout.max_value,
                 "TOP": exponent - 1, "TOP_BITS": int((2 * mantissa - 1) * 2**23), "SCALED": True,
                 "SATURATE": scaling == "mx", "STOCHASTIC": stochastic, "BLOCK": 32, "TILE": 32}
    kinds = {"codes_ptr": "*u8", "scale_ptr": "*u8", "key": "i64", "rows": "i32", "length": "i32", "per_row": "i32"}
    signature = {}
    for name in _step_kernel.arg_names:
        kind = "constexpr" if name in constants else kinds.get(name)
        signature[name] = kind or ("*fp32" if name.endswith("_ptr") else "fp32")
    source = ASTSource(fn=_step_kernel, signature=signature, constexprs=constants)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False, "num_warps": 4})
    assert ".visible .entry _step_kernel" in built.asm["ptx"]
"""


@pytest.mark.skipif("nvidia" not in backends, reason="this build of Triton has no compiler for NVIDIA GPUs")
def test_the_kernel_compiles_for_a_gpu(tmp_path):
    """Without a GPU at hand: the interpreter accepts programs that the compiler does not."""
    root = Path(__file__).resolve().parents[2]
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(root)}
    settings["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=settings, check=False)
    assert done.returncode == 0, done.stderr
