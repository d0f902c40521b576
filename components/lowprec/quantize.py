"""Tensors stored as codes of a small format with shared scales:  Q(x) = s * round(x / s).

How s is chosen (`scaling`), with amax the largest magnitude of what shares it and max_F, emax those of the format:

    none     s = 1
    tensor   one s = 2^ceil(log2(amax / max_F)) for the tensor
    mx       per block of 32 along the last dimension, s = 2^(floor(log2 amax) - emax); amax may saturate (OCP Microscaling)
    mx_up    per block, s = 2^ceil(log2(amax / max_F)): nothing saturates
    nvfp4    per block of 16, s = round_e4m3(amax / (max_F t)) * t with one t = amax_tensor / (max_F 448) for the tensor

A block of zeros has s = 1. Power-of-two scales are bytes (E8M0, s = 2^(byte - 127)): dividing by them is exact, so quantising
a tensor that did not change gives the same codes, while a float scale that is computed anew moves every weight a little.
Codes of at most four bits lie two to a byte along the last dimension, the even position in the low half.

Sources: OCP Microscaling Formats (MX) Specification v1.0; NVFP4 as described by its vendor.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from components.lowprec.formats import (
    FORMATS,
    FloatFormat,
    Rounding,
    check_float32,
    decode,
    decoding_table,
    encode_unchecked,
    format_of,
    half_ulp,
    look_up,
    round_to,
)

Scaling = Literal["none", "tensor", "mx", "mx_up", "nvfp4"]
SCALINGS: tuple[str, ...] = ("none", "tensor", "mx", "mx_up", "nvfp4")
BLOCKS = {"mx": (16, 32), "mx_up": (16, 32), "nvfp4": (16, 32)}  # sizes allowed where scales are shared by blocks


@dataclass(frozen=True)
class QTensor:
    """A quantised tensor.

    Attributes
    ----------
    codes : (..., L) uint8 or bfloat16 / float16 / float32; (..., ceil(L / 2)) uint8 for formats of at most four bits.
    scale : None; a uint8 scalar ("tensor"); (..., ceil(L / block)) uint8 (E8M0, or for "nvfp4" codes of E4M3).
    tensor_scale : float32 scalar of "nvfp4", else None.
    shape, fmt, scaling, block : what the codes mean; `block` is 0 where no block shares a scale.
    """

    codes: Tensor
    scale: Tensor | None
    tensor_scale: Tensor | None
    shape: torch.Size
    fmt: FloatFormat
    scaling: str
    block: int

    def dequantize(self) -> Tensor:
        """The values, float32 of the original shape."""
        codes = unpack_fp4(self.codes, self.shape[-1] if self.shape else 1) if self.fmt.bits <= 4 else self.codes
        if codes.dtype == torch.uint8:
            values = look_up(decoding_table(self.fmt).to(codes.device), codes)
        else:
            values = decode(codes, self.fmt)
        if self.scaling != "none":
            values = _by_block(values, self.scales(), self.block, torch.mul)
        return values.reshape(self.shape)

    def scales(self) -> Tensor:
        """The scales as float32 numbers: a scalar, or (..., ceil(L / block))."""
        if self.scale is None:
            return torch.ones((), device=self.codes.device)
        if self.scaling == "nvfp4":
            return decode(self.scale, "e4m3") * self.tensor_scale
        return _powers(self.scale.device)[self.scale.int()]

    def half_ulp(self) -> Tensor:
        """Half the distance between neighbours at each value: the most by which rounding to nearest can be off."""
        values = self.dequantize().reshape(_rows(self.shape))
        scales = self.scales()
        steps = half_ulp(_by_block(values, scales, self.block, torch.div), self.fmt)
        return _by_block(steps, scales, self.block, torch.mul).reshape(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        parts = (self.codes, self.scale, self.tensor_scale)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


def pack_fp4(codes: Tensor) -> Tensor:
    """Two 4-bit codes a byte along the last dimension, the even position in the low half; an odd last one stands alone.

    `codes`: (..., L) uint8 below 16. Returns (..., ceil(L / 2)) uint8. Raises TypeError, ValueError for anything else.
    """
    if codes.dtype != torch.uint8:
        raise TypeError(f"4-bit codes are uint8, got {codes.dtype}")
    if codes.ndim == 0 or (codes.numel() and int(codes.max()) > 15):
        raise ValueError("4-bit codes are numbers below 16 in a tensor of at least one dimension")
    return _pack(codes)


def _pack(codes: Tensor) -> Tensor:
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_fp4(packed: Tensor, length: int) -> Tensor:
    """The inverse of `pack_fp4` for a last dimension of `length`. Raises ValueError where that does not fit the bytes."""
    if packed.dtype != torch.uint8 or packed.ndim == 0 or packed.shape[-1] != (length + 1) // 2:
        raise ValueError(
            f"{length} codes of 4 bits take {(length + 1) // 2} bytes of uint8 along the last dimension, "
            f"got {packed.dtype} of shape {tuple(packed.shape)}"
        )
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)[..., :length]


def check_scaling(fmt: FloatFormat, scaling: str, block: int) -> None:
    """Raise ValueError for an unknown scaling, a block size that it does not allow, or a scaling the format has no use for."""
    if scaling not in SCALINGS:
        raise ValueError(f"scale must be one of {', '.join(SCALINGS)}, got {scaling!r}")
    if scaling in BLOCKS and block not in BLOCKS[scaling]:
        raise ValueError(f"block must be 16 or 32 for scale={scaling!r}, got {block!r}")
    if scaling == "nvfp4" and fmt.bits > 4:
        raise ValueError(f"scale='nvfp4' is for formats of 4 bits, {fmt.name} has {fmt.bits}; use 'mx'")
    if scaling != "none" and fmt.bits > 8:
        raise ValueError(f"{fmt.name} has the range it needs: use scale='none', not {scaling!r}")


def quantize(
    x: Tensor,
    fmt: str | FloatFormat,
    scale: Scaling = "mx",
    block: int = 32,
    mode: Rounding = "rne",
    *,
    generator: torch.Generator | None = None,
    words: Tensor | None = None,
    prev: QTensor | None = None,
) -> QTensor:
    """Choose scales and round.

    Parameters
    ----------
    x : finite float32 tensor of any shape; blocks run along its last dimension, the last one may be short.
    fmt, mode, generator, words : as for `round_to`.
    scale, block : as above; `block` is 16 or 32 and is not looked at for "none" and "tensor".
    prev : an earlier quantisation of the same shape, for hysteresis: a power-of-two scale is kept while
        max_F / 4 < amax / s <= max_F.

    Raises
    ------
    ValueError : unknown names, a block that is not 16 or 32; x not finite; values beyond the largest one with scale="none" of
        a format of at most 8 bits; `prev` of another shape or kind, or with "nvfp4".
    TypeError : x is not float32.
    """
    fmt = format_of(fmt)
    check_float32(x)
    check_scaling(fmt, scale, block)
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite, but it holds NaN or infinity")
    if scale == "none" and fmt.bits <= 8 and x.numel() and float(x.abs().max()) > fmt.max_value:
        raise ValueError(
            f"x reaches {float(x.abs().max()):g}, the largest value of {fmt.name} is {fmt.max_value:g}: share scales, "
            "for instance scale='mx'"
        )
    if prev is not None and (prev.shape, prev.fmt, prev.scaling) != (x.shape, fmt, scale):
        raise ValueError(
            f"prev is {prev.fmt.name}, {prev.scaling}, {tuple(prev.shape)}; x wants {fmt.name}, {scale}, {tuple(x.shape)}"
        )
    if prev is not None and scale in ("none", "nvfp4"):
        raise ValueError(f"prev is for power-of-two scales, not for scale={scale!r}")
    return quantize_unchecked(x, fmt, scale, block, mode, words=words, generator=generator, prev=prev)


def quantize_unchecked(
    x: Tensor,
    fmt: FloatFormat,
    scaling: str,
    block: int,
    mode: str,
    *,
    words: Tensor | None = None,
    generator: torch.Generator | None = None,
    prev: QTensor | None = None,
) -> QTensor:
    """`quantize` without its checks, for a step of an optimiser whose arguments were checked once; x saturates."""
    shape, rows = x.shape, x.reshape(_rows(x.shape))
    words = words.reshape(rows.shape) if words is not None else None
    block = block if scaling in BLOCKS else 0
    byte = tensor_scale = None
    if scaling == "nvfp4":
        # t may be a subnormal number of float32, or 0 for a tensor of zeros
        tensor_scale = rows.abs().amax() / (fmt.max_value * FORMATS["e4m3"].max_value) if rows.numel() else x.new_zeros(())
        tensor_scale = torch.where(tensor_scale == 0, 1.0, tensor_scale)
        amax = _block_amax(rows, block)
        byte = encode_unchecked(round_to(amax / (fmt.max_value * tensor_scale), "e4m3"), FORMATS["e4m3"])
        # Beside the tensor's largest a block's scale may round to 0; the smallest positive one (code 1) still serves it.
        byte = torch.where(amax == 0, encode_unchecked(torch.ones_like(amax), FORMATS["e4m3"]), byte.clamp_(min=1))
        scales = decode(byte, "e4m3") * tensor_scale
        scaled = _by_block(rows, scales, block, torch.div)
    elif scaling != "none":
        amax = _block_amax(rows, block) if block else (rows.abs().amax() if rows.numel() else x.new_zeros(()))
        byte = _power_of_two_scale(amax, fmt, saturate=scaling == "mx")
        if prev is not None:
            ratio = amax * _powers(x.device).flip(0)[prev.scale.int()]
            byte = torch.where((ratio > fmt.max_value / 4) & (ratio <= fmt.max_value), prev.scale, byte)
        # 254 - byte is the inverse power: a product where a quotient would be slow
        scaled = _by_block(rows, _powers(x.device)[254 - byte.int()], block, torch.mul)
    else:
        scaled = rows
    codes = encode_unchecked(round_to(scaled, fmt, mode, words=words, generator=generator), fmt)
    codes = _pack(codes) if fmt.bits <= 4 else codes.reshape(shape)
    return QTensor(codes, byte, tensor_scale, shape, fmt, scaling, block)


def _rows(shape: torch.Size) -> tuple[int, ...]:
    """The shape with at least one dimension."""
    return tuple(shape) or (1,)


def _block_amax(rows: Tensor, block: int) -> Tensor:
    padding = -rows.shape[-1] % block
    magnitude = rows.abs()
    if padding:
        magnitude = torch.nn.functional.pad(magnitude, (0, padding))
    return magnitude.unflatten(-1, (-1, block)).amax(-1) if magnitude.shape[-1] else magnitude.new_zeros((*rows.shape[:-1], 0))


def _by_block(x: Tensor, scales: Tensor, block: int, operation) -> Tensor:
    """`operation(x, scale of its block)`; scales (..., ceil(L / block)), or a scalar where block is 0."""
    if block == 0 or x.shape[-1] == 0:
        return operation(x, scales) if block == 0 else x
    length = x.shape[-1]
    if length % block == 0:
        return operation(x.unflatten(-1, (-1, block)), scales.unsqueeze(-1)).flatten(-2)
    return operation(x, scales.repeat_interleave(block, dim=-1)[..., :length])


@functools.cache
def _power_table() -> Tensor:
    return torch.tensor([math.ldexp(1.0, byte - 127) for byte in range(255)])


def _powers(device: torch.device) -> Tensor:
    """2^(byte - 127) for the bytes 0 to 254."""
    return _power_table().to(device)


def _power_of_two_scale(amax: Tensor, fmt: FloatFormat, saturate: bool) -> Tensor:
    """E8M0 bytes: 2^(floor(log2 amax) - emax), or with saturate=False the least power with amax <= max_F * s; 1 for 0.

    From exponents and mantissas, since a logarithm may round across a power of two."""
    mantissa, exponent = torch.frexp(amax)
    if saturate:
        power = exponent - 1 - fmt.emax
    else:
        top_mantissa, top_exponent = math.frexp(fmt.max_value)
        power = exponent - top_exponent + (mantissa > top_mantissa).int()
    return torch.where(amax == 0, 127, (power + 127).clamp_(0, 254)).to(torch.uint8)


def with_scales_of(q: QTensor, x: Tensor, mode: Rounding = "rne") -> QTensor:
    """Round x with the scales that q has already. Shapes must agree (ValueError)."""
    if x.shape != q.shape:
        raise ValueError(f"x must have q's shape {tuple(q.shape)}, got {tuple(x.shape)}")
    check_float32(x)
    scaled = _by_block(x.reshape(_rows(x.shape)), q.scales(), q.block, torch.div)
    codes = encode_unchecked(round_to(scaled, q.fmt, mode), q.fmt)
    return replace(q, codes=_pack(codes) if q.fmt.bits <= 4 else codes.reshape(q.shape))
