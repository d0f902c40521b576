"""Lion: steps of the sign of an interpolation between momentum and gradient.

    u = sign(beta1 m + (1 - beta1) g),   w <- w - lr (u + weight_decay w),   m <- beta2 m + (1 - beta2) g

Source: Chen et al., "Symbolic Discovery of Optimization Algorithms".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from components.optim.gradient_transforms import number_within


class Lion(Optimizer):
    """The optimiser; one buffer per parameter, in its dtype.

    Parameters
    ----------
    lr : positive, default 1e-4: every entry moves by this much.
    betas : two rates in [0, 1).
    weight_decay : decoupled, at least 0.

    Raises ValueError for values out of range, and in `step` TypeError for sparse or complex gradients.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        number_within("lr", lr, 0, math.inf, closed_low=False)
        for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
            number_within(name, beta, 0, 1)
        number_within("weight_decay", weight_decay, 0, math.inf)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure did."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if p.grad.layout != torch.strided or p.grad.is_complex():
                    raise TypeError(f"Lion takes dense real gradients, got {p.grad.layout} of {p.grad.dtype}")
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            grads, momenta = [p.grad for p in params], [self.state[p]["momentum"] for p in params]
            (beta1, beta2), lr = group["betas"], group["lr"]
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            update = torch._foreach_lerp(momenta, grads, 1 - beta1)
            torch._foreach_sign_(update)
            torch._foreach_add_(params, update, alpha=-lr)
            torch._foreach_lerp_(momenta, grads, 1 - beta2)
        return loss
