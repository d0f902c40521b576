"""The hexagonal lattice of adsorption sites on a close-packed metal surface, in axial coordinates.

Site (q, r) lies at q * (a0, 0) + r * (a0 / 2, a0 * sqrt(3) / 2). Lengths are in nm.
"""

import numpy as np
from numpy.typing import ArrayLike

A0 = 0.2885
"""Lattice constant of Ag(111), nm."""

NEIGHBOURS = np.array([(1, 0), (0, 1), (-1, 1), (-1, 0), (0, -1), (1, -1)], dtype=np.int64)
"""(6, 2): axial steps to the neighbours; step k points at an angle of 60 degrees * k."""


def to_position(sites: ArrayLike, a0: float = A0) -> np.ndarray:
    """Axial coordinates (..., 2) -> positions (..., 2) float64, nm."""
    sites = np.asarray(sites)
    if sites.ndim == 0 or sites.shape[-1] != 2:
        raise ValueError(f"axial coordinates must have shape (..., 2), got {sites.shape}")
    r = sites[..., 1]
    positions = np.empty(sites.shape)
    positions[..., 0] = a0 * (sites[..., 0] + r / 2)
    positions[..., 1] = a0 * (np.sqrt(3) / 2) * r
    return positions


def snap(positions: ArrayLike, a0: float = A0) -> np.ndarray:
    """Positions (..., 2), nm -> axial coordinates (..., 2) int64 of the nearest site (cube rounding).

    Raises ValueError for another shape and for positions that are not finite."""
    positions = np.asarray(positions, dtype=np.float64)
    if positions.ndim == 0 or positions.shape[-1] != 2:
        raise ValueError(f"positions must have shape (..., 2), got {positions.shape}")
    if not np.isfinite(positions).all():
        raise ValueError("positions must be finite")
    r = positions[..., 1] / (a0 * np.sqrt(3) / 2)
    q = positions[..., 0] / a0 - r / 2
    cube = np.stack([q, r, -q - r], axis=-1)
    rounded = np.rint(cube)
    off = np.abs(rounded - cube)
    # The three coordinates sum to zero: the one that rounding moved most follows from the other two.
    worst = off.argmax(axis=-1)
    q_, r_, s_ = rounded[..., 0], rounded[..., 1], rounded[..., 2]
    q_ = np.where(worst == 0, -r_ - s_, q_)
    r_ = np.where(worst == 1, -q_ - s_, r_)
    return np.stack([q_, r_], axis=-1).astype(np.int64)
