"""Floating point formats of a few bits, and rounding onto their grids, emulated exactly in float32.

A format with E exponent bits, M mantissa bits and a bias holds the values

    (-1)^S * 1.f * 2^(e - bias),  e > 0        (normal)
    (-1)^S * 0.f * 2^emin,        emin = 1 - bias   (subnormal, e = 0)

so that between 2^e and 2^(e+1) neighbours are q = 2^(max(e, emin) - M) apart. Rounding is  q * round(x / q), saturated at the
largest finite value. Three tricks keep it to a few passes over memory: 2^e is x with its mantissa bits cleared; x / q is
exact; and adding 1.5 * 2^23 * q in float32 and taking it away again rounds to the nearest multiple of q, ties to even,
because the sum's last bit is worth exactly q. A format with the exponent range of float32 (bfloat16) is rounded on its bits.

Sources: OCP 8-bit Floating Point Specification (E4M3, E5M2), OCP Microscaling Formats (E2M1), IEEE 754.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["rne", "sr", "rz"]
ROUNDINGS: tuple[str, ...] = ("rne", "sr", "rz")

_EXPONENT_BITS = 0x7F800000  # of a float32


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating point format.

    Parameters
    ----------
    name : for messages.
    exp_bits, man_bits : widths of exponent (1 to 8) and mantissa (0 to 23).
    bias : of the exponent; default 2^(exp_bits - 1) - 1, at least 1.
    has_inf, has_nan : with infinity (which brings NaN) the whole top exponent is special, as in IEEE 754; with NaN alone only
        the code of all ones is, as in E4M3; with neither every code is a number.

    Raises ValueError for widths that float32 cannot emulate, or infinity without NaN.
    """

    name: str
    exp_bits: int
    man_bits: int
    bias: int | None = None
    has_inf: bool = False
    has_nan: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.exp_bits <= 8 and 0 <= self.man_bits <= 23):
            raise ValueError(
                f"format {self.name!r}: 1 to 8 exponent bits and 0 to 23 mantissa bits can be emulated in float32, "
                f"got {self.exp_bits} and {self.man_bits}"
            )
        if self.has_inf and not self.has_nan:
            raise ValueError(f"format {self.name!r}: a format with infinity also has NaN")
        if self.has_nan and not self.has_inf and self.man_bits == 0:
            raise ValueError(f"format {self.name!r}: NaN in the code of all ones needs a mantissa bit")
        if self.bias is None:
            object.__setattr__(self, "bias", max(2 ** (self.exp_bits - 1) - 1, 1))
        if self.is_wide:
            if self.bias != 127 or not self.has_inf:
                raise ValueError(f"format {self.name!r}: 8 exponent bits are float32's own, with bias 127 and infinity")
        elif not (-100 <= self.emin and self.emax <= 100):
            raise ValueError(f"format {self.name!r}: exponents {self.emin} to {self.emax} do not lie within -100 to 100")

    @property
    def is_wide(self) -> bool:
        """Whether the exponent is that of float32."""
        return self.exp_bits == 8

    @property
    def bits(self) -> int:
        """Width of a code."""
        return 1 + self.exp_bits + self.man_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return (1 << self.exp_bits) - 1 - self.bias - (1 if self.has_inf else 0)

    @property
    def max_value(self) -> float:
        """Largest finite value."""
        steps = (2 << self.man_bits) - 1 - (1 if self.has_nan and not self.has_inf else 0)
        return steps * 2.0 ** (self.emax - self.man_bits)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value, the distance of neighbours around zero."""
        return 2.0 ** (self.emin - self.man_bits)

    @property
    def smallest_exponent_move(self) -> float:
        """log2(1 + 2^(-M - 1)): a factor 2^d with |d| at least this large moves every normal value under round-to-nearest."""
        return torch.log2(torch.tensor(1 + 2.0 ** -(self.man_bits + 1), dtype=torch.float64)).item()


FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt
    for fmt in (
        FloatFormat("fp32", 8, 23, has_inf=True, has_nan=True),
        FloatFormat("bf16", 8, 7, has_inf=True, has_nan=True),
        FloatFormat("fp16", 5, 10, has_inf=True, has_nan=True),
        FloatFormat("e4m3", 4, 3, has_nan=True),
        FloatFormat("e5m2", 5, 2, has_inf=True, has_nan=True),
        FloatFormat("e2m1", 2, 1),
        FloatFormat("e1m2", 1, 2),
    )
}


_TORCH_FLOAT8 = {FORMATS["e4m3"]: torch.float8_e4m3fn, FORMATS["e5m2"]: torch.float8_e5m2}


def format_of(fmt: str | FloatFormat) -> FloatFormat:
    """The format of that name. ValueError for an unknown name, TypeError for what is neither a name nor a format."""
    if isinstance(fmt, FloatFormat):
        return fmt
    if not isinstance(fmt, str):
        raise TypeError(f"fmt must be a FloatFormat or the name of one, got {fmt!r}")
    if fmt not in FORMATS:
        raise ValueError(f"there is no number format {fmt!r}; the formats are {', '.join(FORMATS)}")
    return FORMATS[fmt]


def check_float32(x: Tensor, name: str = "x") -> None:
    """Raise TypeError unless `x` is a dense float32 tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a float32 tensor, got {type(x).__name__}")
    if x.dtype != torch.float32 or x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense float32 tensor, got {x.dtype}, {x.layout}; convert it with .float() first")


def check_rounding(mode: str) -> None:
    """Raise ValueError for an unknown rounding mode."""
    if mode not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {mode!r}")


def random_words(shape: torch.Size, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Independent 32-bit words as int64 values in [0, 2^32)."""
    return torch.randint(0, 1 << 32, shape, dtype=torch.int64, device=device, generator=generator)


def _binade(x: Tensor, emin: int) -> Tensor:
    """2^max(floor(log2 |x|), emin) for each element; float32, for finite x."""
    floor = (emin + 127) << 23
    return (x.view(torch.int32) & _EXPONENT_BITS).clamp_(min=floor).view(torch.float32)


def round_to(
    x: Tensor,
    fmt: str | FloatFormat,
    mode: Rounding = "rne",
    *,
    generator: torch.Generator | None = None,
    words: Tensor | None = None,
) -> Tensor:
    """Round onto the format's grid.

    Parameters
    ----------
    x : float32 tensor of any shape; it is not changed.
    fmt : a format or the name of one in FORMATS.
    mode : "rne" nearest, ties to even (default); "rz" towards zero; "sr" stochastic: up to the next multiple of the local
        spacing with probability equal to the fraction, to within 2^-24 (2^-16 for bf16, whose fraction has 16 bits).
    generator : of the random words of "sr"; default torch's own.
    words : 32-bit random words for "sr", int64 in [0, 2^32), of x's shape, in place of a generator.

    Returns
    -------
    float32 tensor of x's shape, every element on the grid. Values beyond the largest finite one, and infinity, saturate to
    it; NaN stays NaN; the sign of zero is kept.

    Raises
    ------
    ValueError : unknown format or mode; words of another shape.   TypeError : x is not a float32 tensor.
    """
    fmt = format_of(fmt)
    check_float32(x)
    check_rounding(mode)
    if mode == "sr":
        if words is None:
            words = random_words(x.shape, x.device, generator)
        elif words.shape != x.shape or words.dtype != torch.int64:
            raise ValueError(f"words must be int64 of shape {tuple(x.shape)}, got {words.dtype} of shape {tuple(words.shape)}")
    if not x.is_contiguous():
        x = x.contiguous()
    if fmt.is_wide:
        return _round_bits(x, fmt, mode, words)
    bound = fmt.max_value
    y = x.clamp(-bound, bound)
    power = _binade(y, fmt.emin)
    if mode == "rne":
        magic = power.mul_(1.5 * 2.0 ** (23 - fmt.man_bits))
        # Saturation comes first and is safe: the largest value is on the grid, so nothing below it rounds beyond.
        return (y + magic).sub_(magic).copysign_(x)
    quantum = power.mul_(2.0**-fmt.man_bits)
    steps = y.div_(quantum)  # exact: the divisor is a power of two
    if mode == "rz":
        return steps.trunc_().mul_(quantum)
    below = torch.floor(steps)
    uniform = (words >> 8).to(torch.float32).mul_(2.0**-24)
    # `steps - below` is exact, so that a value on the grid never moves.
    below += uniform < steps.sub_(below)
    return below.mul_(quantum).copysign_(x)


def _round_bits(x: Tensor, fmt: FloatFormat, mode: str, words: Tensor | None) -> Tensor:
    """Rounding for a format that shares float32's exponent: carry into the kept bits, then clear the rest."""
    dropped = 23 - fmt.man_bits
    y = x.clamp(-fmt.max_value, fmt.max_value)
    if dropped == 0:
        return y
    bits = y.view(torch.int32)
    if mode == "rne":
        bits = bits + ((bits >> dropped) & 1).add_((1 << (dropped - 1)) - 1)
    elif mode == "sr":
        # Magnitudes are rounded up with the fraction's probability; by symmetry it is unbiased for both signs.
        bits = bits + (words >> (32 - dropped)).to(torch.int32)
    rounded = (bits & -(1 << dropped)).view(torch.float32)
    return torch.where(torch.isnan(x), x, rounded)


def half_ulp(x: Tensor, fmt: str | FloatFormat) -> Tensor:
    """Half the distance between neighbours of the grid in x's binade: the largest error of rounding x to nearest.

    `x`: float32, any shape, within the format's range. Returns float32 of x's shape; raises as `round_to`."""
    fmt = format_of(fmt)
    check_float32(x)
    power = _binade(x.clamp(-fmt.max_value, fmt.max_value).contiguous(), fmt.emin)
    return power * 2.0 ** -(fmt.man_bits + 1)


@functools.cache
def decoding_table(fmt: FloatFormat) -> Tensor:
    """The value of each of the 2^bits codes of a format of at most 8 bits, float32; NaN and infinity where the format has them.

    Raises ValueError for a wider format.
    """
    if fmt.bits > 8:
        raise ValueError(f"a table of all codes is kept for formats of at most 8 bits, {fmt.name} has {fmt.bits}")
    codes = torch.arange(1 << fmt.bits)
    mantissa = codes & ((1 << fmt.man_bits) - 1)
    exponent = (codes >> fmt.man_bits) & ((1 << fmt.exp_bits) - 1)
    normal = exponent > 0
    steps = mantissa + normal.long() * (1 << fmt.man_bits)
    # torch.ldexp would compute the power in float32
    power = torch.tensor([2.0 ** (max(e, 1) - fmt.bias - fmt.man_bits) for e in exponent.tolist()], dtype=torch.float64)
    value = steps.double() * power
    top = exponent == (1 << fmt.exp_bits) - 1
    if fmt.has_inf:
        value[top] = torch.where(mantissa[top] == 0, torch.inf, torch.nan).double()
    elif fmt.has_nan:
        value[top & (mantissa == (1 << fmt.man_bits) - 1)] = torch.nan
    sign = codes >> (fmt.exp_bits + fmt.man_bits)
    return torch.where(sign == 1, -value, value).float()


def look_up(table: Tensor, codes: Tensor) -> Tensor:
    """`table[codes]` for small codes; several times faster than indexing."""
    return table.index_select(0, codes.flatten().int()).reshape(codes.shape)


def decode(codes: Tensor, fmt: str | FloatFormat) -> Tensor:
    """Values of codes.

    Parameters
    ----------
    codes : uint8 for a format of at most 8 bits, S << (E + M) | e << M | f; bfloat16 or float32 for "bf16" and "fp32".

    Returns float32 of the same shape. Raises TypeError for another dtype, ValueError for a code that has too many bits.
    """
    fmt = format_of(fmt)
    wanted = storage_dtype(fmt)
    if codes.dtype != wanted:
        raise TypeError(f"codes of {fmt.name} are stored as {wanted}, got {codes.dtype}")
    if wanted != torch.uint8:
        return codes.float()
    if fmt.bits < 8 and codes.numel() and int(codes.max()) >= 1 << fmt.bits:
        raise ValueError(f"codes of {fmt.name} have {fmt.bits} bits, got {int(codes.max())}")
    return look_up(decoding_table(fmt).to(codes.device), codes)


def encode(x: Tensor, fmt: str | FloatFormat) -> Tensor:
    """Codes of values that lie on the grid; the inverse of `decode`.

    Parameters
    ----------
    x : float32, any shape; NaN and infinity where the format has them. Round with `round_to` first.

    Returns uint8, or bfloat16, float16 or float32 for the formats of that name. Raises ValueError for a value off the grid.
    """
    fmt = format_of(fmt)
    check_float32(x)
    codes = encode_unchecked(x, fmt)
    back = decode(codes, fmt)
    wrong = (back != x) & ~(torch.isnan(back) & torch.isnan(x))
    if wrong.any():
        raise ValueError(f"{x[wrong].flatten()[0].item()!r} is not a value of {fmt.name}; round it with round_to first")
    return codes


def encode_unchecked(x: Tensor, fmt: FloatFormat) -> Tensor:
    """`encode` without the look at the result: only for what `round_to` returned, free of NaN where the format has none."""
    wanted = storage_dtype(fmt)
    if wanted != torch.uint8:
        return x.to(wanted)
    if fmt in _TORCH_FLOAT8:
        return x.to(_TORCH_FLOAT8[fmt]).view(torch.uint8)  # exact for values on the grid, and one pass
    magnitude = x.abs().contiguous()
    bits = magnitude.view(torch.int32)
    normal = (bits >> (23 - fmt.man_bits)) - ((127 - fmt.bias) << fmt.man_bits)
    subnormal = magnitude.mul(1 / fmt.min_subnormal).clamp_(max=1 << fmt.man_bits).to(torch.int32)
    code = torch.where(magnitude < 2.0**fmt.emin, subnormal, normal)
    if fmt.has_inf:
        code = torch.where(torch.isinf(x), ((1 << fmt.exp_bits) - 1) << fmt.man_bits, code)
    if fmt.has_nan:
        code = torch.where(torch.isnan(x), (1 << (fmt.bits - 1)) - 1, code)
    code = code | (torch.signbit(x).to(torch.int32) << (fmt.bits - 1))
    return code.to(torch.uint8)


def storage_dtype(fmt: FloatFormat) -> torch.dtype:
    """What codes of the format are kept in. Raises ValueError for a format that has no storage (9 to 15 bits and such)."""
    if fmt.bits <= 8:
        return torch.uint8
    shape = (fmt.exp_bits, fmt.man_bits, fmt.bias, fmt.has_inf)
    dtype = {(8, 23, 127, True): torch.float32, (8, 7, 127, True): torch.bfloat16, (5, 10, 15, True): torch.float16}.get(shape)
    if dtype is None:
        raise ValueError(f"codes of {fmt.name} ({fmt.bits} bits) have no storage type; formats of at most 8 bits have one")
    return dtype
