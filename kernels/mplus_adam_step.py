"""One step of M+Adam on quantised weights in one pass over memory: decode, update, choose scales, round, encode.

Per weight (mx, 8 bits, float32 moments, float32 gradient) the fused kernel reads 1 + 4 + 16 bytes and writes 1 + 16 + 4, the last
for the decoded weight that the model computes with; the same step as separate tensor operations passes over memory some
sixty times. A program takes a tile of blocks that lie along the last dimension, so that a shared scale needs no second pass.

`mplus_adam_step` is the public entry: the kernel on CUDA tensors (and, under Triton's interpreter, on the CPU); on the CPU
`mplus_adam_step_reference`, the definition in float64 and loops over nothing, which rounds by logarithms rather than by bits. The update is in `components.optim.mplus_adam`.

Source: Liang et al., "M+Adam: Low-Precision Training via Additive-Multiplicative Optimization"; OCP Microscaling Formats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.philox import philox_words


class Layout(NamedTuple):
    """A number format: widths, exponent bias, whether the top exponent is special, the largest value."""

    exp_bits: int
    man_bits: int
    bias: int
    max_value: float


LAYOUTS: dict[str, Layout] = {
    "fp32": Layout(8, 23, 127, torch.finfo(torch.float32).max),
    "bf16": Layout(8, 7, 127, torch.finfo(torch.bfloat16).max),
    "e4m3": Layout(4, 3, 7, 448.0),
    "e5m2": Layout(5, 2, 15, 57344.0),
    "e2m1": Layout(2, 1, 1, 6.0),
    "e1m2": Layout(1, 2, 1, 1.75),
}
SCALINGS = ("none", "mx", "mx_up")


class StepOptions(NamedTuple):
    """Step sizes, decay rates and the number of the step, 1 at the first."""

    lr: float
    lr_mult: float
    beta1: float
    beta2: float
    eps: float
    eps_mult: float
    weight_decay: float
    e_max: float
    t: int


def fused_formats(fmt: str, scaling: str) -> bool:
    """Whether the kernel does weights of this format and scaling."""
    return fmt in LAYOUTS and scaling in SCALINGS and (scaling == "none" or LAYOUTS[fmt].exp_bits < 8)


def _checked(codes, scale, grad, states, shown, fmt: str, scaling: str, block: int, rounding: str) -> tuple[int, int]:
    """(rows, length) of the weights; raises ValueError or TypeError."""
    if not fused_formats(fmt, scaling):
        raise ValueError(
            f"the kernel does formats {', '.join(LAYOUTS)} with scales {', '.join(SCALINGS)}, got {fmt}, {scaling}"
        )
    if rounding not in ("rne", "sr"):
        raise ValueError(f"rounding must be rne or sr, got {rounding!r}")
    if block not in (16, 32):
        raise ValueError(f"block must be 16 or 32, got {block}")
    length = shown.shape[-1] if shown.ndim else 1
    rows = shown.numel() // length if length else 0
    for name, x in {"grad": grad, "shown": shown, **{f"state {i}": s for i, s in enumerate(states)}}.items():
        if x.dtype != torch.float32 or x.shape != shown.shape:
            raise ValueError(f"{name} must be float32 of shape {tuple(shown.shape)}, got {x.dtype} of shape {tuple(x.shape)}")
    layout = LAYOUTS[fmt]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fmt, torch.uint8)
    width = (length + 1) // 2 if layout.exp_bits + layout.man_bits < 4 else length
    if codes.dtype != dtype or codes.numel() != rows * width:
        raise ValueError(f"codes of {fmt} must be {rows * width} of {dtype}, got {codes.numel()} of {codes.dtype}")
    if scaling != "none" and (scale is None or scale.dtype != torch.uint8 or scale.numel() != rows * -(-length // block)):
        raise ValueError(f"scale must be {rows * -(-length // block)} bytes for scaling={scaling!r}")
    for name, x in {"codes": codes, "scale": scale, "shown": shown, **{f"state {i}": s for i, s in enumerate(states)}}.items():
        if x is not None and not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous, it is changed in place")
    return rows, length


# --- the definition -------------------------------------------------------------------------------------------------


def round_reference(x: Tensor, layout: Layout, words: Tensor | None = None) -> Tensor:
    """q * round(x / q) in float64 by exponents from `frexp`, ties to even, or stochastic with `words`; float32 in and out."""
    emin = 1 - layout.bias
    y = x.double().clamp(-layout.max_value, layout.max_value)
    exponent = torch.where(y == 0, emin, (torch.frexp(y).exponent - 1).clamp(min=emin))
    quantum = torch.exp2((exponent - layout.man_bits).double())
    steps = y / quantum
    if words is None:
        rounded = torch.round(steps)
    elif layout.exp_bits == 8:
        # away from zero by the fraction of the magnitude, in 2^-16
        whole = torch.trunc(steps)
        up = (steps - whole).abs() * 65536 + (words >> 16) >= 65536
        rounded = whole + up * torch.sign(steps)
    else:
        whole = torch.floor(steps)
        rounded = whole + ((words >> 8).double() * 2.0**-24 < steps - whole)
    # -0.0 where a negative number rounds to zero
    return torch.copysign((rounded * quantum).clamp(-layout.max_value, layout.max_value), x.double()).float()


def _values(layout: Layout, device: torch.device) -> Tensor:
    """What each code stands for, NaN and infinity not among them."""
    code = torch.arange(1 << (1 + layout.exp_bits + layout.man_bits), device=device)
    mantissa, exponent = code & ((1 << layout.man_bits) - 1), (code >> layout.man_bits) & ((1 << layout.exp_bits) - 1)
    steps = mantissa + (exponent > 0) * (1 << layout.man_bits)
    power = torch.exp2((exponent.clamp(min=1) - layout.bias - layout.man_bits).double())
    return torch.where(code >> (layout.exp_bits + layout.man_bits) == 1, -1.0, 1.0) * steps * power


def _decode_reference(codes: Tensor, scale: Tensor | None, shape: tuple[int, int], fmt: str, block: int) -> Tensor:
    rows, length = shape
    if codes.dtype != torch.uint8:
        return codes.float().reshape(shape)
    layout = LAYOUTS[fmt]
    codes = codes.reshape(rows, -1).long()
    if layout.exp_bits + layout.man_bits < 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(rows, -1)[:, :length]
    values = _values(layout, codes.device)[codes]
    if scale is not None:
        values = values * torch.exp2(scale.double() - 127).reshape(rows, -1).repeat_interleave(block, 1)[:, :length]
    return values.float()


def _encode_reference(x: Tensor, fmt: str) -> Tensor:
    if fmt in ("fp32", "bf16"):
        return x.to(torch.float32 if fmt == "fp32" else torch.bfloat16)
    layout = LAYOUTS[fmt]
    half = 1 << (layout.exp_bits + layout.man_bits)
    magnitudes = _values(layout, x.device)[:half]
    code = torch.searchsorted(magnitudes[magnitudes <= layout.max_value].contiguous(), x.double().abs())
    code = (code + half * torch.signbit(x)).to(torch.uint8)
    if half > 8:
        return code
    code = torch.nn.functional.pad(code, (0, code.shape[-1] % 2))
    return code[..., 0::2] + 16 * code[..., 1::2]


def mplus_adam_step_reference(
    codes,
    scale,
    grad,
    exp_avg,
    exp_avg_sq,
    exp_avg_e,
    exp_avg_sq_e,
    shown,
    *,
    fmt,
    scaling,
    block=32,
    rounding="rne",
    key=0,
    options,
):
    """The definition in plain torch; same arguments, effects and errors as `mplus_adam_step`."""
    states = (exp_avg, exp_avg_sq, exp_avg_e, exp_avg_sq_e)
    rows, length = _checked(codes, scale, grad, states, shown, fmt, scaling, block, rounding)
    if rows * length == 0:
        return
    layout, o = LAYOUTS[fmt], options
    w = _decode_reference(codes, scale, (rows, length), fmt, block).reshape(shown.shape)

    def direction(g: Tensor, first: Tensor, second: Tensor, eps: float) -> Tensor:
        first.copy_(first + (1 - o.beta1) * (g - first))
        second.copy_(o.beta2 * second + (1 - o.beta2) * (g * g))
        return first / (second.sqrt() / math.sqrt(1 - o.beta2**o.t) + eps) / (1 - o.beta1**o.t)

    additive = direction(grad, exp_avg, exp_avg_sq, o.eps) * -o.lr
    d = direction(w * grad * math.log(2.0), exp_avg_e, exp_avg_sq_e, o.eps_mult) * -o.lr_mult
    new = w * (1 - o.lr * o.weight_decay) + (additive + w * (torch.exp2(d.clamp(-o.e_max, o.e_max)) - 1))
    new = new.reshape(rows, length)
    words = philox_words(key, new.numel(), new.device).reshape(new.shape) if rounding == "sr" else None
    s = torch.ones((), dtype=torch.float64, device=new.device)
    if scaling != "none":
        blocks = torch.nn.functional.pad(new, (0, -length % block)).reshape(rows, -1, block)
        amax = blocks.abs().amax(-1).double()
        top = math.floor(math.log2(layout.max_value))
        mantissa, exponent = torch.frexp(amax)
        power = exponent - 1 - top
        if scaling == "mx_up":
            power = power + (2 * mantissa > layout.max_value / 2.0**top)
        byte = torch.where(amax == 0, 127, (power + 127).clamp(0, 254))
        scale.copy_(byte.reshape(scale.shape))
        s = torch.exp2(byte.double() - 127).repeat_interleave(block, 1)[:, :length]
    rounded = round_reference((new.double() / s).float(), layout, words)
    codes.copy_(_encode_reference(rounded, fmt).reshape(codes.shape))
    shown.copy_((rounded.double() * s).float().reshape(shown.shape))


# --- the kernel -----------------------------------------------------------------------------------------------------


@triton.jit
def _power(byte):
    """2^(byte - 127) as float32; 2^-127, which is subnormal, for 0."""
    return tl.where(byte > 0, byte << 23, 0x00400000).to(tl.float32, bitcast=True)


@triton.jit
def _direction(g, first_ptr, second_ptr, at, mask, take1, beta2, take2, root2, eps, factor):
    first = tl.load(first_ptr + at, mask=mask, other=0.0)
    second = tl.load(second_ptr + at, mask=mask, other=0.0)
    first = first + take1 * (g - first)
    second = second * beta2 + take2 * (g * g)
    tl.store(first_ptr + at, first, mask=mask)
    tl.store(second_ptr + at, second, mask=mask)
    return tl.div_rn(first, tl.div_rn(tl.sqrt_rn(second), root2) + eps) * factor


@triton.jit
def _step_kernel(
    codes_ptr,
    scale_ptr,
    grad_ptr,
    m_ptr,
    v_ptr,
    me_ptr,
    ve_ptr,
    shown_ptr,
    key,
    rows,
    length,
    per_row,
    take1,
    beta2,
    take2,
    root2,
    eps,
    eps_mult,
    factor,
    factor_mult,
    keep,
    e_max,
    EXP: tl.constexpr,
    MAN: tl.constexpr,
    BIAS: tl.constexpr,
    LARGEST: tl.constexpr,
    TOP: tl.constexpr,  # exponent of the largest value
    TOP_BITS: tl.constexpr,  # its mantissa, as float32 has it
    SCALED: tl.constexpr,
    SATURATE: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # blocks in a tile
):
    PACKED: tl.constexpr = EXP + MAN < 4
    WIDE: tl.constexpr = EXP == 8
    block = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = block // per_row
    column = (block % per_row)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = block < rows * per_row
    mask = exists[:, None] & (column < length)
    at = row[:, None] * length + column

    # decode
    if MAN == 23:
        w = tl.load(codes_ptr + at, mask=mask, other=0.0)
    elif WIDE:
        w = tl.load(codes_ptr + at, mask=mask, other=0.0).to(tl.float32)
    else:
        if PACKED:
            byte = tl.load(codes_ptr + row[:, None] * ((length + 1) // 2) + column // 2, mask=mask, other=0).to(tl.int32)
            code = (byte >> ((column % 2) * 4).to(tl.int32)) & 15
        else:
            code = tl.load(codes_ptr + at, mask=mask, other=0).to(tl.int32)
        exponent = (code >> MAN) & ((1 << EXP) - 1)
        mantissa = code & ((1 << MAN) - 1)
        normal = (((exponent + (127 - BIAS)) << 23) | (mantissa << (23 - MAN))).to(tl.float32, bitcast=True)
        least = ((1 - BIAS - MAN + 127) << 23) + tl.zeros_like(code)
        magnitude = tl.where(exponent > 0, normal, mantissa.to(tl.float32) * least.to(tl.float32, bitcast=True))
        sign = (code >> (EXP + MAN)) << 31
        w = (magnitude.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
        if SCALED:
            old = tl.load(scale_ptr + block, mask=exists, other=127).to(tl.int32)
            w = w * _power(old)[:, None]

    # update
    g = tl.load(grad_ptr + at, mask=mask, other=0.0)
    additive = _direction(g, m_ptr, v_ptr, at, mask, take1, beta2, take2, root2, eps, factor)
    ge = w * g * 0.6931471805599453
    d = _direction(ge, me_ptr, ve_ptr, at, mask, take1, beta2, take2, root2, eps_mult, factor_mult)
    d = tl.minimum(tl.maximum(d, -e_max), e_max)
    new = w * keep + (additive + w * (tl.exp2(d) - 1.0))
    new = tl.where(mask, new, 0.0)

    # scale
    power = 127 + tl.zeros_like(row).to(tl.int32)
    y = new
    if SCALED:
        bits = tl.max(tl.abs(new), axis=1).to(tl.int32, bitcast=True)
        power = (bits >> 23) - TOP
        if not SATURATE:
            power += tl.where((bits & 0x7FFFFF) > TOP_BITS, 1, 0)
        power = tl.where(bits == 0, 127, tl.minimum(tl.maximum(power, 0), 254))
        tl.store(scale_ptr + block, power.to(tl.uint8), mask=exists)
        y = new * _power(254 - power)[:, None]

    # round
    negative = y.to(tl.int32, bitcast=True) & (-2147483648)
    y = tl.minimum(tl.maximum(y, -LARGEST), LARGEST)
    if STOCHASTIC:
        a, b, c, e = tl.randint4x(key, at // 4)
        lane = at % 4
        word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, e))).to(tl.uint32, bitcast=True)
    bits = y.to(tl.int32, bitcast=True)
    if MAN == 23:
        rounded = y
    elif WIDE:
        carry = (word >> (9 + MAN)).to(tl.int32) if STOCHASTIC else ((bits >> (23 - MAN)) & 1) + ((1 << (22 - MAN)) - 1)
        bits = bits + carry
        rounded = (bits & (-(1 << (23 - MAN)))).to(tl.float32, bitcast=True)
    else:
        binade = tl.maximum(bits & 0x7F800000, (128 - BIAS) << 23)
        if STOCHASTIC:
            quantum = (binade - (MAN << 23)).to(tl.float32, bitcast=True)
            inverse = ((254 << 23) - (binade - (MAN << 23))).to(tl.float32, bitcast=True)
            steps = y * inverse
            below = tl.floor(steps)
            uniform = (word >> 8).to(tl.float32) * 5.9604644775390625e-08
            rounded = (below + tl.where(uniform < steps - below, 1.0, 0.0)) * quantum
        else:
            # 1.5 * 2^23 quanta: the sum's last bit is worth one quantum
            magic = (binade + ((23 - MAN) << 23)).to(tl.float32, bitcast=True) * 1.5
            rounded = (y + magic) - magic
    size = rounded.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    rounded = (size | negative).to(tl.float32, bitcast=True)

    # encode
    if MAN == 23:
        tl.store(codes_ptr + at, rounded, mask=mask)
    elif WIDE:
        tl.store(codes_ptr + at, rounded.to(tl.bfloat16), mask=mask)
    else:
        small = tl.minimum(tl.abs(rounded) * (1 << (BIAS + MAN - 1)), 1.0 * (1 << MAN)).to(tl.int32)
        code = tl.where(size < ((128 - BIAS) << 23), small, (size >> (23 - MAN)) - ((127 - BIAS) << MAN))
        code = code | tl.where(negative != 0, 1 << (EXP + MAN), 0)
        if PACKED:
            code = tl.where(mask, code, 0) << ((column % 2) * 4).to(tl.int32)
            pairs = tl.sum(tl.reshape(code, (TILE, BLOCK // 2, 2)), axis=2)
            place = (block % per_row)[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
            here = exists[:, None] & (place < (length + 1) // 2)
            tl.store(codes_ptr + row[:, None] * ((length + 1) // 2) + place, pairs.to(tl.uint8), mask=here)
        else:
            tl.store(codes_ptr + at, code.to(tl.uint8), mask=mask)
    if SCALED:
        rounded = rounded * _power(power)[:, None]
    tl.store(shown_ptr + at, rounded, mask=mask)


def mplus_adam_step(
    codes: Tensor,
    scale: Tensor | None,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    exp_avg_e: Tensor,
    exp_avg_sq_e: Tensor,
    shown: Tensor,
    *,
    fmt: str,
    scaling: str,
    block: int = 32,
    rounding: str = "rne",
    key: int = 0,
    options: StepOptions,
    tile_elements: int = 1024,
    num_warps: int = 4,
) -> None:
    """One fused step, in place, for a tensor of shape (..., L).

    Parameters
    ----------
    codes : contiguous; uint8 of shape (..., L), or (..., ceil(L / 2)) for formats of 4 bits (even position in the low half);
        bfloat16 or float32 for "bf16" and "fp32".
    scale : (..., ceil(L / block)) uint8, s = 2^(byte - 127); None for scaling="none".
    grad : float32 of the weights' shape.
    exp_avg, exp_avg_sq, exp_avg_e, exp_avg_sq_e : the moments, contiguous float32 of the weights' shape.
    shown : the decoded weights, float32, written.
    fmt, scaling, block, rounding : names in LAYOUTS and SCALINGS; 16 or 32; "rne" or "sr".
    key : of the random words of "sr", in [0, 2^63).
    tile_elements, num_warps : 512 to 4096 weights a program, and its warps.

    Raises
    ------
    ValueError : shapes, dtypes or names that do not fit together.
    """
    states = (exp_avg, exp_avg_sq, exp_avg_e, exp_avg_sq_e)
    rows, length = _checked(codes, scale, grad, states, shown, fmt, scaling, block, rounding)
    if rows * length == 0:
        return
    if not codes.is_cuda and isinstance(_step_kernel, triton.runtime.JITFunction):
        names = {"fmt": fmt, "scaling": scaling, "block": block, "rounding": rounding, "key": key, "options": options}
        mplus_adam_step_reference(codes, scale, grad, *states, shown, **names)
        return
    layout, o = LAYOUTS[fmt], options
    mantissa, exponent = math.frexp(layout.max_value)
    per_row = -(-length // block)
    tile = max(tile_elements // block, 1)
    _step_kernel[(triton.cdiv(rows * per_row, tile),)](
        codes,
        codes if scale is None else scale,
        grad.contiguous(),
        *states,
        shown,
        key,
        rows,
        length,
        per_row,
        1 - o.beta1,
        o.beta2,
        1 - o.beta2,
        math.sqrt(1 - o.beta2**o.t),
        o.eps,
        o.eps_mult,
        -o.lr / (1 - o.beta1**o.t),
        -o.lr_mult / (1 - o.beta1**o.t),
        1 - o.lr * o.weight_decay,
        o.e_max,
        EXP=layout.exp_bits,
        MAN=layout.man_bits,
        BIAS=layout.bias,
        LARGEST=layout.max_value,
        TOP=exponent - 1,
        TOP_BITS=int((2 * mantissa - 1) * 2**23),
        SCALED=scaling != "none",
        SATURATE=scaling == "mx",
        STOCHASTIC=rounding == "sr",
        BLOCK=block,
        TILE=tile,
        num_warps=num_warps,
        # a fused multiply-add would round once where the definition rounds twice
        enable_fp_fusion=False,
    )
