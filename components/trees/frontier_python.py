"""The dynamic program over row sets in plain Python, for reading and for checking the compiled one. Row sets are integers."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from components.trees import costs as c
from components.trees.frontier import (
    BUDGET_CUT,
    CAP_CUT,
    EQUIVALENT_CUT,
    LEAVES_CUT,
    LOSS_CUT,
    REASONS,
    SIDE_CUT,
    SUPPORT_CUT,
    Frontiers,
    Options,
    Problem,
    SearchBudgetExceeded,
    Stats,
)

_leaf_cost, _count_bound = c.leaf_cost.py_func, c.count_bound.py_func
NO_TREE = int(c.NO_TREE)


@dataclass
class Entry:
    """The frontiers of one row set and depth, complete for `cap` and `budget`; one pair of lists (risks, costs) per level."""

    cap: float = 0.0
    budget: int = -1
    risks: list[list[float]] = field(default_factory=list)
    costs: list[list[int]] = field(default_factory=list)

    def best(self, level: int, cap: float) -> int:
        """The least cost of a tree whose risks are at most `cap`."""
        if not self.risks:
            return NO_TREE
        at = bisect_right(self.risks[level], cap)
        return self.costs[level][at - 1] if at else NO_TREE


def _as_int(words: np.ndarray) -> int:
    return int.from_bytes(np.ascontiguousarray(words, dtype="<u8").tobytes(), "little")


def pareto(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The pairs that no other beats in risk and cost, risk ascending, cost descending."""
    kept: list[tuple[float, int]] = []
    for risk, cost in sorted(pairs):
        if not kept or cost < kept[-1][1]:
            kept.append((risk, cost))
    return kept


class PythonFrontiers(Frontiers):
    """See `Frontiers`."""

    def __init__(self, problem: Problem, max_subproblems: int) -> None:
        self.problem, self.max_subproblems = problem, max_subproblems
        self._features = [_as_int(words) for words in problem.features]
        self._all = _as_int(problem.rows)
        self._positive = (1 << (64 * problem.positive_words)) - 1
        self._firsts = _as_int(problem.firsts)
        self._memo: dict[tuple[int, int], Entry] = {}
        self._nothing = Entry()
        self._subproblems = self._hits = 0
        self._pruned = [0] * len(REASONS)

    @property
    def everything(self) -> int:
        return self._all

    def children(self, rows: int, feature: int) -> tuple[int, int]:
        ones = rows & self._features[feature]
        return rows ^ ones, ones

    def count(self, rows: int) -> tuple[int, int]:
        return (rows & self._positive).bit_count(), rows.bit_count()

    @property
    def stats(self) -> Stats:
        return Stats(self._subproblems, self._hits, dict(zip(REASONS, self._pruned, strict=True)))

    def pairs(self, rows: int, depth: int, cap: float, budget: int) -> list[list[tuple[float, int]]]:
        cut = [0] * len(REASONS)
        entry = self._request(rows, *self.count(rows), depth, cap, budget, cut)
        self._commit(cut)
        if not entry.risks:
            return [[] for _ in range(self.problem.levels)]
        both = (zip(risks, costs, strict=True) for risks, costs in zip(entry.risks, entry.costs, strict=True))
        return [[(risk, cost) for risk, cost in level if risk <= cap and cost <= budget] for level in both]

    def options(self, rows: int, depth: int, cap: float, budget: int) -> Options:
        q, p = self.problem, len(self._features)
        cut = [0] * len(REASONS)
        n1, n, ok = np.zeros(p, np.int64), np.zeros(p, np.int64), np.zeros(p, bool)
        listed, branched = (np.full((p, 2), NO_TREE, np.int64) for _ in range(2))
        total1, total = self.count(rows)
        last = q.levels - 1
        for j in range(p):
            sides = self.children(rows, j)
            n1[j], n[j] = self.count(sides[1])
            size = (total - int(n[j]), int(n[j]))
            ones = (total1 - int(n1[j]), int(n1[j]))
            ok[j] = min(size) >= q.min_leaf
            if not ok[j] or depth < 2:
                continue
            for leaf in (0, 1):
                other = 1 - leaf
                risk = ones[leaf] / size[leaf]
                own = _leaf_cost(ones[leaf], size[leaf], q.costs)
                if not self._admits(risk, ones[other] / size[other], cap) or own > budget:
                    continue
                limit = risk if q.ordered else 1.0
                entry = self._request(
                    sides[other],
                    ones[other],
                    size[other],
                    depth - 1,
                    limit if q.hands_down_caps else 1.0,
                    self._left(budget, own),
                    cut,
                )
                found = entry.best(last, limit)
                if found <= budget - own:
                    listed[j, leaf] = found
            if q.branching:
                found = self._both(sides, ones, size, depth, cap, budget, cut)
                if found is not None:
                    least = [entry.best(last if q.unlimited else last - 1, cap) for entry in found]
                    if sum(least) <= budget:
                        branched[j] = least
        self._commit(cut)
        return Options(n1, n, ok, listed, branched)

    def _commit(self, cut: list[int]) -> None:
        self._pruned = [a + b for a, b in zip(self._pruned, cut, strict=True)]

    def _admits(self, risk: float, other: float, cap: float) -> bool:
        """Whether a list step from a leaf of this risk, with the mean risk `other` beside it, can be falling under the cap."""
        q = self.problem
        return not q.ordered or (other <= risk <= cap and risk > q.trivial_risk)

    def _left(self, budget: int, spent: int) -> int:
        return budget - spent if self.budgeted else NO_TREE

    def _equivalent(self, rows: int) -> int:
        """No tree on these rows loses less than a leaf for each distinct feature vector would."""
        total, left = -self.problem.costs.slack, rows & self._firsts
        while left:
            lowest = left & -left
            total += int(self.problem.group_costs[lowest.bit_length() - 1])
            left ^= lowest
        return max(total, 0)

    def _bound(self, rows: int, ones: int, size: int, cap: float) -> int:
        q = self.problem
        bound = _count_bound(ones, size, cap, q.flags, q.costs)
        if q.flags & c.EQUIVALENT:
            bound = max(bound, self._equivalent(rows) + (2 * q.costs.lam if q.flags & c.TWO_LEAVES else 0))
        return bound

    def _both(self, sides, ones, size, depth, cap, budget, cut) -> tuple[Entry, Entry] | None:
        """The frontiers of both sides of a branching, or None where one has no tree within cap and budget."""
        q = self.problem
        handed = cap if q.hands_down_caps else 1.0
        if min(size) < 2 * q.min_leaf:
            cut[SUPPORT_CUT] += 1
            return None
        if q.ordered and q.flags & c.CAP and max(ones[0] / size[0], ones[1] / size[1]) > cap:
            cut[CAP_CUT] += 1
            return None
        first = self._left(budget, self._bound(sides[1], ones[1], size[1], handed)) if self.budgeted else NO_TREE
        if first < 0:
            cut[BUDGET_CUT] += 1
            return None
        level = q.levels - 1 if q.unlimited else q.levels - 2
        zero = self._request(sides[0], ones[0], size[0], depth - 1, handed, first, cut)
        least = zero.best(level, cap)
        if least >= NO_TREE or least > first:
            cut[BUDGET_CUT] += 1
            return None
        one = self._request(sides[1], ones[1], size[1], depth - 1, handed, self._left(budget, least), cut)
        return (zero, one) if one.best(level, cap) < NO_TREE else None

    def _request(self, rows: int, ones: int, size: int, depth: int, cap: float, budget: int, cut: list[int]) -> Entry:
        """The entry of (rows, depth), complete for cap and budget; an empty one where a bound says that there is no tree."""
        q = self.problem
        if size < 2 * q.min_leaf:
            cut[SUPPORT_CUT] += 1
            return self._nothing
        if q.ordered and q.flags & c.CAP and ones / size > cap:
            cut[CAP_CUT] += 1
            return self._nothing
        if budget < 0:
            cut[BUDGET_CUT] += 1
            return self._nothing
        bound = _count_bound(ones, size, cap, q.flags, q.costs)
        if bound > budget:
            alone = bound - 2 * q.costs.lam if q.flags & c.TWO_LEAVES else bound
            cut[LOSS_CUT if alone > budget else LEAVES_CUT] += 1
            return self._nothing
        entry = self._memo.get((rows, depth))
        if entry is not None and cap <= entry.cap and budget <= entry.budget:
            self._hits += 1
            return entry
        if q.flags & c.EQUIVALENT and self._bound(rows, ones, size, cap) > budget:
            cut[EQUIVALENT_CUT] += 1
            return self._nothing
        if self._subproblems >= self.max_subproblems:
            raise SearchBudgetExceeded(f"more than {self.max_subproblems} subproblems", NO_TREE, 0)
        if entry is None:
            entry = Entry()
        return self._expand(entry, rows, ones, size, depth, max(cap, entry.cap), max(budget, entry.budget))

    def _expand(self, entry: Entry, rows: int, ones: int, size: int, depth: int, cap: float, budget: int) -> Entry:
        q = self.problem
        found: list[list[tuple[float, int]]] = [[] for _ in range(q.levels)]
        cut = [0] * len(REASONS)
        for j in range(len(self._features)):
            sides = self.children(rows, j)
            right1, right = self.count(sides[1])
            counts1, counts = (ones - right1, right1), (size - right, right)
            if min(counts) < q.min_leaf:
                continue
            risks = (counts1[0] / counts[0], counts1[1] / counts[1])
            own = tuple(_leaf_cost(counts1[k], counts[k], q.costs) for k in (0, 1))
            highest = max(risks) if q.ordered else 0.0
            if highest <= cap and sum(own) <= budget:
                found[0].append((highest, sum(own)))
            if depth < 2:
                continue
            for leaf in (0, 1):
                self._list_step(found, sides, counts1, counts, risks, own, leaf, depth, cap, budget, cut)
            if q.branching:
                both = self._both(sides, counts1, counts, depth, cap, budget, cut)
                if both is not None:
                    self._join(found, both, cap, budget)
        merged: list[tuple[float, int]] = []
        entry.risks, entry.costs = [], []
        for level in range(q.levels):
            merged = pareto(merged + found[level])
            entry.risks.append([risk for risk, _ in merged])
            entry.costs.append([cost for _, cost in merged])
        entry.cap, entry.budget = cap, budget
        self._memo[rows, depth] = entry
        self._subproblems += 1
        self._commit(cut)
        return entry

    def _list_step(self, found, sides, ones, size, risks, own, leaf, depth, cap, budget, cut) -> None:
        q, other = self.problem, 1 - leaf
        limit = handed = 1.0
        if q.ordered:
            if q.flags & c.LEAF_SIDE and risks[leaf] < risks[other]:
                cut[SIDE_CUT] += 1
                return
            if risks[leaf] > cap or risks[leaf] <= q.trivial_risk:
                return
            limit = risks[leaf]
            handed = limit if q.hands_down_caps else 1.0
        entry = self._request(sides[other], ones[other], size[other], depth - 1, handed, self._left(budget, own[leaf]), cut)
        for level in range(q.levels):
            cost = entry.best(level, limit)
            if cost < NO_TREE and cost + own[leaf] <= budget:
                found[level].append((limit if q.ordered else 0.0, cost + own[leaf]))

    def _join(self, found, both: tuple[Entry, Entry], cap: float, budget: int) -> None:
        q = self.problem
        combinations = [(0, 0, 0)] if q.unlimited else [
            (a, b, a + b + 1) for a in range(q.levels - 1) for b in range(q.levels - 1 - a)
        ]  # fmt: skip
        for a, b, target in combinations:
            for risk in sorted({*both[0].risks[a], *both[1].risks[b]}):
                first, second = both[0].best(a, risk), both[1].best(b, risk)
                if risk <= cap and max(first, second) < NO_TREE and first + second <= budget:
                    found[target].append((risk, first + second))
