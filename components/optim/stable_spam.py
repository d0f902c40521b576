"""Stable-SPAM: an element-wise limit that follows the largest gradient entry, a stabilised norm, and moments that are forgotten.

Per tensor, with a the largest |g_i|:  A <- gamma3 A + (1 - gamma3) a,  entries beyond A_hat = A / (1 - gamma3^t) are scaled by
A_hat / a; then the norm step of GradientStabilizer with gamma1 = 0.7, gamma2 = 0.9; and every `reset_every` steps Adam's
moments start anew. Source: Huang et al., "Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from components.optim.clipping import Chain
from components.optim.gradient_transforms import (
    GradientStabilizer,
    GradientTransform,
    TransformReport,
    dense_gradients,
    empty_report,
    gradient_norms,
    number_within,
    report_of,
)
from components.optim.wrap import TransformedOptimizer


class AdaptiveSpikeClip(GradientTransform):
    """Scale the entries of a tensor that exceed the running mean A_hat of its largest entry by A_hat / largest.

    gamma3 in [0, 1). Tensors whose largest entry is not finite are left alone and do not advance the state."""

    def __init__(self, gamma3: float = 0.999) -> None:
        self.gamma3 = number_within("gamma3", gamma3, 0, 1)
        self._a: Tensor | None = None  # (parameters,) float64
        self._t: Tensor | None = None

    def reset(self) -> None:
        self._a = self._t = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._a is None else {"a": self._a.clone(), "t": self._t.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state and set(state) != {"a", "t"}:
            raise ValueError("the state of AdaptiveSpikeClip is the two tensors 'a' and 't'")
        self._a, self._t = (state["a"].clone(), state["t"].clone()) if state else (None, None)

    @torch.no_grad()
    def __call__(self, params: Iterable[Parameter]) -> TransformReport:
        found = dense_gradients(params)
        if not found.tensors:
            return empty_report()
        device = found.tensors[0].device
        norms = gradient_norms(found.tensors, device)
        if self._a is None:
            self._a = torch.zeros(0, dtype=torch.float64, device=device)
            self._t = torch.zeros(0, dtype=torch.int64, device=device)
        if self._a.numel() > found.count:
            raise ValueError(f"the state is that of {self._a.numel()} parameters, but {found.count} are given")
        missing = found.count - self._a.numel()
        a, t = (torch.cat([x.to(device), x.new_zeros(missing, device=device)]) for x in (self._a, self._t))
        index = torch.tensor(found.positions, device=device)
        largest = torch.stack(
            [g.abs().amax().to(device, torch.float64) if g.numel() else norms.new_zeros(()) for g in found.tensors]
        )
        good = torch.isfinite(largest)
        t_new = t[index] + good
        a_new = torch.where(good, self.gamma3 * a[index] + (1 - self.gamma3) * largest, a[index])
        limit = torch.where(good, a_new / (1 - self.gamma3 ** t_new.clamp(min=1).double()), torch.inf)
        self._a, self._t = a.index_copy(0, index, a_new), t.index_copy(0, index, t_new)
        for g, bound, top in zip(found.tensors, limit.unbind(), largest.unbind(), strict=True):
            bound, top = bound.to(g.device, g.dtype), top.to(g.device, g.dtype)
            g.mul_(torch.where(g.abs() > bound, bound / top, 1.0).to(g.dtype))
        return report_of(found.positions, norms, gradient_norms(found.tensors, device))


def stable_spam_transform(gamma1: float = 0.7, gamma2: float = 0.9, gamma3: float = 0.999) -> Chain:
    """The two gradient steps of Stable-SPAM without its reset of the moments."""
    return Chain(AdaptiveSpikeClip(gamma3), GradientStabilizer(gamma1, gamma2))


class StableSPAM(TransformedOptimizer):
    """AdamW behind the two gradient steps, its moments and step count set to zero after every `reset_every` steps.

    Parameters
    ----------
    params : as for any torch optimiser.
    lr, betas, eps, weight_decay : of AdamW.
    gamma1, gamma2, gamma3 : decay rates of the transform.
    reset_every : steps, at least 1; None never.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gamma1: float = 0.7,
        gamma2: float = 0.9,
        gamma3: float = 0.999,
        reset_every: int | None = 1000,
    ) -> None:
        if reset_every is not None and (isinstance(reset_every, bool) or not isinstance(reset_every, int) or reset_every < 1):
            raise ValueError(f"reset_every must be None or a whole number of at least 1, got {reset_every!r}")
        base = torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(base, stable_spam_transform(gamma1, gamma2, gamma3))
        self.reset_every, self.steps = reset_every, 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"reset_every": self.reset_every, "steps": self.steps}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self.reset_every is not None and self.steps and self.steps % self.reset_every == 0:
            for state in self.base.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        self.steps += 1
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "steps" not in state_dict:
            raise ValueError("the state dict has no 'steps': it is not that of StableSPAM")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "steps"})
        self.steps = int(state_dict["steps"])
