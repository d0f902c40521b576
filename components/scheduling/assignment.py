"""Which molecule goes to which target: the matching of least total straight-line distance.

Its value is a lower bound on the length of every plan that fills all targets, because no path is shorter than the straight
line. Molecules left over (there may be more molecules than targets) stay unassigned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree


@dataclass(frozen=True, eq=False)
class Assignment:
    """Attributes:
    target: (M,) int64, the target of each molecule, -1 for a surplus one.
    lower_bound: the total straight-line distance, in the unit of the positions (nm).
    """

    target: np.ndarray
    lower_bound: float

    @property
    def surplus(self) -> np.ndarray:
        """Molecules without a target, int64."""
        return np.flatnonzero(self.target < 0)


def assign(starts: ArrayLike, targets: ArrayLike, c: float = 0.0) -> Assignment:
    """Minimum total distance assignment of all N targets to M >= N molecules.

    Args:
        starts: (M, 2) positions of the molecules, nm.
        targets: (N, 2) positions to fill, nm.
        c: contact distance; two starts or two targets closer than this are refused. 0 asks for nothing.

    Raises ValueError for other shapes, no target, N > M, positions that are not finite, and positions closer than c.
    """
    starts, targets = check_positions(starts, "start", c), check_positions(targets, "target", c)
    if len(targets) > len(starts):
        raise ValueError(f"there are {len(targets)} targets but only {len(starts)} molecules; every target needs a molecule")
    distance = np.linalg.norm(starts[:, None] - targets[None], axis=-1)
    molecules, chosen = linear_sum_assignment(distance)
    target = np.full(len(starts), -1, dtype=np.int64)
    target[molecules] = chosen
    return Assignment(target, float(distance[molecules, chosen].sum()))


def check_positions(positions: ArrayLike, what: str, c: float) -> np.ndarray:
    """`positions` as an (n, 2) float64 array, n >= 1; ValueError, naming `what` they are, unless finite and c or more apart."""
    points = np.array(positions, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise ValueError(f"{what} positions must have shape (n, 2) with n >= 1, got {points.shape}")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        index = int(np.flatnonzero(~finite)[0])
        raise ValueError(f"{what} {index} is at {tuple(points[index].tolist())}; positions must be finite")
    if not (np.isfinite(c) and c >= 0):
        raise ValueError(f"the contact distance c must be a number >= 0, got {c}")
    if c > 0 and len(points) > 1:
        near, second = KDTree(points).query(points, k=2)
        near = near[:, 1]
        index = int(near.argmin())
        # A lattice distance may equal c up to rounding.
        if near[index] < c - 1e-9:
            other = int(second[index][second[index] != index][0])
            raise ValueError(
                f"{what}s {min(index, other)} and {max(index, other)} are {near[index]:.4g} nm apart; "
                f"the contact distance is {c:.4g} nm"
            )
    return points
