"""What is compared, by the names that metrics and figures use. No torch in here: the report needs the names alone."""

from __future__ import annotations

from typing import NamedTuple

OURS = "l2a"
DENSE = "full"
# name -> what a reader is told
METHODS = {
    "full": "dense attention in every layer",
    "swa": "a sliding window in every layer",
    "interleave": "every k-th layer dense, windows elsewhere; the better placement of the dense layers, by choice texts",
    "random_router": "L2A whose tokens are chosen at random, as many per layer as L2A chooses",
    "head_router": "a router per head between dense and window (All-or-Here)",
    "l2a": "L2A",
}
TASKS = ("recall", "text")


class Arm(NamedTuple):
    """One way to extend a base model."""

    method: str
    offset: int | None = None  # interleave: the first dense layer
    lam: float | None = None  # L2A, where it is not the default
    leak: float | None = None

    @property
    def name(self) -> str:
        words = [self.method]
        if self.offset is not None:
            words.append(f"dense from {self.offset}")
        if self.lam is not None:
            words.append(f"lambda={self.lam:g}")
        if self.leak is not None:
            words.append(f"leak={self.leak:g}")
        return " ".join(words)

    @property
    def file(self) -> str:
        return self.name.replace(" ", "_").replace("=", "")
