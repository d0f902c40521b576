"""An optimiser that changes gradients before it steps: a facade around any `torch.optim.Optimizer` and a gradient transform.

Schedulers, gradient scalers, hooks and checkpoints see one ordinary optimiser; parameter groups, state and defaults are the
base optimiser's own. A `torch.amp.GradScaler` unscales before it calls `step`, and does not call it after an overflow, so the
transform sees true gradients and never a skipped step. Gradients may be accumulated over several backward passes: the transform
runs once, in `step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from components.optim.gradient_transforms import GradientTransform, TransformReport

KEY = "transform"  # of the transform's state in a state dict


class TransformedOptimizer(Optimizer):
    """`transform`, then `base`.

    Parameters
    ----------
    base : the optimiser; LBFGS is refused, since it evaluates the closure many times within a step.
    transform : changes the gradients of all parameters of all groups, in the order of the groups.

    `report` is what the transform said of the latest step, None before the first. Raises TypeError for anything else.
    """

    def __init__(self, base: Optimizer, transform: GradientTransform) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch optimiser, got {type(base).__name__}")
        if isinstance(base, torch.optim.LBFGS):
            raise TypeError("base must step once per gradient; LBFGS evaluates its closure many times within a step")
        if not isinstance(transform, GradientTransform):
            raise TypeError(f"transform must be a GradientTransform, got {type(transform).__name__}")
        # What `Optimizer.__init__` does besides making groups and state of its own, which here are the base's.
        self.__setstate__({"base": base, "transform": transform, "report": None})

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "transform": self.transform, "report": None}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @property
    def state(self) -> dict[Tensor, Any]:
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.base.defaults

    def __repr__(self) -> str:
        return f"{type(self.transform).__name__} before {self.base!r}"

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order in which the transform counts them."""
        return [p for group in self.base.param_groups for p in group["params"]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A further group; what is known of the others stays."""
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate the closure once (with gradients on), transform, let the base step; returns what the closure did."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.report: TransformReport | None = self.transform(self.parameters())
        self.base.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The base's state dict, with the transform's under "transform"."""
        return self.base.state_dict() | {KEY: self.transform.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict()`. Raises ValueError where the transform's part is missing or of another number of
        parameters, and what the base raises; nothing is loaded then."""
        if KEY not in state_dict:
            raise ValueError(f"the state dict has no {KEY!r}: it is that of a plain optimiser; load it into `.base` instead")
        known = state_dict[KEY].get("parameters")
        if known is not None and known != len(self.parameters()):
            raise ValueError(
                f"the transform's state is that of {known} parameters, this optimiser has {len(self.parameters())}"
            )
        before = self.transform.state_dict()
        self.transform.load_state_dict(state_dict[KEY])
        try:
            self.base.load_state_dict({key: value for key, value in state_dict.items() if key != KEY})
        except (ValueError, KeyError, TypeError):
            self.transform.load_state_dict(before)
            raise
