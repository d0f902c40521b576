"""Quantisation-aware training: values rounded onto a small grid in the forward pass, gradients passed straight through.

    Q(x) = s * round(x / s),   dQ/dx = 1 where |x| <= s * max of the grid, else 0

`FP4Linear` rounds its weights with one scale per group of inputs and its activations with one per token, s = max |x| of
what shares it / max of the grid, so that nothing is beyond. Grids: "e1m2", the 15 multiples of 1/4 up to 1.75, which is a
uniform grid; "e2m1", 0, 0.5, 1, 1.5, 2, 3, 4, 6.

Sources: Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons" (straight-through); Huang et al.,
"GradientStabilizer: Fix the Norm, Not the Gradient" (FP4 pre-training).
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor, nn

from components.lowprec.formats import FloatFormat, format_of, round_to

Grid = Literal["e1m2", "e2m1"]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, fmt: FloatFormat) -> Tensor:
        scaled = x / scale
        # The largest value, divided by its own scale, may exceed the grid by a rounding error.
        ctx.save_for_backward(scaled.abs() <= fmt.max_value * (1 + 1e-6))
        return round_to(scaled, fmt) * scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None


def fake_quantize(x: Tensor, scale: Tensor, fmt: str | FloatFormat = "e1m2") -> Tensor:
    """scale * round(x / scale) with straight-through gradients for x.

    Parameters
    ----------
    x : float32.   scale : float32, positive, broadcastable to x; it gets no gradient.   fmt : the grid.

    Raises ValueError for an unknown format, TypeError where x is not float32."""
    return _StraightThrough.apply(x, scale, format_of(fmt))


def _scale(amax: Tensor, fmt: FloatFormat) -> Tensor:
    """amax / max of the grid; 1 for zeros, whose scale does not matter."""
    return torch.where(amax > 0, amax / fmt.max_value, 1.0)


def quantize_groups(x: Tensor, fmt: str | FloatFormat, group: int) -> Tensor:
    """Fake quantisation of x (..., L) with one scale per `group` entries of the last dimension; the last group may be short.

    Raises ValueError for a group below 1."""
    if group < 1:
        raise ValueError(f"group must be at least 1, got {group}")
    fmt, length = format_of(fmt), x.shape[-1]
    if length <= group:
        return fake_quantize(x, _scale(x.detach().abs().amax(-1, keepdim=True), fmt), fmt)
    padded = nn.functional.pad(x, (0, -length % group)).unflatten(-1, (-1, group))
    scale = _scale(padded.detach().abs().amax(-1, keepdim=True), fmt)
    return fake_quantize(padded, scale, fmt).flatten(-2)[..., :length]


class FP4Linear(nn.Linear):
    """`nn.Linear` whose weights and inputs are rounded in the forward pass; the stored weights stay float32.

    Parameters
    ----------
    in_features, out_features, bias : of nn.Linear.
    grid : "e1m2" (default) or "e2m1".   group : weights along the input that share a scale, default 256.

    Raises ValueError for another grid or a group below 1."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, grid: Grid = "e1m2", group: int = 256) -> None:
        if grid not in ("e1m2", "e2m1"):
            raise ValueError(f"grid must be 'e1m2' or 'e2m1', got {grid!r}")
        if isinstance(group, bool) or not isinstance(group, int) or group < 1:
            raise ValueError(f"group must be a whole number of at least 1, got {group!r}")
        super().__init__(in_features, out_features, bias)
        self.grid, self.group = grid, group

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_features) float32 to (..., out_features)."""
        weight = quantize_groups(self.weight, self.grid, self.group)
        return nn.functional.linear(quantize_groups(x, self.grid, self.in_features), weight, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, grid={self.grid}, group={self.group}"


# A class for models that make their own linear layers: called as linear(n_in, n_out, bias=...).
FP4_LINEARS = {grid: functools.partial(FP4Linear, grid=grid) for grid in ("e1m2", "e2m1")}
