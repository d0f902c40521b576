"""Decision trees over binary features, with the rows and positives at each leaf; what makes one falling; how it is told.

A tree is a `Leaf` or a `Split`. At a split on feature j the rows with x_j = 0 go to `zero`, those with x_j = 1 to `one`. The risk
of a leaf is positives / rows.

Falling, order "path": at every split with exactly one leaf child, that leaf's risk is at least every leaf risk on the other side.
Order "depth" is stricter: a leaf nearer to the root never has a smaller risk than one farther away. Risks are compared as floats:
positives / rows is correctly rounded, so that equal fractions are equal numbers and, below 6e7 rows, different ones differ.

Source: Rashomon Sets of Falling Trees; the definition on trees is our reading. Falling rule lists are those without a split of two
internal children.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

ORDERS = ("path", "depth", None)


class Leaf(NamedTuple):
    """n rows, n1 of them positive."""

    n: int
    n1: int

    @property
    def risk(self) -> float:
        return self.n1 / self.n


class Split(NamedTuple):
    """Rows with x[feature] = 0 go to `zero`, the others to `one`."""

    feature: int
    zero: Tree
    one: Tree


Tree = Union[Leaf, Split]  # noqa: UP007 - the name is used before it is bound


def leaves(tree: Tree, depth: int = 0) -> Iterator[tuple[Leaf, int]]:
    """Each leaf with its depth (0 for a tree that is one leaf), zero side first."""
    if isinstance(tree, Leaf):
        yield tree, depth
    else:
        yield from leaves(tree.zero, depth + 1)
        yield from leaves(tree.one, depth + 1)


def leaf_count(tree: Tree) -> int:
    return sum(1 for _ in leaves(tree))


def depth(tree: Tree) -> int:
    """Splits on the longest path."""
    return max(at for _, at in leaves(tree))


def branchings(tree: Tree) -> int:
    """Splits with two internal children."""
    if isinstance(tree, Leaf):
        return 0
    own = isinstance(tree.zero, Split) and isinstance(tree.one, Split)
    return own + branchings(tree.zero) + branchings(tree.one)


def split_counts(tree: Tree, features: int) -> np.ndarray:
    """How often each of `features` columns is split on, (features,) int64."""
    counts = np.zeros(features, dtype=np.int64)
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Split):
            counts[node.feature] += 1
            stack += [node.zero, node.one]
    return counts


def is_falling(tree: Tree, order: str | None = "path") -> bool:
    """Whether the risks of a tree fall, looked at leaf by leaf; any tree does for order None.

    Raises ValueError for an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be 'path', 'depth' or None, got {order!r}")
    if order == "depth":
        by_level: dict[int, list[float]] = {}
        for leaf, at in leaves(tree):
            by_level.setdefault(at, []).append(leaf.risk)
        lowest = 1.0
        for _, risks in sorted(by_level.items()):
            if max(risks) > lowest:
                return False
            lowest = min(lowest, *risks)
        return True
    return order is None or _falls_on_paths(tree)


def _falls_on_paths(tree: Tree) -> bool:
    if isinstance(tree, Leaf):
        return True
    for leaf, other in ((tree.zero, tree.one), (tree.one, tree.zero)):
        below = isinstance(leaf, Leaf) and isinstance(other, Split)
        if below and any(under.risk > leaf.risk for under, _ in leaves(other)):
            return False
    return _falls_on_paths(tree.zero) and _falls_on_paths(tree.one)


class Routed(NamedTuple):
    """Where rows end: the risk and the depth of their leaves (number of conditions), and the leaf's position, each (n,)."""

    risk: np.ndarray
    depth: np.ndarray
    leaf: np.ndarray


def route(tree: Tree, X: np.ndarray) -> Routed:
    """Send the rows of X (n, p), 0/1 or bool, down the tree. ValueError where the tree splits on a column that X lacks."""
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"X must be a matrix of rows by columns, got shape {X.shape}")
    risk, at, position = np.empty(len(X)), np.empty(len(X), dtype=np.int64), np.empty(len(X), dtype=np.int64)
    stack, number = [(tree, np.arange(len(X)), 0)], 0
    while stack:
        node, rows, level = stack.pop()
        if isinstance(node, Leaf):
            risk[rows], at[rows], position[rows] = node.risk, level, number
            number += 1
            continue
        if node.feature >= X.shape[1]:
            raise ValueError(f"the tree splits on column {node.feature}, but X has {X.shape[1]} columns")
        ones = X[rows, node.feature].astype(bool)
        stack += [(node.one, rows[ones], level + 1), (node.zero, rows[~ones], level + 1)]
    return Routed(risk, at, position)


def to_dict(tree: Tree) -> dict[str, Any]:
    """The tree as nested plain dictionaries, for JSON."""
    if isinstance(tree, Leaf):
        return {"n": tree.n, "n1": tree.n1}
    return {"feature": tree.feature, "zero": to_dict(tree.zero), "one": to_dict(tree.one)}


def from_dict(stored: dict[str, Any]) -> Tree:
    """The tree that `to_dict` wrote. ValueError for anything else."""
    if set(stored) == {"n", "n1"}:
        return Leaf(int(stored["n"]), int(stored["n1"]))
    if set(stored) == {"feature", "zero", "one"}:
        return Split(int(stored["feature"]), from_dict(stored["zero"]), from_dict(stored["one"]))
    raise ValueError(f"a node has the keys n and n1, or feature, zero and one; found {sorted(stored)}")


def to_text(tree: Tree, names: Sequence[str] | None = None) -> str:
    """An indented if / else chain, the riskier side of a split first. ValueError where `names` has too few entries."""
    lines: list[str] = []

    def name(feature: int) -> str:
        if names is None:
            return f"x[{feature}]"
        if feature >= len(names):
            raise ValueError(f"the tree splits on column {feature}, but there are {len(names)} names")
        return str(names[feature])

    def totals(node: Tree) -> tuple[int, int]:
        return tuple(np.sum([leaf for leaf, _ in leaves(node)], axis=0))

    def write(node: Tree, prefix: str, level: int) -> None:
        pad = "    " * level
        if isinstance(node, Leaf):
            lines.append(f"{pad}{prefix}risk {node.risk:.3f} ({node.n1} of {node.n})")
            return
        if prefix:
            lines.append(f"{pad}{prefix.rstrip()}")
            level += 1
            pad = "    " * level
        sides = [(node.one, name(node.feature)), (node.zero, f"not {name(node.feature)}")]
        sides.sort(key=lambda side: -totals(side[0])[1] / totals(side[0])[0])
        # a leaf side first: "if ... then" with the rest below it
        sides.sort(key=lambda side: isinstance(side[0], Split))
        write(sides[0][0], f"if {sides[0][1]}: ", level)
        write(sides[1][0], "else: ", level)

    write(tree, "", 0)
    return "\n".join(lines)
