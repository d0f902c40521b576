"""Shared scales and packed storage against the definitions and ml_dtypes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.lowprec.formats import FORMATS, round_to
from components.lowprec.quantize import SCALINGS, pack_fp4, quantize, unpack_fp4, with_scales_of

SMALL = ("e4m3", "e5m2", "e2m1", "e1m2")


def matrix(rows=5, length=70, seed=0):
    """Rows of very different sizes, with a row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, generator=generator) * 10.0 ** torch.linspace(-4, 3, rows)[:, None]
    x[rows // 2] = 0
    return x


def expected(row, fmt, scaling):
    """One block by the definition, in float64."""
    amax = max(abs(v) for v in row)
    if amax == 0:
        return [0.0] * len(row)
    if scaling == "mx":
        s = 2.0 ** (math.floor(math.log2(amax)) - fmt.emax)
    else:
        s = 2.0 ** math.ceil(math.log2(amax / fmt.max_value))
    return [s * round_to(torch.tensor(v / s, dtype=torch.float32), fmt).item() for v in row]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("scaling", ["tensor", "mx", "mx_up"])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 70])
def test_equals_the_definition_block_by_block(name, scaling, length):
    x, fmt = matrix(length=length), FORMATS[name]
    got = quantize(x, name, scaling).dequantize()
    if scaling == "tensor":
        wanted = expected(x.flatten().tolist(), fmt, scaling)
    else:
        wanted = [v for row in x for i in range(0, length, 32) for v in expected(row[i : i + 32].tolist(), fmt, scaling)]
    assert torch.equal(got.flatten(), torch.tensor(wanted))


def test_nvfp4_equals_ml_dtypes_types_put_together():
    x = matrix(length=48)
    amax = np.abs(x.numpy()).max()
    t = np.float32(amax / np.float32(6 * 448))
    wanted = np.zeros_like(x.numpy())
    for i, row in enumerate(x.numpy()):
        for j in range(0, 48, 16):
            block = row[j : j + 16]
            share = (np.abs(block).max() / (np.float32(6) * t)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            s = max(share, np.float32(2.0**-9)) * t
            if block.any():
                wanted[i, j : j + 16] = (block / s).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * s
    q = quantize(x, "e2m1", "nvfp4", block=16)
    np.testing.assert_array_equal(q.dequantize().numpy(), wanted)
    assert q.scale.shape == (5, 3) and q.tensor_scale.item() == t


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("scaling", ["none", "tensor", "mx", "mx_up"])
def test_an_unchanged_tensor_stays_unchanged(name, scaling):
    q = quantize(matrix().clamp(-1.7, 1.7) if scaling == "none" else matrix(), name, scaling)
    again = quantize(q.dequantize(), name, scaling)
    assert torch.equal(again.dequantize(), q.dequantize())
    # An amax that was rounded down to max_F / 2 could do with half the scale, which shows the same values by other codes.
    kept = quantize(q.dequantize(), name, scaling, prev=q if scaling in ("tensor", "mx_up") else None)
    assert torch.equal(kept.codes, q.codes) and (q.scale is None or torch.equal(kept.scale, q.scale))


def test_nvfp4_keeps_codes_and_block_scales_and_its_float_scale_may_drift():
    q = quantize(torch.randn(8, 70, generator=torch.Generator().manual_seed(0)), "e2m1", "nvfp4", 16)
    again = quantize(q.dequantize(), "e2m1", "nvfp4", 16)
    assert torch.equal(again.codes, q.codes) and torch.equal(again.scale, q.scale)
    torch.testing.assert_close(again.tensor_scale, q.tensor_scale, rtol=1e-6, atol=0)
    kept = with_scales_of(q, q.dequantize())
    assert torch.equal(kept.codes, q.codes) and torch.equal(kept.dequantize(), q.dequantize())


def test_blocks_do_not_see_each_other():
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[1, 32:64] *= 1000
    a, b = (quantize(v, "e2m1", "mx").dequantize() for v in (x, changed))
    same = torch.ones(3, 96, dtype=torch.bool)
    same[1, 32:64] = False
    assert torch.equal(a[same], b[same]) and not torch.equal(a[~same], b[~same])


@pytest.mark.parametrize("name", SMALL)
def test_largest_value_times_a_power_of_two_is_exact_and_floor_scales_saturate(name):
    fmt = FORMATS[name]
    for k in (-100, -3, 0, 5, 90):
        x = torch.tensor([fmt.max_value * 2.0**k, 0.0, -(2.0 ** (fmt.emax + k))])
        for scaling in ("tensor", "mx", "mx_up"):
            assert torch.equal(quantize(x, name, scaling).dequantize(), x)
    above = torch.tensor([fmt.max_value * 1.06])
    if above.item() < 2.0 ** (fmt.emax + 1):
        assert quantize(above, name, "mx").dequantize().item() == fmt.max_value
    assert quantize(above, name, "mx_up").dequantize().item() <= 2.0 ** (fmt.emax + 1)


def test_extremes_of_float32_have_a_scale():
    for value in (3e38, 1e-38, 1e-45, 2.0**-130):
        q = quantize(torch.tensor([value, -value / 3]), "e4m3", "mx")
        assert torch.isfinite(q.dequantize()).all()
    assert quantize(torch.zeros(40), "e2m1", "mx").scales().tolist() == [1.0, 1.0]


def test_hysteresis_keeps_a_scale_until_it_no_longer_fits():
    q = quantize(torch.tensor([300.0, 1.0]), "e4m3", "tensor")
    assert q.scales().item() == 1.0
    smaller = torch.tensor([150.0, 1.0])
    assert quantize(smaller, "e4m3", "tensor").scales().item() == 0.5
    assert quantize(smaller, "e4m3", "tensor", prev=q).scales().item() == 1.0
    for x, s in ((torch.tensor([112.0, 1.0]), 0.25), (torch.tensor([449.0, 1.0]), 2.0)):
        assert quantize(x, "e4m3", "tensor", prev=q).scales().item() == s


@pytest.mark.parametrize("scaling", ["none", "tensor", "mx", "nvfp4"])
def test_half_ulp_bounds_the_error(scaling):
    x = matrix()
    x = x.clamp(-6, 6) if scaling == "none" else x
    q = quantize(x, "e2m1", scaling, 16)
    # a value at the foot of a binade was perhaps rounded up to it from a coarser look: its own spacing is the larger side
    inside = x.abs() <= q.dequantize().abs().max()
    error = (q.dequantize() - x).abs()[inside]
    limit = q.half_ulp()[inside]
    saturated = q.dequantize().abs()[inside] >= (6 * q.half_ulp()[inside] / 1.0001)
    assert (error[~saturated] <= limit[~saturated] * 1.0001).all() and (~saturated).sum() > 100


def test_bytes():
    assert quantize(torch.ones(64, 64), "e4m3", "mx").nbytes == 4096 + 128
    assert quantize(torch.ones(64, 64), "e2m1", "mx").nbytes == 2048 + 128
    assert quantize(torch.ones(64, 64), "e2m1", "nvfp4", 16).nbytes == 2048 + 256 + 4
    assert quantize(torch.ones(64, 64), "bf16", "none").nbytes == 8192


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_packing_is_inverted(shape, seed):
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    packed = pack_fp4(codes)
    assert torch.equal(unpack_fp4(packed, shape[-1]), codes)
    assert packed.shape[-1] == (shape[-1] + 1) // 2


def test_packing_order():
    assert pack_fp4(torch.tensor([1, 2, 3], dtype=torch.uint8)).tolist() == [0x21, 0x03]


def test_scalars_and_empty_tensors():
    assert quantize(torch.tensor(5.0), "e2m1", "mx").dequantize().item() == 4.0
    for scaling in SCALINGS:
        for shape in ((0,), (3, 0), (0, 32)):
            assert quantize(torch.zeros(shape), "e2m1", scaling, 16).dequantize().shape == shape


def test_bad_input_is_one_clear_sentence():
    x = torch.ones(4)
    for arguments, says in (
        ({"fmt": "int8"}, "there is no number format 'int8'"),
        ({"fmt": "e4m3", "scale": "row"}, "scale must be one of none, tensor"),
        ({"fmt": "e4m3", "block": 8}, "block must be 16 or 32"),
        ({"fmt": "e4m3", "mode": "nearest"}, "rounding must be one of"),
        ({"fmt": "e4m3", "scale": "nvfp4"}, "scale='nvfp4' is for formats of 4 bits"),
        ({"fmt": "bf16", "scale": "mx"}, "bf16 has the range it needs"),
    ):
        with pytest.raises(ValueError, match=says):
            quantize(x, **arguments)
    with pytest.raises(ValueError, match=r"x reaches 500, the largest value of e4m3 is 448.*scale='mx'"):
        quantize(500 * x, "e4m3", "none")
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="x must be finite"):
            quantize(torch.tensor([1.0, bad]), "e4m3")
    with pytest.raises(TypeError, match="x must be a dense float32 tensor"):
        quantize(x.double(), "e4m3")
    q = quantize(x, "e4m3", "mx")
    with pytest.raises(ValueError, match="prev is e4m3, mx"):
        quantize(torch.ones(5), "e4m3", "mx", prev=q)
    with pytest.raises(ValueError, match="prev is for power-of-two scales"):
        quantize(x, "e2m1", "nvfp4", 16, prev=quantize(x, "e2m1", "nvfp4", 16))
    with pytest.raises(TypeError, match="4-bit codes are uint8"):
        pack_fp4(x)
    with pytest.raises(ValueError, match="below 16"):
        pack_fp4(torch.tensor([16], dtype=torch.uint8))
    with pytest.raises(ValueError, match="5 codes of 4 bits take 3 bytes"):
        unpack_fp4(torch.zeros(2, dtype=torch.uint8), 5)
    with pytest.raises(ValueError, match="x must have q's shape"):
        with_scales_of(q, torch.ones(5))
