"""Clipping, the usual guards against large gradients, as gradient transforms: by norm, by value, by unit, by z-score.

Unlike `GradientStabilizer` they follow their sources for gradients that are not finite: what comes out is not finite either
(only the statistics of ZClip ignore such steps). Nothing is read by the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from components.optim.gradient_transforms import (
    GradientTransform,
    TransformReport,
    dense_gradients,
    empty_report,
    gradient_norms,
    multiply,
    number_within,
    report_of,
)


def _positive(name: str, value: float) -> float:
    return number_within(name, value, 0, math.inf, closed_low=False)


class Identity(GradientTransform):
    """Change nothing; report the norms."""

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        norms = gradient_norms(found.tensors, found.tensors[0].device)
        return report_of(found.positions, norms, norms)


class NormClip(GradientTransform):
    """Multiply all gradients by min(1, max_norm / (R + 1e-6)) with R the norm of all of them together; as
    `torch.nn.utils.clip_grad_norm_`."""

    def __init__(self, max_norm: float = 1.0) -> None:
        self.max_norm = _positive("max_norm", max_norm)

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        norms = gradient_norms(found.tensors, found.tensors[0].device)
        factor = (self.max_norm / (norms.square().sum().sqrt() + 1e-6)).clamp(max=1.0)
        for g in found.tensors:
            multiply(g, factor)
        return report_of(found.positions, norms, norms * factor)


class ValueClip(GradientTransform):
    """Limit every element to [-v, v]; as `torch.nn.utils.clip_grad_value_`."""

    def __init__(self, v: float = 0.1) -> None:
        self.v = _positive("v", v)

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        device = found.tensors[0].device
        norms = gradient_norms(found.tensors, device)
        torch._foreach_clamp_min_(found.tensors, -self.v)
        torch._foreach_clamp_max_(found.tensors, self.v)
        return report_of(found.positions, norms, gradient_norms(found.tensors, device))


def unit_norms(x: Tensor) -> Tensor:
    """Norm of each output unit, kept broadcastable: over all dimensions but the first, or of the whole for vectors."""
    if x.ndim <= 1:
        return x.norm()
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), keepdim=True)


class AGC(GradientTransform):
    """Adaptive gradient clipping: per output unit, |g| at most factor * max(|w|, eps).

    Source: Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization"."""

    def __init__(self, factor: float = 0.01, eps: float = 1e-3) -> None:
        self.factor, self.eps = _positive("factor", factor), _positive("eps", eps)

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        device = found.tensors[0].device
        norms = gradient_norms(found.tensors, device)
        for p, g in zip(found.parameters, found.tensors, strict=True):
            limit = unit_norms(p.float()).clamp(min=self.eps) * self.factor
            norm = unit_norms(g.float())
            g.mul_(torch.where(norm > limit, limit / norm.clamp(min=1e-6), 1.0))
        return report_of(found.positions, norms, gradient_norms(found.tensors, device))


class ZClip(GradientTransform):
    """Clip the norm R of all gradients where it stands out from its own history.

    After `warmup` steps, whose norms give the first mean mu and variance sigma^2 (denominator n), a step with
    z = (R - mu) / (sigma + 1e-6) > z_max is clipped to the norm R* = mu + z_max^2 / z * sigma. Then
    mu <- alpha mu + (1 - alpha) R*, sigma^2 <- alpha sigma^2 + (1 - alpha)(R* - mu)^2 with the new mu, where R* = R if nothing
    was clipped. Source: Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training".

    Parameters
    ----------
    alpha : decay rate of the moments, in [0, 1).   z : z_max, positive.   warmup : steps, at least 1.
    """

    _NAMES = ("count", "sum", "squares", "mean", "variance")

    def __init__(self, alpha: float = 0.97, z: float = 2.5, warmup: int = 25) -> None:
        self.alpha, self.z = number_within("alpha", alpha, 0, 1), _positive("z", z)
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
            raise ValueError(f"warmup must be a whole number of steps of at least 1, got {warmup!r}")
        self.warmup = warmup
        self._state: Tensor | None = None  # float64, in the order of _NAMES

    def reset(self) -> None:
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._state is None else {"zclip": self._state.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state and (set(state) != {"zclip"} or state["zclip"].shape != (len(self._NAMES),)):
            raise ValueError(f"the state of ZClip is one tensor 'zclip' of {len(self._NAMES)} numbers")
        self._state = state["zclip"].detach().to(torch.float64, copy=True) if state else None

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        device = found.tensors[0].device
        norms = gradient_norms(found.tensors, device)
        norm = norms.square().sum().sqrt()
        if self._state is None:
            self._state = torch.zeros(len(self._NAMES), dtype=torch.float64, device=device)
        count, total, squares, mean, variance = self._state.to(device).unbind()
        finite, warm = torch.isfinite(norm), count >= self.warmup
        deviation = variance.sqrt()
        z = (norm - mean) / (deviation + 1e-6)
        spike = warm & (z > self.z)
        wanted = torch.where(spike, mean + self.z**2 / z * deviation, norm)
        factor = torch.where(spike, wanted / (norm + 1e-6), 1.0)
        # During the warm-up the moments are those of the norms so far.
        count, total, squares = count + 1, total + norm, squares + norm.square()
        first = (total / count, (squares / count - (total / count).square()).clamp(min=0))
        mean_next = self.alpha * mean + (1 - self.alpha) * wanted
        later = (mean_next, self.alpha * variance + (1 - self.alpha) * (wanted - mean_next).square())
        mean, variance = (torch.where(warm, b, a) for a, b in zip(first, later, strict=True))
        self._state = torch.where(finite, torch.stack([count, total, squares, mean, variance]), self._state.to(device))
        for g in found.tensors:
            multiply(g, factor)
        return report_of(found.positions, norms, norms * factor)


class Chain(GradientTransform):
    """Several transforms, one after the other; the report says what went in and what came out."""

    def __init__(self, *transforms: GradientTransform) -> None:
        if not transforms:
            raise ValueError("Chain needs at least one transform")
        for transform in transforms:
            if not isinstance(transform, GradientTransform):
                raise TypeError(f"Chain takes gradient transforms, got {transform!r}")
        self.transforms = transforms

    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        params = list(params)
        reports = [transform(params) for transform in self.transforms]
        skipped = reports[0].skipped
        for report in reports[1:]:
            skipped = skipped | report.skipped
        return report_of(reports[0].positions, reports[0].norm_before, reports[-1].norm_after, skipped)

    def reset(self) -> None:
        for transform in self.transforms:
            transform.reset()

    def state_dict(self) -> dict[str, Any]:
        return {str(position): transform.state_dict() for position, transform in enumerate(self.transforms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {str(position) for position in range(len(self.transforms))}:
            raise ValueError(f"the state of this chain has {len(self.transforms)} parts, got {len(state)}")
        for position, transform in enumerate(self.transforms):
            transform.load_state_dict(state[str(position)])
