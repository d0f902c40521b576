"""Quaternion layers: a real layer whose matrix is made of four blocks, so a quarter of the parameters.

A weight W = (W_r, W_x, W_y, W_z) acts on quaternion features by the Hamilton product, which is the real block matrix
    [[W_r, -W_x, -W_y, -W_z], [W_x, W_r, -W_z, W_y], [W_y, W_z, W_r, -W_x], [W_z, -W_y, W_x, W_r]].
Linear layers, norms and feed-forward blocks take (..., 4, n); convolutions take (B, 4 n, ...), component-major, the real layout
with all r channels first; `to_channels` and `from_channels` go between them.

Source: Gaudet & Maida, "Deep Quaternion Networks"; Parcollet et al., "Quaternion Recurrent Neural Networks" (initialisation).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.quaternion.ops import check_components

Init = Literal["he", "glorot"]


def check_whole(**numbers: int) -> None:
    """Raise ValueError unless every number is a whole number of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_features(x: Tensor, n: int, name: str = "x") -> None:
    """Raise TypeError unless `x` is real floating point, ValueError unless its last axes are (4, n)."""
    if not x.is_floating_point():
        raise TypeError(f"{name} must be a real floating point tensor, got {x.dtype}")
    if x.shape[-2:] != (4, n):
        raise ValueError(f"{name} must have shape (..., 4, {n}), got {tuple(x.shape)}")


def to_channels(x: Tensor) -> Tensor:
    """(B, ..., 4, n) to (B, 4 n, ...), component-major."""
    check_components("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have shape (B, ..., 4, n), got {tuple(x.shape)}")
    return x.flatten(-2).movedim(-1, 1)


def from_channels(x: Tensor) -> Tensor:
    """(B, 4 n, ...) to (B, ..., 4, n), the inverse of `to_channels`."""
    if x.ndim < 2 or x.shape[1] % 4 or x.shape[1] == 0:
        raise ValueError(f"x must have shape (B, 4 n, ...) with a multiple of 4 channels, got {tuple(x.shape)}")
    return x.movedim(1, -1).unflatten(-1, (4, x.shape[1] // 4))


def quaternion_init_(weight: Tensor, fan_in: int, fan_out: int, init: Init = "he") -> Tensor:
    """Fill `weight` (4, ...) in place with random quaternions and return it; torch's global generator.

    Modulus sigma chi(4), sigma = 1 / sqrt(2 fan_in) for "he" and 1 / sqrt(2 (fan_in + fan_out)) for "glorot"; the imaginary axis
    uniform on the sphere, the phase uniform in (-pi, pi). The fans count quaternions. Raises ValueError for another `init`."""
    if init not in ("he", "glorot"):
        raise ValueError(f"init must be 'he' or 'glorot', got {init!r}")
    sigma = 1 / math.sqrt(2 * (fan_in if init == "he" else fan_in + fan_out))
    with torch.no_grad():
        modulus = sigma * torch.randn_like(weight).norm(dim=0)
        axis = F.normalize(torch.randn_like(weight[1:]), dim=0)
        phase = (2 * torch.rand_like(modulus) - 1) * math.pi
        weight[0] = modulus * phase.cos()
        weight[1:] = modulus * phase.sin() * axis
    return weight


def block_matrix(weight: Tensor, conjugate: bool = False) -> Tensor:
    """The real weight (4 a, 4 b, ...) of a quaternion weight (4, a, b, ...), of its conjugate where asked."""
    r, x, y, z = weight.unbind(0)
    i, j, k = -x, -y, -z
    if conjugate:
        x, y, z, i, j, k = i, j, k, x, y, z
    rows = (r, i, j, k), (x, r, k, y), (y, z, r, i), (z, j, x, r)
    return torch.cat([torch.cat(row, 1) for row in rows])


class QuaternionLinear(nn.Module):
    """y = W x + b by Hamilton products: (..., 4, n_in) to (..., 4, n_out), one real matmul.

    Parameters
    ----------
    n_in, n_out : quaternion features, at least 1.
    bias : whether b (4, n_out) is added, zeros at the start.
    init : "he" (default) or "glorot", see `quaternion_init_`.

    weight : (4, n_out, n_in). Raises ValueError for sizes below 1 or another shape of x, TypeError for x of integers.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, init: Init = "he") -> None:
        super().__init__()
        check_whole(n_in=n_in, n_out=n_out)
        self.n_in, self.n_out = n_in, n_out
        self.weight = nn.Parameter(quaternion_init_(torch.empty(4, n_out, n_in), n_in, n_out, init))
        self.bias = nn.Parameter(torch.zeros(4, n_out)) if bias else None

    def matrix(self) -> Tensor:
        """The real matrix (4 n_out, 4 n_in)."""
        return block_matrix(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        check_features(x, self.n_in)
        bias = None if self.bias is None else self.bias.flatten()
        return F.linear(x.flatten(-2), self.matrix(), bias).unflatten(-1, (4, self.n_out))

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_out}, bias={self.bias is not None}"


def _sizes(name: str, value: int | tuple[int, ...], dims: int, least: int) -> tuple[int, ...]:
    sizes = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(sizes) != dims or any(isinstance(s, bool) or not isinstance(s, int) or s < least for s in sizes):
        raise ValueError(f"{name} must be a whole number of at least {least}, or {dims} of them, got {value!r}")
    return sizes


class _QuaternionConv(nn.Module):
    """What the convolutions share: weight (4, n_out, n_in / groups, *kernel), (4, n_in, n_out, *kernel) when transposed."""

    dims = 2
    transposed = False

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        init: Init = "he",
    ) -> None:
        super().__init__()
        check_whole(n_in=n_in, n_out=n_out, groups=groups)
        if n_in % groups or n_out % groups:
            raise ValueError(f"n_in and n_out must be multiples of groups = {groups}, got {n_in} and {n_out}")
        self.n_in, self.n_out, self.groups = n_in, n_out, groups
        self.kernel_size = _sizes("kernel_size", kernel_size, self.dims, 1)
        self.stride = _sizes("stride", stride, self.dims, 1)
        self.padding = _sizes("padding", padding, self.dims, 0)
        self.dilation = _sizes("dilation", dilation, self.dims, 1)
        pair = (n_in, n_out) if self.transposed else (n_out, n_in // groups)
        field = math.prod(self.kernel_size)
        weight = torch.empty(4, *pair, *self.kernel_size)
        self.weight = nn.Parameter(quaternion_init_(weight, n_in // groups * field, n_out // groups * field, init))
        self.bias = nn.Parameter(torch.zeros(4, n_out)) if bias else None

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise TypeError(f"x must be a real floating point tensor, got {x.dtype}")
        if x.ndim != self.dims + 2 or x.shape[1] != 4 * self.n_in:
            axes = ", ".join("TF" if self.dims == 2 else "T")
            raise ValueError(f"x must have shape (B, {4 * self.n_in}, {axes}), got {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        bias = None if self.bias is None else self.bias.flatten()
        convolve = F.conv1d if self.dims == 1 else F.conv2d
        if self.groups == 1:
            return convolve(x, block_matrix(self.weight), bias, self.stride, self.padding, self.dilation)
        # torch wants the channels of a group side by side
        x = x.unflatten(1, (4, self.groups, -1)).transpose(1, 2).flatten(1, 3)
        parts = [block_matrix(part) for part in self.weight.chunk(self.groups, 1)]
        y = convolve(x, torch.cat(parts), None, self.stride, self.padding, self.dilation, self.groups)
        y = y.unflatten(1, (self.groups, 4, -1)).transpose(1, 2).flatten(1, 3)
        return y if bias is None else y + bias.view(-1, *(1,) * self.dims)

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_out}, kernel_size={self.kernel_size}, stride={self.stride}, groups={self.groups}"


class QuaternionConv1d(_QuaternionConv):
    """Convolution (B, 4 n_in, T) to (B, 4 n_out, T'), each tap a Hamilton product; component-major channels.

    Parameters
    ----------
    n_in, n_out : quaternion features. groups : divides both; `groups=n_in` convolves each quaternion feature alone.
    kernel_size, stride, padding, dilation : as in `torch.nn.Conv1d`.
    bias, init : as in `QuaternionLinear`; the fans count the taps.

    Raises ValueError for sizes or shapes that do not fit, TypeError for x of integers.
    """

    dims = 1


class QuaternionConv2d(_QuaternionConv):
    """Convolution (B, 4 n_in, T, F) to (B, 4 n_out, T', F'); parameters and errors as for `QuaternionConv1d`."""


class QuaternionConvTranspose2d(_QuaternionConv):
    """Transposed convolution (B, 4 n_in, T, F) to (B, 4 n_out, T', F'), T' = (T - 1) stride - 2 padding + kernel + output_padding.

    Parameters and errors as for `QuaternionConv1d`, without groups and dilation; output_padding below the stride, default 0.
    """

    transposed = True

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        bias: bool = True,
        init: Init = "he",
    ) -> None:
        super().__init__(n_in, n_out, kernel_size, stride, padding, bias=bias, init=init)
        self.output_padding = _sizes("output_padding", output_padding, 2, 0)
        if any(extra >= step for extra, step in zip(self.output_padding, self.stride, strict=True)):
            raise ValueError(f"output_padding must be below the stride {self.stride}, got {self.output_padding}")

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        bias = None if self.bias is None else self.bias.flatten()
        # torch stores this weight input first, so the block matrix is transposed: L(w)^T = L(conj w)
        weight = block_matrix(self.weight, conjugate=True)
        return F.conv_transpose2d(x, weight, bias, self.stride, self.padding, self.output_padding)


class QuaternionRMSNorm(nn.Module):
    """q / sqrt(mean_c q_c^2 + eps) * gain[n], per quaternion, on (..., 4, n); it commutes with rotations of the quaternions.

    eps : default 1e-6. float16 and bfloat16 are normalised in float32. Raises ValueError for n < 1, eps <= 0, another shape.
    """

    def __init__(self, n: int, eps: float = 1e-6) -> None:
        super().__init__()
        check_whole(n=n)
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        self.n, self.eps = n, eps
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        check_features(x, self.n)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scale = torch.rsqrt(wide.square().mean(-2, keepdim=True) + self.eps)
        return (wide * (scale * self.gain)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.n}, eps={self.eps}"


class QuaternionFeedForward(nn.Module):
    """Quaternion linear to mult n, SiLU on every component, dropout, quaternion linear back to n; (..., 4, n) to the same.

    mult : default 2. dropout : in [0, 1), default 0. Raises ValueError for sizes or shapes that do not fit.
    """

    def __init__(self, n: int, mult: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        check_whole(n=n, mult=mult)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.expand = QuaternionLinear(n, mult * n)
        self.dropout = nn.Dropout(dropout)
        self.reduce = QuaternionLinear(mult * n, n, init="glorot")

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.dropout(F.silu(self.expand(x))))
