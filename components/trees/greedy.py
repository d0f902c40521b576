"""A falling rule list made greedily: always the condition whose people are at the highest risk, as long as risks fall."""

from __future__ import annotations

import numpy as np

from components.trees.solver import check_binary
from components.trees.tree import Leaf, Split, Tree


def greedy_falling_list(X: np.ndarray, y: np.ndarray, depth: int, min_leaf: int = 10) -> Tree:
    """At each step the feature, or its complement, whose side has the highest risk, not above that of the step before, with at
    least `min_leaf` rows on both sides; it stops where the rest would have a higher risk, or after `depth` steps.

    X (n, p), y (n,) of 0 and 1. Raises ValueError for depth or min_leaf below 1, or other values.

    Source: a greedy counterpart of Wang and Rudin, "Falling Rule Lists"."""
    X, y = check_binary(X, "X"), check_binary(y, "y")
    if depth < 1 or min_leaf < 1:
        raise ValueError(f"depth and min_leaf must be at least 1, got {depth} and {min_leaf}")
    steps: list[tuple[int, bool, Leaf]] = []
    rows, cap = np.arange(len(y)), 1.0
    while len(steps) < depth:
        here, positive = X[rows], y[rows]
        held, hits = here.sum(0), here[positive].sum(0)
        n = np.stack([len(rows) - held, held])  # zero side, one side
        n1 = np.stack([positive.sum() - hits, hits])
        with np.errstate(divide="ignore", invalid="ignore"):
            risk = n1 / n
            rest = n1[::-1] / n[::-1]
        fits = (n >= min_leaf) & (n[::-1] >= min_leaf) & (risk <= cap) & (risk >= rest)
        if not fits.any():
            break
        side, feature = divmod(int(np.where(fits, risk, -1.0).argmax()), X.shape[1])
        steps.append((feature, bool(side), Leaf(int(n[side, feature]), int(n1[side, feature]))))
        cap = float(risk[side, feature])
        rows = rows[X[rows, feature] != bool(side)]
    tree: Tree = Leaf(len(rows), int(y[rows].sum()))
    for feature, side, leaf in reversed(steps):
        tree = Split(feature, tree, leaf) if side else Split(feature, leaf, tree)
    return tree
