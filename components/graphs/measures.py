"""Measures of predictions and of embeddings near class boundaries."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from components.graphs.checks import check_embeddings, check_labels


def shift_score(z: Tensor, y: Tensor, reference: Tensor, k: int = 5) -> Tensor:
    """Fraction of each node's k nearest reference nodes that carry another label; itself excluded, ties by smaller index.

    Parameters
    ----------
    z : (N, D) embeddings.   y : (N,) integer labels.   reference : (N,) bool, the nodes that are neighbours (training nodes).
    k : at least 1, and fewer than the reference nodes.

    Returns
    -------
    (N,) float64 in [0, 1]. The own label is used: for evaluation only.

    Raises
    ------
    ValueError : malformed or non-finite z, bad k.   TypeError : labels that are not integers.
    """
    check_embeddings(z, "Z")
    check_labels(y, z.shape[0])
    index = reference.nonzero().flatten()
    if not 1 <= k < index.numel():
        raise ValueError(f"k must lie in [1, {index.numel()}), fewer than the reference nodes, got {k}")
    distance = torch.cdist(z.double(), z[index].double(), compute_mode="donot_use_mm_for_euclid_dist")
    distance[index, torch.arange(index.numel())] = torch.inf
    nearest = distance.topk(k, largest=False, sorted=False).indices
    bound = distance.gather(1, nearest).max(1, keepdim=True).values
    # topk promises no order among equal distances: only where more than k lie within the k-th does it matter which.
    tied = ((distance <= bound).sum(1) > k).nonzero().flatten()
    nearest[tied] = distance[tied].sort(dim=1, stable=True).indices[:, :k]
    return (y[index][nearest] != y[:, None]).double().mean(1)


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """sum over bins of (share of predictions) x |accuracy - mean confidence|, bins of equal width (Guo et al. 2017).

    Parameters
    ----------
    confidence : (n,) in [0, 1].   correct : (n,) bool.   bins : default 15.

    Returns
    -------
    In [0, 1]. Raises ValueError for an empty or unequal input, or confidence outside [0, 1].
    """
    confidence, correct = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not confidence.size:
        raise ValueError(
            f"confidence and correct must be two vectors of one length, got {confidence.shape} and {correct.shape}"
        )
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError("confidence must lie in [0, 1]")
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(index, correct - confidence, minlength=bins)
    return float(np.abs(gap).sum() / confidence.size)
