"""Contextual stochastic block model with planted boundary nodes, whose features and edges lean towards another class.

Features: x_i = (1 - lambda_i) mu_{y_i} + lambda_i mu_{o(i)} + N(0, I), lambda_i ~ U(0, shift) for boundary nodes, else 0.
Edges:    node i draws Poisson(degree w_i / 2) partners, w Pareto distributed with mean 1; a partner is of the own class with
          probability hom (boundary_hom for boundary nodes), otherwise of a random other class (of o(i)), within the class by w.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch_geometric.data import Data

from components.graphs.checks import undirected


def boundary_csbm(
    n: int = 2000,
    classes: int = 5,
    dim: int = 50,
    boundary: float = 0.3,
    hom: float = 0.75,
    boundary_hom: float = 0.35,
    degree: float = 6.0,
    shift: float = 0.3,
    tail: float = 2.5,
    seed: int = 0,
) -> Data:
    """Draw a graph.

    Parameters
    ----------
    n : nodes, at least 2 per class.   classes : C >= 2.   dim : features.
    boundary : share of planted boundary nodes, in [0, 1].   hom, boundary_hom : own-class probability of a partner, in [0, 1].
    degree : expected number of neighbours before duplicates merge, > 0.
    shift : largest lean of a boundary node's mean towards its other class, in [0, 1].   tail : Pareto exponent, > 1.

    Returns
    -------
    Data with x (n, dim) float32, y (n,) int64, edge_index (2, E) int64 in both directions, is_boundary (n,) bool. Class means are
    random directions of length sqrt(dim) / 4, noise has unit variance.

    Raises
    ------
    ValueError : a parameter out of its range.
    """
    if classes < 2 or n < 2 * classes or dim < 1:
        raise ValueError(
            f"at least 2 classes, 2 nodes per class and 1 feature are needed, got n={n}, classes={classes}, dim={dim}"
        )
    for name, value in (("boundary", boundary), ("hom", hom), ("boundary_hom", boundary_hom), ("shift", shift)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")
    if not degree > 0 or not tail > 1:
        raise ValueError(f"degree must be positive and tail above 1, got {degree} and {tail}")
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % classes)
    is_boundary = np.zeros(n, dtype=bool)
    is_boundary[rng.choice(n, round(boundary * n), replace=False)] = True
    other = (y + rng.integers(1, classes, n)) % classes

    means = rng.normal(size=(classes, dim))
    means *= math.sqrt(dim) / 4 / np.linalg.norm(means, axis=1, keepdims=True)
    lean = np.where(is_boundary, rng.uniform(0, shift, n), 0.0)[:, None]
    x = (1 - lean) * means[y] + lean * means[other] + rng.normal(size=(n, dim))

    weight = rng.pareto(tail, n) + 1
    weight /= weight.mean()
    source = np.repeat(np.arange(n), rng.poisson(degree * weight / 2))
    own = rng.random(source.size) < np.where(is_boundary, boundary_hom, hom)[source]
    random_other = (y[source] + rng.integers(1, classes, source.size)) % classes
    foreign = np.where(is_boundary[source], other[source], random_other)
    wanted = np.where(own, y[source], foreign)
    # Within a class by weight: nodes are grouped by class, and a uniform number falls into the class's stretch of the
    # cumulated weights.
    order = np.argsort(y, kind="stable")
    cumulated = np.concatenate([[0.0], np.cumsum(weight[order])])
    ends = np.concatenate([[0], np.cumsum(np.bincount(y, minlength=classes))])
    low, high = cumulated[ends[wanted]], cumulated[ends[wanted + 1]]
    position = np.searchsorted(cumulated, low + rng.random(source.size) * (high - low), side="right") - 1
    target = order[np.clip(position, ends[wanted], ends[wanted + 1] - 1)]

    edges = torch.from_numpy(np.stack([np.concatenate([source, target]), np.concatenate([target, source])]))
    return Data(
        x=torch.from_numpy(x).float(),
        y=torch.from_numpy(y),
        edge_index=undirected(edges, n),
        is_boundary=torch.from_numpy(is_boundary),
    )
