"""Stratified splits of nodes into training, validation and test parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

PARTS = ("train", "val", "test")


def stratified_split(y: ArrayLike, *, train: float = 0.6, val: float = 0.2, seed: int = 0) -> np.ndarray:
    """Part of each node, (N,) int8: 0 train, 1 val, 2 test (indices into PARTS), class by class.

    Parameters
    ----------
    y : (N,) integer labels.   train, val : shares of each class, rounded, default 60 and 20%; the rest is test.
    seed : of the shuffles.

    Raises
    ------
    ValueError : shares not positive or together not below 1, or a class too small to be in all three parts.
    TypeError : labels that are not integers.
    """
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"y must hold integer labels, got {labels.dtype}")
    if not (train > 0 and val > 0 and train + val < 1):
        raise ValueError(f"train and val must be positive and together below 1, got {train} and {val}")
    rng = np.random.default_rng(seed)
    part = np.full(labels.size, 2, dtype=np.int8)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        first, second = round(train * members.size), round((train + val) * members.size)
        if not 0 < first < second < members.size:
            raise ValueError(f"class {label} has {members.size} nodes, too few for train, val and test parts")
        part[members[:first]], part[members[first:second]] = 0, 1
    return part
