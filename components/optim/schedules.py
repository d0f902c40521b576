"""Learning rates by step."""

from __future__ import annotations

import math


def warmup_cosine(step: int, steps: int, warmup: int, lr: float, final: float = 0.0) -> float:
    """Linear warm-up over `warmup` steps to `lr`, then half a cosine that ends near `final` times it.

    step : from 0 to steps - 1.   warmup : at least 0; the first step has lr / warmup.   final : in [0, 1], default 0.
    Raises ValueError for numbers outside these ranges."""
    if not 0 <= step < steps or warmup < 0 or not 0 <= final <= 1:
        raise ValueError(
            f"step must lie in [0, {steps}), warmup be at least 0 and final in [0, 1], got {step}, {warmup}, {final}"
        )
    if step < warmup:
        return lr * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done)))
