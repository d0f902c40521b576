"""Formats and rounding against torch's own types, ml_dtypes, gfloat and the definition in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.lowprec.formats import FORMATS, FloatFormat, decode, decoding_table, encode, half_ulp, round_to

ML = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
GFLOAT = {
    "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
    "bf16": gfloat.formats.format_info_bfloat16,
}
SMALL = ("e4m3", "e5m2", "e2m1", "e1m2")


def values(count: int, fmt: FloatFormat, seed: int = 0) -> torch.Tensor:
    """Over the whole range: subnormals, ties, zeros of both signs, values beyond the largest."""
    generator = torch.Generator().manual_seed(seed)
    low = max(fmt.emin - fmt.man_bits - 3, -148)
    high = min(fmt.emax + 2, 127)
    exponent = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    x = torch.randn(count, generator=generator, dtype=torch.float64).sign() * 2.0**exponent
    x[: count // 4] = torch.randn(count // 4, generator=generator, dtype=torch.float64)
    x = x.float()
    if fmt.bits <= 8:
        grid = finite_grid(fmt)
        ties = (grid[1:] + grid[:-1]) / 2
        up, down = (torch.nextafter(ties, torch.tensor(side)) for side in (math.inf, -math.inf))
        x = torch.cat([x, grid, ties, up, down])
    return torch.cat([x, torch.tensor([0.0, -0.0, fmt.max_value, -fmt.max_value, 1.0, 3e38, -3e38, 1e-45, -1e-45])])


def finite_grid(fmt: FloatFormat) -> torch.Tensor:
    table = decoding_table(fmt)
    return table[torch.isfinite(table)].unique()


def same_bits(a, b) -> bool:
    return bool((np.asarray(a, np.float32).view(np.int32) == np.asarray(b, np.float32).view(np.int32)).all())


# --- the formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bias", "emin", "largest", "smallest"),
    [
        ("bf16", 127, -126, 3.3895313892515355e38, 2.0**-133),
        ("e4m3", 7, -6, 448.0, 2.0**-9),
        ("e5m2", 15, -14, 57344.0, 2.0**-16),
        ("e2m1", 1, 0, 6.0, 0.5),
        ("e1m2", 1, 0, 1.75, 0.25),
        ("fp16", 15, -14, 65504.0, 2.0**-24),
    ],
)
def test_constants_of_the_specifications(name, bias, emin, largest, smallest):
    fmt = FORMATS[name]
    assert (fmt.bias, fmt.emin, fmt.max_value, fmt.min_subnormal) == (bias, emin, largest, smallest)


def test_e2m1_and_e1m2_hold_exactly_their_values():
    assert decoding_table(FORMATS["e2m1"]).tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert decoding_table(FORMATS["e1m2"]).tolist()[:8] == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]
    assert finite_grid(FORMATS["e1m2"]).numel() == 15


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1"])
def test_every_code_decodes_as_in_ml_dtypes(name):
    count = 1 << FORMATS[name].bits
    theirs = np.arange(count, dtype=np.uint8).view(ML[name]).astype(np.float32)
    ours = decode(torch.arange(count, dtype=torch.uint8), name).numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    known = ~np.isnan(theirs)
    assert same_bits(ours[known], theirs[known])


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_code_decodes_as_in_torch(name):
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = codes.view(TORCH[name]).float()
    torch.testing.assert_close(decode(codes, name), theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", SMALL)
def test_every_code_survives_the_round_trip(name):
    """256 codes of E4M3 and E5M2, 16 of the four-bit formats; every NaN has the one code that is written."""
    fmt = FORMATS[name]
    codes = torch.arange(1 << fmt.bits, dtype=torch.uint8)
    table = decode(codes, fmt)
    back = encode(table, fmt)
    number = ~torch.isnan(table)
    assert torch.equal(back[number], codes[number])
    assert torch.isnan(decode(back[~number], fmt)).all() and int((~number).sum()) == {"e4m3": 2, "e5m2": 6}.get(name, 0)
    finite = torch.isfinite(table)
    for mode in ("rne", "rz", "sr"):
        assert same_bits(round_to(table[finite], fmt, mode), table[finite])


# --- rounding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ML))
def test_nearest_equals_ml_dtypes_on_a_million_values(name):
    fmt = FORMATS[name]
    x = values(1_000_000, fmt)
    theirs = x.clamp(-fmt.max_value, fmt.max_value).numpy().astype(ML[name]).astype(np.float32)
    assert same_bits(round_to(x, name), theirs)


@pytest.mark.parametrize("name", list(TORCH))
def test_nearest_equals_torchs_own_types(name):
    fmt = FORMATS[name]
    x = values(200_000, fmt, seed=1)
    theirs = x.clamp(-fmt.max_value, fmt.max_value).to(TORCH[name])
    assert same_bits(round_to(x, name), theirs.float())
    if name in ("e4m3", "e5m2"):
        assert torch.equal(encode(round_to(x, name), name), theirs.view(torch.uint8))


@pytest.mark.parametrize("name", SMALL)
def test_between_every_two_neighbours(name):
    """The whole table of rounding: a quarter, the middle, three quarters of each gap, of both signs."""
    fmt = FORMATS[name]
    grid = finite_grid(fmt).double()
    low, high = grid[:-1], grid[1:]
    position = {value: index for index, value in enumerate(grid[grid >= 0].tolist())}
    for share, nearest in ((0.25, low), (0.75, high)):
        x = (low + share * (high - low)).float()
        assert torch.equal(round_to(x, fmt).double(), nearest)
        toward_zero = torch.where(x > 0, low, high)
        assert torch.equal(round_to(x, fmt, "rz").double(), toward_zero)
    middle = (low + 0.5 * (high - low)).float()
    # a tie goes to the neighbour whose code is even
    expected = [h if position[abs(h)] % 2 == 0 else l for l, h in zip(low.tolist(), high.tolist(), strict=True)]
    assert round_to(middle, fmt).tolist() == expected


@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("e4m3", [17, 19, 1.0625, 1.1875, 464, 1e9], [16, 20, 1, 1.25, 448, 448]),
        ("e2m1", [2.5, 5, 0.25, 0.75, 7, -7, -5], [2, 4, 0, 1, 6, -6, -4]),
        ("e5m2", [1.125, 1.375, 61440, -(2.0**-17)], [1, 1.5, 57344, 0]),
        ("bf16", [1 + 2.0**-8, 1 + 3 * 2.0**-8, math.inf], [1, 1 + 2.0**-6, 3.3895313892515355e38]),
        ("e1m2", [0.125, 0.375, 9], [0, 0.5, 1.75]),
    ],
)
def test_gold_values(name, x, wanted):
    assert round_to(torch.tensor(x, dtype=torch.float32), name).tolist() == wanted


@settings(max_examples=200, deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), name=st.sampled_from(sorted(FORMATS)))
def test_error_is_within_half_an_ulp_and_rounding_is_idempotent_and_odd(x, name):
    fmt = FORMATS[name]
    x = max(-fmt.max_value, min(fmt.max_value, x))
    tensor = torch.tensor(x, dtype=torch.float32)
    rounded = round_to(tensor, fmt)
    assert torch.equal(round_to(rounded, fmt), rounded) and same_bits(round_to(-tensor, fmt), -rounded)
    # In exact arithmetic: half of float32's smallest subnormal is not a float.
    exponent = max(math.frexp(tensor.item())[1] - 1, fmt.emin) if tensor else fmt.emin
    bound = Fraction(2) ** (exponent - fmt.man_bits - 1)
    assert abs(Fraction(rounded.item()) - Fraction(tensor.item())) <= bound
    if bound >= Fraction(2) ** -149:
        assert Fraction(half_ulp(tensor, fmt).item()) == bound


def test_nan_stays_infinity_saturates_and_zero_keeps_its_sign():
    for name, fmt in FORMATS.items():
        for mode in ("rne", "sr", "rz"):
            got = round_to(torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0]), name, mode)
            assert torch.isnan(got[0]) and got[1:3].tolist() == [fmt.max_value, -fmt.max_value]
            assert torch.signbit(got[3:]).tolist() == [True, False]


def test_strided_scalar_and_empty_input_is_not_changed():
    x = torch.randn(6, 8)
    kept = x.clone()
    assert torch.equal(round_to(x.T, "e4m3"), round_to(x, "e4m3").T) and torch.equal(x, kept)
    for mode in ("sr", "rz"):
        round_to(x, "e2m1", mode), round_to(x, "bf16", mode)
    assert torch.equal(x, kept)
    assert round_to(torch.tensor(17.0), "e4m3").item() == 16 and round_to(torch.empty(0, 3), "e2m1").shape == (0, 3)


# --- stochastic rounding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "e4m3", "e5m2", "e2m1", "e1m2"])
def test_stochastic_rounding_is_unbiased(name):
    """The mean of 20,000 draws lies within 4.5 standard errors of x, for 60 values in all (a false alarm: below 1 in 2,000)."""
    fmt = FORMATS[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.linspace(-0.97, 0.89, 12) * min(fmt.max_value, 100.0)
    draws = round_to(x.repeat(20_000, 1), fmt, "sr", generator=generator).double()
    below = draws.min(0).values
    above = draws.max(0).values
    share = (x.double() - below) / (above - below).clamp(min=1e-30)
    error = (draws.mean(0) - x.double()).abs()
    sigma = (above - below) * (share * (1 - share)).clamp(min=0).sqrt() / math.sqrt(20_000)
    assert (error <= 4.5 * sigma + 1e-12).all()
    assert (above > below).sum() >= 10


@pytest.mark.parametrize("name", sorted(GFLOAT))
def test_stochastic_rounding_gives_one_of_the_two_neighbours_of_gfloat(name):
    fmt = FORMATS[name]
    x = values(300, fmt, seed=5).clamp(-fmt.max_value, fmt.max_value)[:700]
    rounded = round_to(x, fmt, "sr", generator=torch.Generator().manual_seed(0)).tolist()
    for value, got in zip(x.tolist(), rounded, strict=True):
        down = gfloat.round_float(GFLOAT[name], value, gfloat.RoundMode.TowardNegative)
        up = gfloat.round_float(GFLOAT[name], value, gfloat.RoundMode.TowardPositive)
        assert got in (down, up)


def test_given_words_decide():
    x = torch.full((4,), 1.25)  # e2m1: a quarter of the way... 1.25 lies between 1 and 1.5
    words = torch.tensor([0, (1 << 31) - 256, 1 << 31, (1 << 32) - 1])
    assert round_to(x, "e2m1", "sr", words=words).tolist() == [1.5, 1.5, 1.0, 1.0]
    x = torch.tensor([1 + 2.0**-8] * 2)
    assert round_to(x, "bf16", "sr", words=torch.tensor([0, (1 << 32) - 1])).tolist() == [1.0, 1 + 2.0**-7]


def test_the_same_generator_gives_the_same_result():
    x = torch.randn(1000)
    a, b, c = (round_to(x, "e4m3", "sr", generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_clear_sentence():
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="there is no number format 'fp8'; the formats are"):
        round_to(x, "fp8")
    with pytest.raises(TypeError, match="fmt must be a FloatFormat or the name of one"):
        round_to(x, 8)
    with pytest.raises(ValueError, match="rounding must be one of rne, sr, rz, got 'up'"):
        round_to(x, "e4m3", "up")
    for wrong in (x.double(), x.to(torch.complex64), x.to(torch.int64), x.to_sparse()):
        with pytest.raises(TypeError, match="x must be a dense float32 tensor"):
            round_to(wrong, "e4m3")
    with pytest.raises(TypeError, match="got list"):
        round_to([1.0], "e4m3")
    with pytest.raises(ValueError, match="words must be int64 of shape"):
        round_to(x, "e4m3", "sr", words=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="1.1 is not a value of e2m1|1.10000.* is not a value of e2m1"):
        encode(torch.tensor([1.0, 1.1]), "e2m1")
    with pytest.raises(ValueError, match="nan is not a value of e2m1"):
        encode(torch.tensor([math.nan]), "e2m1")
    with pytest.raises(TypeError, match="codes of e4m3 are stored as torch.uint8"):
        decode(torch.zeros(2), "e4m3")
    with pytest.raises(ValueError, match="codes of e2m1 have 4 bits, got 16"):
        decode(torch.tensor([16], dtype=torch.uint8), "e2m1")
    with pytest.raises(ValueError, match="infinity also has NaN"):
        FloatFormat("x", 4, 3, has_inf=True)
    with pytest.raises(ValueError, match="1 to 8 exponent bits"):
        FloatFormat("x", 9, 3)
    with pytest.raises(ValueError, match="do not lie within"):
        FloatFormat("x", 5, 2, bias=200)
