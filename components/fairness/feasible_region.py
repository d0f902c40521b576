"""Which pairs (PPV, FOR) all groups can have at once: the region under sufficiency, with its lower boundary arc by arc.

The regions of the groups intersect in  p_low <= p <= p_high,  Q(p) <= q <= q_top,  with

    p_low = largest base rate      p_high = least of the highest scores      q_top = least base rate
    Q(p) = max over groups of q_min(p), rising in p

On the edge p = p_low the group of that base rate is selected whole (its FOR is undefined), on the edge q = q_top the group of
that base rate is not selected at all (its PPV is undefined).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from components.fairness.group_scores import TOLERANCE, GroupScores


class NoSufficientClassifier(ValueError):
    """No decision has the same PPV and FOR in all groups."""


@dataclass(frozen=True, eq=False)
class FeasibleRegion:
    """The feasible pairs (p, q); its lower boundary consists of arcs q = (A p + B) / (p + C) between successive vertices.

    Attributes
    ----------
    p_low, p_high, q_top : bounds as above.
    p_star : the largest feasible p, where Q reaches q_top or p_high is reached.
    vertices : (v, 2), points (p, Q(p)) from p_low to p_star; between two of them one arc of one group is active.
    active_group : (v - 1,) int64, position of the group whose arc it is.
    arcs : (v - 1, 3), A, B, C of the active arc.
    """

    groups: tuple[GroupScores, ...]
    p_low: float
    p_high: float
    q_top: float
    p_star: float
    vertices: np.ndarray
    active_group: np.ndarray
    arcs: np.ndarray

    def curve(self, p: ArrayLike) -> np.ndarray:
        """Q(p), any shape, for p in [p_low, p_high]. ValueError outside."""
        return lower_curve(self.groups, p)


def check_groups(groups: Sequence[GroupScores]) -> tuple[GroupScores, ...]:
    """The groups as a tuple. ValueError for fewer than two, TypeError for something else than GroupScores."""
    groups = tuple(groups)
    if not all(isinstance(group, GroupScores) for group in groups):
        raise TypeError("groups must be a sequence of GroupScores")
    if len(groups) < 2:
        raise ValueError(f"sufficiency compares groups: at least two are needed, got {len(groups)}")
    return groups


def weights_of(groups: Sequence[GroupScores]) -> np.ndarray:
    """(K,) shares of the population, sum 1."""
    weights = np.array([group.weight for group in groups])
    return weights / weights.sum()


def lower_curve(groups: Sequence[GroupScores], p: ArrayLike) -> np.ndarray:
    """Q(p) = max over groups of q_min(p)."""
    return np.max([group.q_min(p) for group in groups], axis=0)


def quadratic_roots(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Real roots of a x^2 + b x + c, elementwise: (..., 2). NaN or infinite where there is none; a = 0 is a line.

    The root of larger size comes from the sum without cancellation, the other one from the product of the two.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        half = -0.5 * (b + np.copysign(np.sqrt(b * b - 4 * a * c), b))
        return np.stack([half / a, c / half], axis=-1)


def feasible_region(groups: Sequence[GroupScores]) -> FeasibleRegion:
    """Intersect the groups' regions. Raises NoSufficientClassifier where nothing is left, ValueError for fewer than two groups."""
    groups = check_groups(groups)
    p_low = max(group.base_rate for group in groups)
    q_top = min(group.base_rate for group in groups)
    p_high = min(group.scores[0] for group in groups)
    bounds = f"p_low = {p_low:.6g} (largest base rate), p_high = {p_high:.6g} (least of the highest scores), q_top = {q_top:.6g} (least base rate)"
    if p_low > p_high + TOLERANCE:
        raise NoSufficientClassifier(f"no PPV is possible in all groups: {bounds}")
    p_low = min(p_low, p_high)
    if lower_curve(groups, p_low) > q_top + TOLERANCE:
        raise NoSufficientClassifier(
            f"no FOR is possible in all groups: the least one is {lower_curve(groups, p_low):.6g}; {bounds}"
        )
    points, coefficients = _pieces(groups, p_low, p_high)
    arcs, active = _envelope(points, coefficients)
    A, B, C = arcs.T
    ends = (A * points[1:] + B) / (points[1:] + C)
    count = int(np.searchsorted(ends, q_top))  # pieces that stay below q_top to their end
    p_star = float(points[-1])
    if count < len(arcs):
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = (q_top * C[count] - B[count]) / (A[count] - q_top)
        p_star = float(np.clip(crossing, points[count], points[count + 1])) if np.isfinite(crossing) else float(points[count])
        count += p_star > points[count]
    p = np.concatenate([points[:count], [p_star]])
    starts = (A[:count] * p[:-1] + B[:count]) / (p[:-1] + C[:count])
    q = np.minimum(np.concatenate([starts, [lower_curve(groups, p_star)]]), q_top)
    return FeasibleRegion(groups, p_low, float(p_high), q_top, p_star, np.column_stack([p, q]), active[:count], arcs[:count])


def _pieces(groups: tuple[GroupScores, ...], p_low: float, p_high: float) -> tuple[np.ndarray, np.ndarray]:
    """Points that divide [p_low, p_high] so that between two of them no group changes its arc and no two arcs cross;
    (pieces, groups, 3) coefficients of each group's arc on each piece."""
    breaks = np.concatenate([group.arcs()[:, 0] for group in groups])
    points = np.unique(np.concatenate([[p_low, p_high], breaks[(breaks > p_low) & (breaks < p_high)]]))
    coefficients = _arcs_between(groups, points)
    crossings = []
    for first, second in itertools.combinations(range(len(groups)), 2):
        A1, B1, C1 = coefficients[:, first].T
        A2, B2, C2 = coefficients[:, second].T
        roots = quadratic_roots(A1 - A2, A1 * C2 + B1 - A2 * C1 - B2, B1 * C2 - B2 * C1)
        crossings.append(roots[(roots > points[:-1, None]) & (roots < points[1:, None])])
    points = np.unique(np.concatenate([points, *crossings]))
    return points, _arcs_between(groups, points)


def _arcs_between(groups: tuple[GroupScores, ...], points: np.ndarray) -> np.ndarray:
    """(len(points) - 1, groups, 3): chosen at the middle of each piece, where no tie is possible."""
    middles = 0.5 * (points[:-1] + points[1:])
    found = np.empty((middles.size, len(groups), 3))
    for position, group in enumerate(groups):
        arcs = group.arcs()[::-1]
        if middles.size:
            found[:, position] = arcs[np.minimum(np.searchsorted(arcs[:, 0], middles), len(arcs) - 1), 2:]
    return found


def _envelope(points: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """On each piece the highest arc, judged at its middle: (pieces, 3) and the position of its group."""
    middles = 0.5 * (points[:-1] + points[1:])[:, None]
    A, B, C = np.moveaxis(coefficients, -1, 0)
    active = np.argmax((A * middles + B) / (middles + C), axis=1)
    return coefficients[np.arange(len(active)), active], active
