"""The objective of a tree in whole numbers, and lower bounds on it.

    R(T) = 1/Z * sum over leaves of phi(n1, n)  +  lambda * number of leaves

brier:     phi = n1 (n - n1) / n,            Z = n           (the Brier score of predicting each leaf's risk)
zero_one:  phi = min(omega n1, n - n1),      Z = omega N1 + N0   (weighted mistakes of the better label)

Both are n h(r) with h concave and h(0) = 0. A leaf's cost is rounded once to a multiple of a power of two, so that the cost of a
tree does not depend on the order of addition, and whether a tree belongs to the set {R <= theta} is an exact comparison.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

BRIER, ZERO_ONE = 0, 1
LOSSES = {"brier": BRIER, "zero_one": ZERO_ONE}
NO_TREE = np.int64(1) << np.int64(62)  # the cost of what does not exist, and the budget of an unlimited search

# The bounds, each of which may be switched off.
LEAF_SIDE, CAP, CAP_LOSS, COLLAPSE, EQUIVALENT, TWO_LEAVES, BUDGET = 1, 2, 4, 8, 16, 32, 64
BOUNDS = {
    "leaf_side": LEAF_SIDE,
    "cap": CAP,
    "cap_loss": CAP_LOSS,
    "collapse": COLLAPSE,
    "equivalent": EQUIVALENT,
    "two_leaves": TWO_LEAVES,
    "budget": BUDGET,
}


class Costs(NamedTuple):
    """What turns counts into costs. `scale` is a power of two: costs are in units of 1 / (Z scale)."""

    loss: int
    omega: float
    scale: float
    lam: int  # lambda of one leaf, in those units
    slack: int  # more than rounding can add up to in one tree
    z: float

    def to_units(self, value: float) -> int:
        """The greatest cost in units that counts as at most the objective `value`; what rounding can add up to is forgiven."""
        units = value * self.z * self.scale + self.slack
        return int(NO_TREE) if units >= NO_TREE else math.floor(units)

    def to_objective(self, units: int) -> float:
        return units / (self.z * self.scale)


def make_costs(n1: int, n: int, loss: str, omega: float, lam: float, depth: int) -> Costs:
    """Choose the finest unit with which no sum of costs overflows. ValueError where lambda is so large that none is left."""
    code = LOSSES[loss]
    z = float(n) if code == BRIER else omega * n1 + (n - n1)
    largest = max(1.0, omega) * n + lam * z * 2.0**depth
    bits = min(40, 60 - math.ceil(math.log2(largest)))
    if bits < 12:
        raise ValueError(f"lam = {lam:g} is too large to be told apart from the loss of {n} rows")
    scale = 2.0**bits
    return Costs(code, float(omega), scale, math.floor(lam * z * scale + 0.5), 1 << (depth + 10), z)


@njit(cache=True)
def leaf_cost(n1, n, costs):
    """Cost of a leaf with n1 of n rows positive, in units."""
    phi = float(n1) * float(n - n1) / float(n) if costs.loss == BRIER else min(costs.omega * n1, float(n - n1))
    return np.int64(math.floor(phi * costs.scale + 0.5)) + np.int64(costs.lam)


@njit(cache=True)
def count_bound(n1, n, u, flags, costs):
    """No internal tree on n rows, n1 positive, whose leaf risks are all at most u, costs less (in units).

    cap_loss: h(r) >= r h(u) / u for r <= u, as h is concave with h(0) = 0, so sum phi >= n1 h(u) / u.
    collapse: under u <= 1 / (1 + omega) every leaf predicts 0, at omega n1 in total. two_leaves: a split has two leaves.
    """
    phi = 0.0
    if flags & CAP_LOSS:
        if costs.loss == BRIER:
            phi = n1 * (1.0 - u)
        elif u > 0.0:
            phi = n1 * min(costs.omega, (1.0 - u) / u)
        else:
            phi = n1 * costs.omega
    if flags & COLLAPSE and costs.loss == ZERO_ONE and u * (1.0 + costs.omega) <= 1.0:
        phi = max(phi, costs.omega * n1)
    bound = np.int64(math.floor(phi * costs.scale)) - np.int64(costs.slack)
    if bound < 0:
        bound = np.int64(0)
    if flags & TWO_LEAVES:
        bound += 2 * np.int64(costs.lam)
    return bound
