"""How hard the router is pressed at a step, and in which layers a step leaks.

lambda is 0 during warm-up, while the model gets used to attending twice, and then rises linearly to its full value at the last
step. A leak is a pass of one layer that computes global attention for every token (still multiplied by the router's bit): only
there can a token that is off learn that it should be on.

Source: "Learning When to Attend: Conditional Memory Access for Long-Context LLMs", loss and leak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from components.attention.router import check_probability


@dataclass(frozen=True)
class L2AConfig:
    """What training needs besides the model.

    Parameters
    ----------
    lam : full weight of `router_loss`, the lambda_bar of a mean over tokens; at least 0.
    warmup : steps with weight 0.
    total : steps of the whole training; the weight is `lam` at step total - 1.
    leak : probability of a leak, per layer and step, in [0, 1]; default 0.1.
    lam_schedule : "linear" (default) or "constant" after the warm-up.

    Raises ValueError for anything else.
    """

    lam: float
    warmup: int
    total: int
    leak: float = 0.1
    lam_schedule: Literal["linear", "constant"] = "linear"

    def __post_init__(self) -> None:
        check_probability("leak", self.leak)
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam must be at least 0 and finite, got {self.lam}")
        if self.warmup < 0 or self.total < 1:
            raise ValueError(f"warmup must be at least 0 and total at least 1, got {self.warmup} and {self.total}")
        if self.lam_schedule not in ("linear", "constant"):
            raise ValueError(f"lam_schedule must be 'linear' or 'constant', got {self.lam_schedule!r}")

    def weight(self, step: int) -> float:
        """lambda_bar at a step, counted from 0. Raises ValueError for a step outside the training."""
        if not 0 <= step < self.total:
            raise ValueError(f"step must lie in [0, {self.total}), got {step}")
        if step < self.warmup:
            return 0.0
        if self.lam_schedule == "constant":
            return self.lam
        return self.lam * (step - self.warmup + 1) / (self.total - self.warmup)

    def leaks(self, layers: int, step: int, seed: int = 0) -> list[bool]:
        """Which of `layers` layers leak at a step. A function of its arguments alone: all ranks of a cluster agree without talking."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % (1 << 63))
        return (torch.rand(layers, generator=generator) < self.leak).tolist()
