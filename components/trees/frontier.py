"""What a search for falling trees keeps for each set of rows, whatever it is written in.

For the rows S and d splits left, the *frontier* lists, for each number b of branchings allowed, the internal trees that are worth
keeping as pairs (M, c): M the largest leaf risk, c the cost, M ascending and c descending. The cheapest tree whose risks are at
most u is the last pair with M <= u: one table answers every cap on the risk at once.

The dynamic program builds it from the frontiers of both sides of every split:

    leaf and leaf        (max(r0, r1), leaf0 + leaf1)
    leaf a, other side o (r_a, leaf_a + cheapest tree on o whose risks are at most r_a)         a list step; nothing if r_a < r_o
    two internal sides   for each M, the cheapest on either side with risks at most M            a branching

A request (S, d, u, budget) asks for all pairs with M <= u and c <= budget; what was computed is kept with the u and the budget for
which it is complete, and computed again when more is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from components.trees.bitset import pack
from components.trees.costs import BOUNDS, BUDGET, CAP, CAP_LOSS, COLLAPSE, ZERO_ONE, Costs

# Why a request ended early; in this order in the counters.
REASONS = ("support", "leaf_side", "cap", "cap_loss", "two_leaves", "equivalent", "budget")
SUPPORT_CUT, SIDE_CUT, CAP_CUT, LOSS_CUT, LEAVES_CUT, EQUIVALENT_CUT, BUDGET_CUT = range(len(REASONS))


class SearchBudgetExceeded(MemoryError):
    """The search needed more subproblems or trees than allowed.

    Attributes: `incumbent`, the objective of the best tree found so far; `lower_bound`, an objective below which there is none;
    `partial`, what was found so far (an incomplete result) or None.
    """

    def __init__(self, message: str, incumbent: float, lower_bound: float, partial: object = None) -> None:
        super().__init__(message)
        self.incumbent, self.lower_bound, self.partial = incumbent, lower_bound, partial


@dataclass
class Stats:
    """Row sets expanded (all features tried) with the depth they were expanded for, requests answered from memory, and how many
    requests each bound refused."""

    subproblems: int
    hits: int
    pruned: dict[str, int]


class Problem(NamedTuple):
    """Rows sorted by label, positives first, each label's rows padded to whole words; so one pass counts both labels."""

    features: np.ndarray  # (p, W) uint64, rows with the feature
    rows: np.ndarray  # (W,) uint64, all rows
    positive_words: int
    firsts: np.ndarray  # (W,) uint64: one row of each distinct feature vector
    group_costs: np.ndarray  # (64 W,) int64: at that row, the loss (in units) of the vector's rows in a leaf of their own
    n1: int
    n: int
    depth: int
    branching: int
    levels: int  # frontiers kept per row set: branching + 1, or 1 where no tree of this depth has more branchings than allowed
    min_leaf: int
    ordered: bool
    skip_trivial: bool
    flags: int
    costs: Costs

    @property
    def unlimited(self) -> bool:
        return self.levels == 1 and self.branching > 0

    @property
    def hands_down_caps(self) -> bool:
        return self.ordered and bool(self.flags & (CAP | CAP_LOSS | COLLAPSE))

    @property
    def trivial_risk(self) -> float:
        """A list step from a leaf of this risk or less is left out; -1 where none is."""
        return 1.0 / (1.0 + self.costs.omega) if self.skip_trivial and self.costs.loss == ZERO_ONE else -1.0


def make_problem(
    X: np.ndarray,
    y: np.ndarray,
    *,
    depth: int,
    branching: int | None,
    min_leaf: int,
    ordered: bool,
    skip_trivial: bool,
    bounds: frozenset[str],
    costs: Costs,
) -> Problem:
    """Lay out a checked problem: X (n, p) bool, y (n,) bool with both labels present."""
    most = 2 ** (depth - 1) - 1  # a tree of this depth has no more branchings
    wanted = most if branching is None else min(branching, most)
    levels = 1 if wanted == most else wanted + 1
    order = np.argsort(~y, kind="stable")
    positives = int(y.sum())
    features = np.concatenate([pack(X[y]), pack(X[~y])], axis=1)
    rows = np.concatenate([pack(np.ones((positives, 1), bool)), pack(np.ones((len(y) - positives, 1), bool))], axis=1)[0]
    positive_words = pack(np.ones((positives, 1), bool)).shape[1]
    _, first, group = np.unique(X[order], axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    sizes = np.bincount(group).astype(np.float64)
    ones = np.bincount(group, weights=y[order]).astype(np.float64)
    zeros = sizes - ones
    phi = np.minimum(costs.omega * ones, zeros) if costs.loss == ZERO_ONE else ones * zeros / sizes
    place = np.where(first < positives, first, first - positives + 64 * positive_words)
    group_costs = np.zeros(64 * features.shape[1], dtype=np.int64)
    group_costs[place] = np.floor(phi * costs.scale).astype(np.int64)
    mark = np.zeros((64 * features.shape[1], 1), dtype=bool)
    mark[place[phi > 0]] = True
    flags = sum(BOUNDS[name] for name in bounds)
    return Problem(
        np.ascontiguousarray(features),
        rows,
        positive_words,
        pack(mark)[0],
        group_costs,
        positives,
        len(y),
        depth,
        wanted,
        levels,
        min_leaf,
        ordered,
        skip_trivial,
        flags,
        costs,
    )


class Options(NamedTuple):
    """Of one set of rows: the side x_j = 1 of each feature, and the least cost of completing each kind of split.

    n1, n (p,): positives and rows with x_j = 1. ok (p,): both sides have the support. listed (p, 2): at [j, a], the cheapest
    internal tree on the side other than a that a leaf on side a admits. branched (p, 2): the cheapest internal trees on
    both sides of a branching. NO_TREE where there is none within the budget.
    """

    n1: np.ndarray
    n: np.ndarray
    ok: np.ndarray
    listed: np.ndarray
    branched: np.ndarray


class Frontiers(ABC):
    """A search over row sets. Sets of rows are opaque, hashable handles; caps are risks, budgets are in units of cost."""

    problem: Problem
    max_subproblems: int

    @property
    @abstractmethod
    def everything(self) -> Hashable:
        """All rows."""

    @abstractmethod
    def children(self, rows: Hashable, feature: int) -> tuple[Hashable, Hashable]:
        """The rows without and those with the feature."""

    @abstractmethod
    def count(self, rows: Hashable) -> tuple[int, int]:
        """Positives and rows."""

    @abstractmethod
    def pairs(self, rows: Hashable, depth: int, cap: float, budget: int) -> list[list[tuple[float, int]]]:
        """The frontier for each number of branchings, complete for `cap` and `budget`: all pairs within both.

        Raises SearchBudgetExceeded (costs in units) after `max_subproblems` expansions."""

    @abstractmethod
    def options(self, rows: Hashable, depth: int, cap: float, budget: int) -> Options:
        """What a tree on these rows within cap and budget may begin with; from frontiers that are complete for them."""

    @property
    @abstractmethod
    def stats(self) -> Stats:
        """What was done since the beginning."""

    @property
    def budgeted(self) -> bool:
        return bool(self.problem.flags & BUDGET)
