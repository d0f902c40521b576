"""Gradient transforms: what happens to gradients between the backward pass and the optimiser's step. GradientStabilizer.

A transform takes parameters, changes their `.grad` in place and reports the norms. It belongs after the backward pass, after
the scaler has unscaled and after gradients have been averaged over processes, before the optimiser's step;
`components.optim.wrap.TransformedOptimizer` puts it there. Everything stays on the gradients' device: no step waits for a GPU.

GradientStabilizer keeps the direction of each gradient tensor g and replaces its norm R = |g| by a running estimate,

    m <- gamma1 m + (1 - gamma1) R,   v <- gamma2 v + (1 - gamma2) R^2
    g <- g / R * rho,   rho = m_hat / (sqrt(v_hat) + eps)

with m_hat, v_hat divided by 1 - gamma^t where the bias is corrected. By the inequality of Cauchy and Schwarz rho never exceeds

    (1 - gamma1) / sqrt(1 - gamma2) * (1 - gamma1^2 / gamma2)^(-1/2)        (15.816 for the defaults)

however large a spike is, as long as gamma1^2 < gamma2.

Source: Huang et al., "GradientStabilizer: Fix the Norm, Not the Gradient".
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter


class TransformReport(NamedTuple):
    """What a transform did, one entry per parameter with a dense gradient, on the gradients' device.

    Attributes
    ----------
    positions : which parameters those are.
    norm_before, norm_after : (n,) float32, Euclidean norms of the gradients.
    scale : (n,) float32, norm_after / norm_before; 1 where norm_before is 0, 0 where the gradient was skipped.
    skipped : (n,) bool, gradients that were not finite and are now zero.
    """

    positions: tuple[int, ...]
    norm_before: Tensor
    norm_after: Tensor
    scale: Tensor
    skipped: Tensor


class Gradients(NamedTuple):
    """The dense gradients among the parameters' and where they stand."""

    count: int  # of parameters, with or without a gradient
    positions: tuple[int, ...]
    parameters: list[Tensor]
    tensors: list[Tensor]


def dense_gradients(params: Iterable[Parameter]) -> Gradients:
    """Collect the gradients that a transform changes; sparse ones are left out, and parameters that have none.

    Raises ValueError for no parameters or one that occurs twice (tied weights are one parameter), TypeError for what is no
    tensor and for gradients that are not real floating point numbers.
    """
    if isinstance(params, Tensor):
        raise TypeError("params must be a list of parameters, got one tensor")
    params = list(params)
    if not params:
        raise ValueError("params is empty: there is no gradient to transform")
    for position, p in enumerate(params):
        if not isinstance(p, Tensor):
            raise TypeError(f"params must hold tensors, but params[{position}] is {type(p).__name__}")
    if len({id(p) for p in params}) != len(params):
        raise ValueError("a parameter occurs twice in params; tied weights must be given once")
    positions, owners, tensors = [], [], []
    for position, p in enumerate(params):
        g = p.grad
        if g is None or g.layout != torch.strided:
            continue
        if not g.is_floating_point():
            raise TypeError(f"gradients must be real floating point numbers, but that of params[{position}] is {g.dtype}")
        positions.append(position)
        owners.append(p)
        tensors.append(g)
    return Gradients(len(params), tuple(positions), owners, tensors)


@torch.no_grad()
def gradient_norms(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Euclidean norms (n,), computed in float32 at least (float64 for float64), returned as float64 on `device`.

    A sum of squares beyond float32's range (norms above 1.8e19) gives infinity."""
    half = [g.dtype in (torch.float16, torch.bfloat16) for g in tensors]
    if any(half):
        # A norm in half precision would overflow at 65504, or lose all but three digits.
        norms: list[Tensor] = [torch.empty(0)] * len(tensors)
        for lower, options in ((True, {"dtype": torch.float32}), (False, {})):
            chosen = [i for i, h in enumerate(half) if h == lower]
            if chosen:
                for i, norm in zip(chosen, torch._foreach_norm([tensors[i] for i in chosen], 2, **options), strict=True):
                    norms[i] = norm
    else:
        norms = list(torch._foreach_norm(tensors, 2))
    return torch.stack([norm.to(device=device, dtype=torch.float64) for norm in norms])


def multiply(g: Tensor, factor: Tensor) -> None:
    """g times a scalar tensor, in place; the factor is not rounded to half precision, where 1e-6 has hardly a digit left."""
    factor = factor.to(device=g.device, dtype=torch.promote_types(g.dtype, torch.float32))
    if factor.dtype == g.dtype:
        g.mul_(factor)
    else:
        g.copy_(g.to(factor.dtype).mul_(factor))


@torch.no_grad()
def scale_gradients(tensors: list[Tensor], factor: Tensor, finite: Tensor) -> None:
    """Multiply each tensor by its factor (n,) float64, in place; where `finite` (n,) is false the tensor becomes zero.

    On the CPU the factors are read by the host, which costs nothing there; elsewhere they stay on the device."""
    if factor.device.type == "cpu" and all(g.device.type == "cpu" and g.element_size() >= 4 for g in tensors):
        values = factor.tolist()
        if values.count(1.0) < len(values):
            torch._foreach_mul_(tensors, values)
        for g, good in zip(tensors, finite.tolist(), strict=True):
            if not good:
                g.zero_()  # 0 x NaN is NaN
        return
    bad = ~finite
    for g, f, wrong in zip(tensors, factor.unbind(), bad.unbind(), strict=True):
        multiply(g, f)
        g.masked_fill_(wrong.to(g.device), 0.0)  # 0 x NaN is NaN


class GradientTransform(ABC):
    """A change of gradients in place, with a state that can be saved."""

    @abstractmethod
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        """Change the gradients of `params`. Parameters without a gradient, and sparse gradients, are left alone.

        `params` must be the same list at every step; parameters may be added at its end.

        Raises ValueError for no parameters or one that occurs twice, TypeError for gradients that are not real floating
        point numbers."""

    def reset(self) -> None:  # noqa: B027 - a transform without a state has nothing to forget
        """Forget everything that was seen."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values; empty for a transform that remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; ValueError for the state of another transform."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, got the keys {', '.join(map(str, state))}")


def empty_report(device: torch.device | None = None) -> TransformReport:
    """Of a step on which no parameter had a dense gradient."""
    nothing = torch.zeros(0, device=device)
    return TransformReport((), nothing, nothing, nothing, torch.zeros(0, dtype=torch.bool, device=device))


def report_of(positions: tuple[int, ...], before: Tensor, after: Tensor, skipped: Tensor | None = None) -> TransformReport:
    """The report, from norms (n,) before and after."""
    skipped = torch.zeros_like(before, dtype=torch.bool) if skipped is None else skipped
    scale = torch.where(skipped, 0.0, torch.where(before > 0, after / before, 1.0))
    return TransformReport(positions, before.float(), after.float(), scale.float(), skipped)


def number_within(name: str, value: object, low: float, high: float, *, closed_low: bool = True) -> float:
    """A hyper-parameter in [low, high) or (low, high); TypeError for what is no number, ValueError for one outside."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not ((low <= value if closed_low else low < value) and value < high):
        raise ValueError(f"{name} must lie in {'[' if closed_low else '('}{low:g}, {high:g}), got {value!r}")
    return float(value)


def stabilizer_bound(gamma1: float = 0.6, gamma2: float = 0.999, t: int | None = None, bias_correction: bool = True) -> float:
    """The largest norm rho that GradientStabilizer can give a gradient.

    Parameters
    ----------
    gamma1, gamma2 : decay rates in [0, 1).
    t : after so many steps; default in the limit, which holds for all t.
    bias_correction : of the two moments. In the limit it makes no difference; before, the bound without it is lower by the
        factor that correction divides by, except that its first step is (1 - gamma1) / sqrt(1 - gamma2) instead of 1.

    Returns
    -------
    With q = gamma1^2 / gamma2:  (1 - gamma1) / sqrt(1 - gamma2) * sqrt((1 - q^t) / (1 - q)), times
    sqrt(1 - gamma2^t) / (1 - gamma1^t) with bias correction; infinity for q >= 1 and t = None, or gamma2 = 0 < gamma1.

    Raises ValueError for rates outside [0, 1) or t < 1.
    """
    gamma1, gamma2 = number_within("gamma1", gamma1, 0, 1), number_within("gamma2", gamma2, 0, 1)
    if t is not None and (isinstance(t, bool) or not isinstance(t, int) or t < 1):
        raise ValueError(f"t must be a whole number of at least 1, got {t!r}")
    if gamma2 == 0:
        # v is the last square alone: a small norm after a large one makes the ratio as large as one likes.
        return 1.0 if gamma1 == 0 or (t == 1 and bias_correction) else (1 - gamma1 if t == 1 else math.inf)
    q = gamma1**2 / gamma2
    if t is None:
        return math.inf if q >= 1 else (1 - gamma1) / math.sqrt(1 - gamma2) / math.sqrt(1 - q)
    memory = float(t) if q == 1 else (1 - q**t) / (1 - q)
    bound = (1 - gamma1) / math.sqrt(1 - gamma2) * math.sqrt(memory)
    return bound * math.sqrt(1 - gamma2**t) / (1 - gamma1**t) if bias_correction else bound


def spike_step_bound(gamma1: float, gamma2: float, kappa: float) -> float:
    """The largest rho, without bias correction, on a step whose norm is at least `kappa` times the estimate m before it:
    (1 - gamma1) / sqrt(1 - gamma2) + gamma1 / (kappa sqrt(1 - gamma2)).

    Raises ValueError for rates outside [0, 1) or kappa that is not positive."""
    gamma1, gamma2 = number_within("gamma1", gamma1, 0, 1), number_within("gamma2", gamma2, 0, 1)
    if not kappa > 0:
        raise ValueError(f"kappa must be positive, got {kappa!r}")
    return (1 - gamma1 + gamma1 / kappa) / math.sqrt(1 - gamma2)


class GradientStabilizer(GradientTransform):
    """Replace each gradient's norm by a bounded running estimate; see the module for the equations.

    Parameters
    ----------
    gamma1, gamma2 : decay rates of the norm's first and second moment, in [0, 1), gamma1^2 < gamma2.
    eps : added to the root of the second moment, positive; norms far below it are shrunk.
    bias_correction : divide the moments by 1 - gamma^t. Without it the first step has norm
        (1 - gamma1) / sqrt(1 - gamma2), 12.6 for the defaults, whatever the gradient.
    scope : "tensor", a norm for each parameter (default), or "global", one for all.
    backend : "foreach" (torch, any device) or "triton" (three fused kernels; needs a GPU, or Triton's interpreter).
    allow_unbounded : accept rates for which no bound exists.

    A gradient that is not finite (or whose sum of squares overflows) becomes zero and is counted in `skipped`; its state does
    not advance. A gradient of norm 0 changes nothing. State is kept in float64 on the device: 1 - gamma2 would lose
    its digits in float32. After an average over processes the result depends on the gradients alone, so replicas agree;
    with sharded gradients the norms are those of the shards.

    Raises ValueError for parameters out of range, TypeError for what is no number.
    """

    def __init__(
        self,
        gamma1: float = 0.6,
        gamma2: float = 0.999,
        eps: float = 1e-12,
        bias_correction: bool = True,
        scope: Literal["tensor", "global"] = "tensor",
        backend: Literal["foreach", "triton"] = "foreach",
        allow_unbounded: bool = False,
    ) -> None:
        self.gamma1, self.gamma2 = number_within("gamma1", gamma1, 0, 1), number_within("gamma2", gamma2, 0, 1)
        self.eps = number_within("eps", eps, 0, math.inf, closed_low=False)
        self.bias_correction = bool(bias_correction)
        if scope not in ("tensor", "global"):
            raise ValueError(f"scope must be 'tensor' or 'global', got {scope!r}")
        if backend not in ("foreach", "triton"):
            raise ValueError(f"backend must be 'foreach' or 'triton', got {backend!r}")
        if backend == "triton" and scope == "global":
            raise ValueError("backend='triton' keeps one norm per tensor; use backend='foreach' for scope='global'")
        if self.gamma1**2 >= self.gamma2 and self.gamma1 > 0 and not allow_unbounded:
            raise ValueError(
                f"there is no uniform bound for gamma1^2 >= gamma2, got gamma1 = {gamma1!r} and gamma2 = {gamma2!r}; "
                "allow_unbounded=True accepts them"
            )
        self.scope, self.backend = scope, backend
        self._m = self._v = self._t = self._skipped = None
        self._count: int | None = None  # parameters, once known
        self._loaded = False  # from a state whose number of parameters the next call must match
        self._indices: dict[tuple[int, ...], Tensor] = {}

    @property
    def state(self) -> dict[str, Tensor]:
        """m, v (float64), t and skipped (int64), one entry per parameter (one in all for scope "global"); empty before the
        first step."""
        return {} if self._m is None else {"m": self._m, "v": self._v, "t": self._t, "skipped": self._skipped}

    def reset(self) -> None:
        self._m = self._v = self._t = self._skipped = self._count = None
        self._loaded = False
        self._indices.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "hyperparameters": self._hyperparameters(),
            "parameters": self._count,
            "tensors": {name: value.clone() for name, value in self.state.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Other hyper-parameters than the present ones are a warning and the present ones are kept.

        Raises ValueError for the state of another transform, another number of parameters or another scope."""
        if not isinstance(state, Mapping) or set(state) != {"hyperparameters", "parameters", "tensors"}:
            raise ValueError("this is no state of GradientStabilizer: it needs hyperparameters, parameters and tensors")
        tensors, count = state["tensors"], state["parameters"]
        if self._count is not None and count is not None and count != self._count:
            raise ValueError(f"the state is that of {count} parameters, this transform has {self._count}")
        mine, theirs = self._hyperparameters(), state["hyperparameters"]
        if theirs.get("scope") != self.scope:
            raise ValueError(f"the state was kept with scope={theirs.get('scope')!r}, this transform has {self.scope!r}")
        changed = [f"{name} = {mine[name]} (saved: {theirs.get(name)})" for name in mine if theirs.get(name) != mine[name]]
        if changed:
            warnings.warn(f"the state was saved with other hyper-parameters; kept are {', '.join(changed)}", stacklevel=2)
        device = None if self._m is None else self._m.device
        self.reset()
        if not tensors:
            return
        size = 1 if self.scope == "global" else count
        for name, dtype in (("m", torch.float64), ("v", torch.float64), ("t", torch.int64), ("skipped", torch.int64)):
            value = tensors.get(name)
            if not isinstance(value, Tensor) or value.shape != (size,):
                raise ValueError(f"the state's {name} must be a tensor of shape ({size},)")
            setattr(self, f"_{name}", value.detach().to(device=device, dtype=dtype, copy=True))
        self._count, self._loaded = count, True

    def _hyperparameters(self) -> dict[str, Any]:
        names = ("gamma1", "gamma2", "eps", "bias_correction", "scope")
        return {name: getattr(self, name) for name in names}

    def _prepare(self, count: int, device: torch.device) -> None:
        """Make the state, or let it grow by parameters that were added at the end."""
        if self._count is not None and (count < self._count or (self._loaded and count != self._count)):
            raise ValueError(f"the state is that of {self._count} parameters, but {count} are given")
        self._loaded = False
        size = 1 if self.scope == "global" else count
        if self._m is None:
            self._m, self._v = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2))
            self._t, self._skipped = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
        else:
            for name in ("_m", "_v", "_t", "_skipped"):
                old = getattr(self, name)
                if old.device != device:
                    old = old.to(device)
                if old.numel() < size:
                    old = torch.cat([old, old.new_zeros(size - old.numel())])
                setattr(self, name, old)
        self._count = count

    def _index(self, positions: tuple[int, ...], device: torch.device) -> Tensor:
        if positions not in self._indices:
            self._indices[positions] = torch.tensor(positions, device=device)
        return self._indices[positions]

    def _advance(self, norms: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the state at `index` (all where it is None) with norms (n,); returns factor, rho and finite, each (n,)."""
        finite = torch.isfinite(norms)
        active = finite & (norms > 0)
        r = torch.where(active, norms, 0.0)
        m, v, t, skipped = (x if index is None else x[index] for x in (self._m, self._v, self._t, self._skipped))
        t = t + active
        m = torch.where(active, self.gamma1 * m + (1 - self.gamma1) * r, m)
        v = torch.where(active, self.gamma2 * v + (1 - self.gamma2) * r * r, v)
        top, bottom = m, v
        if self.bias_correction:
            # Where t is still 0 nothing is active and the quotient is not used.
            top, bottom = top / (1 - self.gamma1 ** t.double()), bottom / (1 - self.gamma2 ** t.double())
        rho = torch.where(active, top / (bottom.sqrt() + self.eps), 0.0)
        factor = torch.where(active, rho / r, finite.double())
        values = (m, v, t, skipped + finite.logical_not())
        for name, value in zip(("_m", "_v", "_t", "_skipped"), values, strict=True):
            setattr(self, name, value if index is None else getattr(self, name).index_copy(0, index, value))
        return factor, rho, finite

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        device = found.tensors[0].device
        self._prepare(found.count, device)
        whole = self.scope == "global" or len(found.positions) == found.count
        index = None if whole else self._index(found.positions, device)
        if self.backend == "triton":
            return self._fused(found, index)
        norms = gradient_norms(found.tensors, device)
        if self.scope == "global":
            factor, _, finite = self._advance(norms.square().sum().sqrt()[None], None)
            factor, finite = factor.expand_as(norms), finite.expand_as(norms)
            rho = norms * factor
        else:
            factor, rho, finite = self._advance(norms, index)
        scale_gradients(found.tensors, factor, finite)
        return report_of(found.positions, norms, torch.where(finite, rho, 0.0), ~finite)

    def _fused(self, found: Gradients, index: Tensor | None) -> TransformReport:
        from kernels.gradient_stabilizer import stabilize  # Triton is asked for here alone

        options = {"gamma1": self.gamma1, "gamma2": self.gamma2, "eps": self.eps, "bias_correction": self.bias_correction}
        state = [x if index is None else x[index] for x in (self._m, self._v, self._t, self._skipped)]
        norms, rho = stabilize(found.tensors, *state, **options)
        if index is not None:
            for name, value in zip(("_m", "_v", "_t", "_skipped"), state, strict=True):
                setattr(self, name, getattr(self, name).index_copy(0, index, value))
        return report_of(found.positions, norms, rho, ~torch.isfinite(norms))
