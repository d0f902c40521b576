"""All trees by plain recursion, for checking a search on small data: no memory, no bounds, floats, its own definition of falling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from components.trees.tree import Leaf, Split, Tree


def all_trees(X: np.ndarray, y: np.ndarray, depth: int, min_leaf: int) -> Iterator[Tree]:
    """Every tree of at most `depth` splits on a path and at least `min_leaf` rows in a leaf; X (n, p), y (n,) boolean."""
    yield Leaf(len(y), int(y.sum()))
    if depth == 0:
        return
    for j in range(X.shape[1]):
        one = X[:, j]
        if min(one.sum(), (~one).sum()) < min_leaf:
            continue
        right = list(all_trees(X[one], y[one], depth - 1, min_leaf))
        for zero in all_trees(X[~one], y[~one], depth - 1, min_leaf):
            for tree in right:
                yield Split(j, zero, tree)


def objective(tree: Tree, X: np.ndarray, y: np.ndarray, *, loss: str, omega: float, lam: float) -> float:
    """R(T) from the predictions of the tree on its training rows: mean squared error of the risks, or weighted mistakes."""
    risk, count = np.empty(len(y)), 0
    stack = [(tree, np.ones(len(y), dtype=bool))]
    while stack:
        node, here = stack.pop()
        if isinstance(node, Leaf):
            risk[here] = y[here].mean()
            count += 1
        else:
            stack += [(node.zero, here & ~X[:, node.feature]), (node.one, here & X[:, node.feature])]
    if loss == "brier":
        return float(np.mean((y - risk) ** 2)) + lam * count
    predicted = omega * risk > 1 - risk
    mistakes = omega * np.sum(y & ~predicted) + np.sum(~y & predicted)
    return float(mistakes / (omega * y.sum() + (~y).sum())) + lam * count
