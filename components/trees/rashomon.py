"""All trees within a budget, as one table of shared nodes.

Two passes over the row sets that members can reach. Downwards: which cap and budget each row set must be complete for, from exact
completion costs, so that no set is visited that no member needs. Upwards: for each row set the list of its subtrees within that cap
and budget, each a row of the table (feature, zero child, one child) whose children are rows of the lists below. A subtree is stored
once for its rows and depth, however many trees contain it.

`count` does the same with (risk, cost, branchings) and a multiplicity instead of subtrees, so it needs no room for the trees.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from components.trees.costs import NO_TREE, leaf_cost
from components.trees.frontier import Frontiers, SearchBudgetExceeded
from components.trees.tree import Leaf, Split, Tree

_leaf = leaf_cost.py_func


class NodeTable(NamedTuple):
    """Every node of every member: feature, zero, one (N,) int64, -1 at leaves; n, n1 (N,) int64, rows and positives."""

    feature: np.ndarray
    zero: np.ndarray
    one: np.ndarray
    n: np.ndarray
    n1: np.ndarray

    def tree(self, node: int) -> Tree:
        """The tree below a node."""
        feature = int(self.feature[node])
        if feature < 0:
            return Leaf(int(self.n[node]), int(self.n1[node]))
        return Split(feature, self.tree(int(self.zero[node])), self.tree(int(self.one[node])))


class Members(NamedTuple):
    """Trees by cost: node (K,) int64, cost in units (K,) int64, and the table that holds them."""

    node: np.ndarray
    cost: np.ndarray
    table: NodeTable


class _Reach(NamedTuple):
    """What a row set at some depth must be complete for, and the splits that trees of members begin with there."""

    cap: float
    budget: int


class _Splits(NamedTuple):
    """Splits of a row set: feature, the two sides, their counts, which kinds of split are wanted there."""

    feature: int
    sides: tuple[Hashable, Hashable]
    n1: tuple[int, int]
    n: tuple[int, int]
    listed: tuple[int, int]  # cheapest completion of a list step with its leaf on side 0, on side 1; NO_TREE for none
    branched: tuple[int, int]


def _descend(search: Frontiers, depth: int, budget: int) -> list[dict[Hashable, tuple[_Reach, list[_Splits]]]]:
    """By splits left (index 1 to depth): the row sets that members reach, their reach and splits, in a fixed order."""
    levels: list[dict[Hashable, tuple[_Reach, list[_Splits]]]] = [{} for _ in range(depth + 1)]
    wanted: dict[Hashable, _Reach] = {search.everything: _Reach(1.0, budget)}
    for left in range(depth, 0, -1):
        below: dict[Hashable, _Reach] = {}

        def ask(rows: Hashable, cap: float, spend: int, below: dict[Hashable, _Reach] = below) -> None:
            known = below.get(rows, _Reach(cap, spend))
            below[rows] = _Reach(max(known.cap, cap), max(known.budget, spend))

        for rows, reach in wanted.items():
            levels[left][rows] = (reach, _splits(search, rows, left, reach, ask))
        wanted = below
    return levels


def _splits(search: Frontiers, rows: Hashable, left: int, reach: _Reach, ask) -> list[_Splits]:
    problem = search.problem
    total1, total = search.count(rows)
    options = search.options(rows, left, reach.cap, reach.budget)
    found = []
    for j in np.flatnonzero(options.ok).tolist():
        n1 = (total1 - int(options.n1[j]), int(options.n1[j]))
        n = (total - int(options.n[j]), int(options.n[j]))
        own = [_leaf(n1[a], n[a], problem.costs) for a in (0, 1)]
        listed = tuple(int(cost) for cost in options.listed[j])
        branched = tuple(int(cost) for cost in options.branched[j])
        if sum(own) > reach.budget and min(*listed, branched[0]) >= NO_TREE:
            continue
        sides = search.children(rows, j)
        for a in (0, 1):
            if listed[a] < NO_TREE:
                ask(sides[1 - a], n1[a] / n[a] if problem.ordered else 1.0, reach.budget - own[a])
        if branched[0] < NO_TREE:
            ask(sides[0], reach.cap, reach.budget - branched[1])
            ask(sides[1], reach.cap, reach.budget - branched[0])
        found.append(_Splits(j, sides, n1, n, listed, branched))
    return found


class _Block(NamedTuple):
    """Subtrees of one row set by cost: largest leaf risk, cost, branchings, and a node or a multiplicity, each (k,)."""

    risk: np.ndarray
    cost: np.ndarray
    branchings: np.ndarray
    payload: np.ndarray

    def within(self, cap: float, budget: int, branchings: int) -> _Block:
        keep = (self.risk <= cap) & (self.cost <= budget) & (self.branchings <= branchings)
        return self if keep.all() else _Block(*(column[keep] for column in self))


def _block(parts: list[_Block]) -> _Block:
    joined = _Block(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.argsort(joined.cost, kind="stable")
    return _Block(*(column[order] for column in joined))


def _products(zero: _Block, one: _Block, budget: int, branchings: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of all pairs of subtrees (both sorted by cost) within budget and branchings."""
    partners = np.searchsorted(one.cost, budget - zero.cost, side="right")
    first = np.repeat(np.arange(len(partners)), partners)
    second = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    keep = zero.branchings[first] + one.branchings[second] < branchings
    return first[keep], second[keep]


class _Builder:
    """The upward pass."""

    def __init__(self, search: Frontiers, most: int | None) -> None:
        self.problem, self.most = search.problem, most
        self.search = search
        self.size = 0
        self.columns: list[list[np.ndarray]] = [[], [], [], [], []]
        self.leaf_nodes: dict[Hashable, int] = {}

    def append(self, feature, zero, one, n, n1) -> np.ndarray:
        count = len(feature)
        if self.most is not None and self.size + count > self.most:
            raise SearchBudgetExceeded(f"more than {self.most} nodes", int(NO_TREE), 0)
        for column, values in zip(self.columns, (feature, zero, one, n, n1), strict=True):
            column.append(np.asarray(values, dtype=np.int64))
        self.size += count
        return np.arange(self.size - count, self.size)

    def leaf(self, rows: Hashable, n1: int, n: int) -> int:
        node = self.leaf_nodes.get(rows)
        if node is None:
            node = self.leaf_nodes[rows] = int(self.append([-1], [-1], [-1], [n], [n1])[0])
        return node

    def table(self) -> NodeTable:
        return NodeTable(*(np.concatenate(column) if column else np.empty(0, np.int64) for column in self.columns))

    def subtrees(self, rows: Hashable, reach: _Reach, splits: list[_Splits], below: dict[Hashable, _Block]) -> _Block | None:
        """The row set's subtrees within its reach as new rows of the table; None where there are none."""
        q, parts, built = self.problem, [], []
        for split in splits:
            own = [_leaf(split.n1[a], split.n[a], q.costs) for a in (0, 1)]
            risks = [split.n1[a] / split.n[a] if q.ordered else 0.0 for a in (0, 1)]
            nodes: list[tuple[_Block, np.ndarray, np.ndarray]] = []
            if sum(own) <= reach.budget and max(risks) <= reach.cap:
                pair = [self.leaf(split.sides[a], split.n1[a], split.n[a]) for a in (0, 1)]
                one_row = _Block(np.array([max(risks)]), np.array([sum(own)]), np.zeros(1, np.int64), np.zeros(1, np.int64))
                nodes.append((one_row, np.array(pair[:1]), np.array(pair[1:])))
            for a in (0, 1):
                if split.listed[a] < NO_TREE:
                    leaf = self.leaf(split.sides[a], split.n1[a], split.n[a])
                    limit = risks[a] if q.ordered else 1.0
                    other = below[split.sides[1 - a]].within(limit, reach.budget - own[a], q.branching)
                    fixed = np.full(len(other.cost), leaf)
                    step = _Block(np.full(len(fixed), risks[a]), other.cost + own[a], other.branchings, other.payload)
                    nodes.append((step, fixed, other.payload) if a == 0 else (step, other.payload, fixed))
            if split.branched[0] < NO_TREE:
                sides = [
                    below[split.sides[a]].within(reach.cap, reach.budget - split.branched[1 - a], q.branching - 1)
                    for a in (0, 1)
                ]
                first, second = _products(*sides, reach.budget, q.branching)
                zero, one = (_Block(*(column[at] for column in side)) for side, at in zip(sides, (first, second), strict=True))
                both = _Block(
                    np.maximum(zero.risk, one.risk), zero.cost + one.cost, zero.branchings + one.branchings + 1, zero.payload
                )
                nodes.append((both, zero.payload, one.payload))
            parts += [block for block, _, _ in nodes]
            built += [(np.full(len(zero), split.feature), zero, one) for _, zero, one in nodes]
        if not parts or not sum(len(block.cost) for block in parts):
            return None
        total1, total = self.search.count(rows)
        columns = [np.concatenate(column) for column in zip(*built, strict=True)]
        count = len(columns[0])
        nodes = self.append(*columns, np.full(count, total), np.full(count, total1))
        joined = _block([block._replace(payload=np.zeros_like(block.cost)) for block in parts])
        order = np.argsort(np.concatenate([block.cost for block in parts]), kind="stable")
        return joined._replace(payload=nodes[order])

    def tallies(self, reach: _Reach, splits: list[_Splits], below: dict[Hashable, _Block]) -> _Block | None:
        """The same as (risk, cost, branchings) with multiplicities."""
        q, parts = self.problem, []
        for split in splits:
            own = [_leaf(split.n1[a], split.n[a], q.costs) for a in (0, 1)]
            risks = [split.n1[a] / split.n[a] if q.ordered else 0.0 for a in (0, 1)]
            if sum(own) <= reach.budget and max(risks) <= reach.cap:
                parts.append(_Block(np.array([max(risks)]), np.array([sum(own)]), np.zeros(1, np.int64), np.ones(1, np.int64)))
            for a in (0, 1):
                if split.listed[a] < NO_TREE:
                    limit = risks[a] if q.ordered else 1.0
                    other = below[split.sides[1 - a]].within(limit, reach.budget - own[a], q.branching)
                    parts.append(other._replace(risk=np.full(len(other.cost), risks[a]), cost=other.cost + own[a]))
            if split.branched[0] < NO_TREE:
                zero, one = (
                    below[split.sides[a]].within(reach.cap, reach.budget - split.branched[1 - a], q.branching - 1)
                    for a in (0, 1)
                )
                first, second = _products(zero, one, reach.budget, q.branching)
                parts.append(
                    _Block(
                        np.maximum(zero.risk[first], one.risk[second]),
                        zero.cost[first] + one.cost[second],
                        zero.branchings[first] + one.branchings[second] + 1,
                        zero.payload[first] * one.payload[second],
                    )
                )
        if not parts or not sum(len(block.cost) for block in parts):
            return None
        joined = _block(parts)
        order = np.lexsort((joined.branchings, joined.risk, joined.cost))
        joined = _Block(*(column[order] for column in joined))
        new = np.ones(len(order), dtype=bool)
        for column in joined[:3]:
            new[1:] &= column[1:] == column[:-1]
        new[1:] = ~new[1:]
        starts = np.flatnonzero(new)
        return _Block(
            joined.risk[starts], joined.cost[starts], joined.branchings[starts], np.add.reduceat(joined.payload, starts)
        )


def _single_leaf(search: Frontiers) -> int:
    return _leaf(search.problem.n1, search.problem.n, search.problem.costs)


def members(search: Frontiers, budget: int, max_nodes: int | None = None) -> Members:
    """All trees whose cost is at most `budget` (units), cheapest first, the single leaf among them.

    Raises SearchBudgetExceeded where the table would have more than `max_nodes` nodes.
    """
    builder = _Builder(search, max_nodes)
    below: dict[Hashable, _Block] = {}
    for level in _descend(search, search.problem.depth, budget)[1:]:
        here = {}
        for rows, (reach, splits) in level.items():
            block = builder.subtrees(rows, reach, splits, below)
            if block is not None:
                here[rows] = block
        below = here
    nodes, costs = np.empty(0, np.int64), np.empty(0, np.int64)
    if search.everything in below:
        block = below[search.everything].within(1.0, budget, search.problem.branching)
        nodes, costs = block.payload, block.cost
    own = _single_leaf(search)
    if own <= budget:
        leaf = builder.append([-1], [-1], [-1], [search.problem.n], [search.problem.n1])
        nodes, costs = np.concatenate([leaf, nodes]), np.concatenate([[own], costs])
        order = np.argsort(costs, kind="stable")
        nodes, costs = nodes[order], costs[order]
    return Members(nodes, costs, builder.table())


def tallies(search: Frontiers, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct costs of all trees within `budget`, ascending, and how many trees have each: (k,) int64 units, (k,) int64."""
    builder = _Builder(search, None)
    below: dict[Hashable, _Block] = {}
    for level in _descend(search, search.problem.depth, budget)[1:]:
        counted = {rows: builder.tallies(reach, splits, below) for rows, (reach, splits) in level.items()}
        below = {rows: block for rows, block in counted.items() if block is not None}
    costs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    if search.everything in below:
        block = below[search.everything]
        keep = block.cost <= budget
        costs, counts = block.cost[keep], block.payload[keep]
    own = _single_leaf(search)
    if own <= budget:
        costs, counts = np.concatenate([[own], costs]), np.concatenate([[1], counts])
    distinct, place = np.unique(costs, return_inverse=True)
    totals = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(totals, place.reshape(-1), counts)
    return distinct, totals


def trees(found: Members) -> Iterator[tuple[int, Tree]]:
    """The members one by one, made when they are asked for: (cost in units, tree)."""
    for node, cost in zip(found.node.tolist(), found.cost.tolist(), strict=True):
        yield cost, found.table.tree(node)
