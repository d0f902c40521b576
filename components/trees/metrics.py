"""How few conditions the decisions about those at the highest risk take."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def top_sparsity(risk: ArrayLike, depth: ArrayLike, share: float = 0.1) -> float:
    """Mean number of conditions on the paths of the `share` of rows with the highest risk, ties at its edge kept.

    risk, depth : (n,), predicted risk and number of conditions of each row. Raises ValueError for other shapes, no rows, or a share
    outside (0, 1]."""
    risk, depth = np.asarray(risk, dtype=np.float64), np.asarray(depth, dtype=np.float64)
    if risk.ndim != 1 or risk.shape != depth.shape or not risk.size:
        raise ValueError(f"risk and depth must be sequences of one length, not empty, got {risk.shape} and {depth.shape}")
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")
    least = np.sort(risk)[::-1][max(1, int(np.ceil(share * risk.size))) - 1]
    return float(depth[risk >= least].mean())
