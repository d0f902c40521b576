"""Optimal falling trees, and all near-optimal ones: dynamic programming over row sets with bounds.

Minimises R(T) = loss(T) / Z + lambda * leaves over the trees of a depth, with at most so many branchings (splits with two internal
children; none: falling rule lists) and so many rows in every leaf, whose risks fall (see `tree.is_falling`). The set
{T: R(T) <= theta} is listed whole.

Bounds, each of which can be switched off and none of which loses a tree:
leaf_side   a leaf beside an internal tree needs a risk at least the mean risk there
cap         a tree whose risks are all at most u needs a mean risk at most u
cap_loss    for concave h with h(0) = 0, risks at most u cost at least n1 h(u) / u
collapse    zero-one loss, u <= 1 / (1 + omega): every leaf predicts 0 and the loss is omega n1
equivalent  no tree loses less than one leaf per distinct feature vector
two_leaves  an internal tree has two leaves at least
budget      a side may spend what a lower bound, later the exact optimum, of the other side leaves

Source: Rashomon Sets of Falling Trees (GraviTree); the frontier program and the proofs of the bounds are ours.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from components.trees.costs import BOUNDS, LOSSES, NO_TREE, leaf_cost, make_costs
from components.trees.frontier import Frontiers, SearchBudgetExceeded, Stats, make_problem
from components.trees.frontier_numba import NumbaFrontiers
from components.trees.frontier_python import PythonFrontiers
from components.trees.rashomon import Members, members, tallies
from components.trees.tree import ORDERS, Tree, is_falling

BACKENDS = {"numba": NumbaFrontiers, "python": PythonFrontiers}
ALL_BOUNDS = frozenset(BOUNDS)
# With branchings a row set is reached by many parents that ask for different caps and budgets. One frontier answers all of them,
# whereas handing caps and budgets down expands the set again and again: two to four times the time for the optimum.
WITH_BRANCHINGS = frozenset({"leaf_side", "two_leaves"})


def _integer(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def check_binary(values: object, name: str) -> np.ndarray:
    """An array of 0 and 1 (or booleans) as booleans. ValueError naming the first value that is neither."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must hold 0 and 1, got dtype {array.dtype}")
    wrong = np.argwhere((array != 0) & (array != 1))
    if len(wrong):
        at = tuple(int(k) for k in wrong[0])
        raise ValueError(f"{name} must hold 0 and 1 alone, but {name}{list(at)} is {array[at]}")
    return array.astype(bool)


class FallingTreeSolver:
    """Exact search on one data set.

    Parameters
    ----------
    X : (n, p) features, 0/1 or bool.
    y : (n,) labels, 0/1 or bool, both present; the risk of a leaf is its share of 1.
    depth : splits on a path, at most; at least 1.
    branching : splits with two internal children, at most; 0 for rule lists, None for no limit.
    lam : lambda, the price of a leaf; at least 0. Default 0.001.
    loss : "brier" (default) or "zero_one".
    omega : price of a missed positive in units of a false alarm, for "zero_one"; default 1.
    min_leaf : rows in a leaf, at least; default 10.
    order : "path" (default), "depth" (stricter; found by filtering "path") or None (ordinary trees).
    bounds : names of the bounds in use; default all of them for rule lists, and those that pay with branchings otherwise.
    skip_trivial : leave out trees with a list step from a leaf that predicts 0 (zero-one loss alone). It makes the set smaller: all
        leaves below predict 0 as well, so such splits say nothing. The optimum stays. Default False.
    max_subproblems, max_nodes : limits on the search and on the table of all trees; beyond them SearchBudgetExceeded.
    backend : "numba" (default) or "python", the same thing to read.

    Raises
    ------
    ValueError : features or labels other than 0 and 1, one label only, no feature, unknown names, numbers out of range.
    TypeError : numbers of the wrong kind.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        depth: int = 3,
        branching: int | None = 1,
        lam: float = 0.001,
        loss: Literal["brier", "zero_one"] = "brier",
        omega: float = 1.0,
        min_leaf: int = 10,
        order: Literal["path", "depth"] | None = "path",
        bounds: Iterable[str] | None = None,
        skip_trivial: bool = False,
        max_subproblems: int = 20_000_000,
        max_nodes: int = 50_000_000,
        backend: Literal["numba", "python"] = "numba",
    ) -> None:
        self.X, self.y = check_binary(X, "X"), check_binary(y, "y")
        if self.X.ndim != 2 or self.X.shape[1] == 0:
            raise ValueError(f"X must be a matrix with at least one feature, got shape {self.X.shape}")
        if self.y.shape != self.X.shape[:1]:
            raise ValueError(f"y must have one label for each of the {self.X.shape[0]} rows of X, got shape {self.y.shape}")
        if self.y.all() or not self.y.any():
            raise ValueError("y must hold both labels, 0 and 1, but all labels are the same")
        self.depth = _integer(depth, "depth", 1)
        self.branching = None if branching is None else _integer(branching, "branching", 0)
        self.lam, self.omega = _number(lam, "lam"), _number(omega, "omega")
        if self.lam < 0:
            raise ValueError(f"lam must be 0 or more, got {lam}")
        if self.omega <= 0:
            raise ValueError(f"omega must be positive, got {omega}")
        self.min_leaf = _integer(min_leaf, "min_leaf", 1)
        if 2 * self.min_leaf > len(self.y):
            raise ValueError(f"min_leaf must leave room for two leaves, at most {len(self.y) // 2} here, got {min_leaf}")
        if loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
        if order not in ORDERS:
            raise ValueError(f"order must be 'path', 'depth' or None, got {order!r}")
        usual = ALL_BOUNDS if self.branching == 0 else WITH_BRANCHINGS
        chosen = usual if bounds is None else frozenset(bounds)
        if chosen - ALL_BOUNDS:
            raise ValueError(
                f"unknown bound {sorted(chosen - ALL_BOUNDS)[0]!r}; the bounds are {', '.join(sorted(ALL_BOUNDS))}"
            )
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
        self.loss, self.order, self.bounds, self.backend = loss, order, chosen, backend
        self.max_nodes = _integer(max_nodes, "max_nodes", 1)
        self.costs = make_costs(int(self.y.sum()), len(self.y), loss, self.omega, self.lam, self.depth)
        problem = make_problem(
            self.X,
            self.y,
            depth=self.depth,
            branching=self.branching,
            min_leaf=self.min_leaf,
            ordered=order is not None,
            skip_trivial=bool(skip_trivial),
            bounds=chosen,
            costs=self.costs,
        )
        self._search: Frontiers = BACKENDS[backend](problem, _integer(max_subproblems, "max_subproblems", 1))
        self._leaf = leaf_cost.py_func(problem.n1, problem.n, self.costs)
        self._optimum: int | None = None  # in units, of order "path" where the order is "depth"
        self._strict_optimum: int | None = None

    @property
    def stats(self) -> Stats:
        """What the search has done since the solver was made."""
        return self._search.stats

    def optimum(self) -> float:
        """R*, the least objective. Raises SearchBudgetExceeded, with the best found so far."""
        return self.costs.to_objective(self._least())

    def _least(self) -> int:
        if self._optimum is None:
            best = self._leaf
            try:
                # With budgets, shallow searches first: their optimum is what deeper ones may spend.
                for depth in range(1 if self._search.budgeted else self.depth, self.depth + 1):
                    best = self._cheapest(depth, best)
            except SearchBudgetExceeded as error:
                raise self._exceeded(error, best, 0) from None
            self._optimum = best
        if self.order != "depth":
            return self._optimum
        if self._strict_optimum is None:
            self._strict_optimum = self._strict()
        return self._strict_optimum

    def _cheapest(self, depth: int, incumbent: int) -> int:
        budget = incumbent if self._search.budgeted else int(NO_TREE)
        pairs = self._search.pairs(self._search.everything, depth, 1.0, budget)[-1]
        return min(incumbent, pairs[-1][1]) if pairs else incumbent

    def _strict(self) -> int:
        """The optimum of order "depth": the cheapest of the trees of order "path" that passes, in ever larger sets."""
        step = max(1, (self._leaf - self._optimum) // 64)
        while True:
            budget = min(self._optimum + step, self._leaf)
            found = self._members(budget)
            for node, cost in zip(found.node.tolist(), found.cost.tolist(), strict=True):
                if is_falling(found.table.tree(node), "depth"):
                    return cost
            step *= 2

    def _exceeded(self, error: SearchBudgetExceeded, incumbent: int, lower_bound: int, partial: object = None):
        message = f"{error.args[0]} were needed; raise the limit, or ask for less depth, fewer features or a smaller set"
        to = self.costs.to_objective
        return SearchBudgetExceeded(message, to(incumbent), to(lower_bound), partial)

    def frontier(self) -> list[tuple[float, float]]:
        """For every cap on the leaf risks the optimum: pairs (largest leaf risk, objective) of internal trees on all rows, risk
        ascending and objective descending. One pair with risk 0 for order None. Raises SearchBudgetExceeded."""
        try:
            pairs = self._search.pairs(self._search.everything, self.depth, 1.0, int(NO_TREE))[-1]
        except SearchBudgetExceeded as error:
            raise self._exceeded(error, self._leaf, 0) from None
        return [(risk, self.costs.to_objective(cost)) for risk, cost in pairs]

    def threshold(self, epsilon: float, mode: Literal["relative", "absolute"] = "relative") -> float:
        """theta = (1 + epsilon) R* or R* + epsilon. ValueError for a negative epsilon or an unknown mode."""
        epsilon = _number(epsilon, "epsilon")
        if epsilon < 0:
            raise ValueError(f"epsilon must be 0 or more, got {epsilon}")
        if mode not in ("relative", "absolute"):
            raise ValueError(f"mode must be 'relative' or 'absolute', got {mode!r}")
        return (1 + epsilon) * self.optimum() if mode == "relative" else self.optimum() + epsilon

    def _budget(self, theta: float) -> int:
        units = self.costs.to_units(_number(theta, "theta"))
        if units < self._least():
            raise ValueError(f"theta must be at least the optimum {self.optimum():.12g}, or the set is empty; got {theta}")
        return units

    def _members(self, budget: int) -> Members:
        try:
            return members(self._search, budget, self.max_nodes)
        except SearchBudgetExceeded as error:
            raise self._exceeded(error, self._optimum, self._optimum) from None

    def rashomon(self, theta: float, limit: int | None = None) -> Members:
        """The trees with R(T) <= theta as a table of shared nodes, cheapest first (ties in a fixed order).

        limit : keep the `limit` cheapest alone; None keeps all.
        Raises ValueError for theta below the optimum or a limit below 1, SearchBudgetExceeded beyond the limits of the search.
        """
        budget = self._budget(theta)
        if limit is not None:
            limit = _integer(limit, "limit", 1)
            if self.order != "depth":
                budget = self._cut(budget, limit)
        found = self._members(budget)
        if self.order == "depth":
            keep = [k for k, node in enumerate(found.node.tolist()) if is_falling(found.table.tree(node), "depth")]
            found = found._replace(node=found.node[keep], cost=found.cost[keep])
        return found if limit is None else found._replace(node=found.node[:limit], cost=found.cost[:limit])

    def _cut(self, budget: int, limit: int) -> int:
        """The least budget that keeps `limit` trees, or `budget` where there are fewer."""
        costs, counts = self._tallies(budget)
        reached = np.flatnonzero(np.cumsum(counts) >= limit)
        return int(costs[reached[0]]) if len(reached) else budget

    def _tallies(self, budget: int) -> tuple[np.ndarray, np.ndarray]:
        try:
            return tallies(self._search, budget)
        except SearchBudgetExceeded as error:
            raise self._exceeded(error, self._optimum, self._optimum) from None

    def enumerate(self, theta: float, limit: int | None = None) -> Iterator[tuple[float, Tree]]:
        """The trees of `rashomon` one by one, each made when it is asked for: (objective, tree)."""
        found = self.rashomon(theta, limit)
        for node, cost in zip(found.node.tolist(), found.cost.tolist(), strict=True):
            yield self.costs.to_objective(cost), found.table.tree(node)

    def count(self, theta: float) -> int:
        """How many trees have R(T) <= theta, without making them (but for order "depth"). ValueError for theta below R*."""
        budget = self._budget(theta)
        if self.order == "depth":
            return len(self.rashomon(theta).node)
        return int(self._tallies(budget)[1].sum())
