"""The best randomised decision with the same PPV and FOR in all groups, found exactly.

With p = PPV and q = FOR the same everywhere, group a is selected at the rate alpha_a = (mu_a - q) / (p - q), so that every
objective here depends on (p, q) alone:

    loss        c_FN mu - alpha ((c_FP + c_FN) p - c_FP),    alpha = (mu - q) / (p - q), mu over all groups
    separation  u p q / (p - q) + v (1 - p)(1 - q) / (p - q), the range of TPR plus that of FPR over the groups
                u, v: ranges of 1 / mu_a and of 1 / (1 - mu_a)
    separation_max   the larger of the two ranges

For fixed p the loss is monotone in q and the other way round, and both ranges fall with p and rise with q. So the optimum is a
corner of the feasible region or lies on its lower boundary, which consists of arcs q = (A p + B) / (p + C): on each of them the
objective is a ratio of quadratics, whose stationary points are the roots of a quadratic. All candidates are evaluated at once.

Source: Benger and Ligett, "Fair Decisions from Calibrated Scores: Achieving Optimal Classification While Satisfying Sufficiency":
the problem, and an exact solution from the geometry of (PPV, FOR); the formulas are derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize

from components.fairness.decision_rules import STYLES, mixture_weight
from components.fairness.feasible_region import (
    FeasibleRegion,
    NoSufficientClassifier,
    check_groups,
    feasible_region,
    lower_curve,
    quadratic_roots,
    weights_of,
)
from components.fairness.group_scores import TOLERANCE, GroupScores

Objective = Callable[[np.ndarray, np.ndarray], np.ndarray]
NAMED = ("loss", "separation", "separation_max")
GRID = 60  # points per side with which a user's objective is explored


@dataclass(frozen=True, eq=False)
class SufficientSolution:
    """The optimum: all groups have PPV `p` and FOR `q`.

    Attributes
    ----------
    p, q, value : the pair, and the objective there.
    alpha, positives : (K,) selection rates and true-positive masses of the groups.
    lam : (K,) 1 where a group's rule is a threshold, less where it is mixed with a coin.
    degenerate : whether a group is selected whole or not at all, so that its FOR or PPV is undefined.
    active : positions of the groups whose rule is a threshold.
    region : what is feasible.
    """

    p: float
    q: float
    value: float
    alpha: np.ndarray
    positives: np.ndarray
    lam: np.ndarray
    degenerate: bool
    active: tuple[int, ...]
    region: FeasibleRegion

    def rules(self, style: Literal["mixture", "band"] = "mixture") -> list[np.ndarray]:
        """Probabilities of acceptance, one array per group in the order of its scores. ValueError for another style."""
        if style not in STYLES:
            raise ValueError(f"style must be one of {', '.join(STYLES)}, got {style!r}")
        make = STYLES[style]
        return [make(g, a, t) for g, a, t in zip(self.region.groups, self.alpha, self.positives, strict=True)]


def decision_loss(groups: Sequence[GroupScores], cost_fp: float, cost_fn: float) -> Objective:
    """c_FP P(R = 1, Y = 0) + c_FN P(R = 0, Y = 1) as a function of (p, q), p > q. ValueError for costs that are not positive."""
    for name, cost in (("cost_fp", cost_fp), ("cost_fn", cost_fn)):
        if not (np.isfinite(cost) and cost > 0):
            raise ValueError(f"{name} must be a positive number, got {cost}")
    mu = float(weights_of(groups) @ [g.base_rate for g in groups])

    def loss(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return cost_fn * mu - (mu - q) / (p - q) * ((cost_fp + cost_fn) * p - cost_fp)

    return loss


def separation_ranges(groups: Sequence[GroupScores]) -> tuple[float, float]:
    """u, v: ranges over the groups of 1 / mu_a and 1 / (1 - mu_a). ValueError where a group has no positive or no negative people."""
    rates = np.array([g.base_rate for g in groups])
    if (rates <= TOLERANCE).any() or (rates >= 1 - TOLERANCE).any():
        raise ValueError("TPR and FPR need people with Y = 1 and Y = 0 in every group, but a base rate is 0 or 1")
    return float(np.ptp(1 / rates)), float(np.ptp(1 / (1 - rates)))


def separation_deviation(groups: Sequence[GroupScores], largest: bool = False) -> Objective:
    """Range of TPR plus range of FPR over the groups (`largest`: the larger of the two) as a function of (p, q), p > q."""
    u, v = separation_ranges(groups)

    def deviation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        tpr, fpr = u * p * q / (p - q), v * (1 - p) * (1 - q) / (p - q)
        return np.maximum(tpr, fpr) if largest else tpr + fpr

    return deviation


def solve_sufficient(
    groups: Sequence[GroupScores],
    cost_fp: float = 1.0,
    cost_fn: float = 1.0,
    objective: Literal["loss", "separation", "separation_max"] | Objective = "loss",
    degenerate: Literal["closure", "allow"] = "closure",
) -> SufficientSolution:
    """The optimal randomised decision under sufficiency.

    Parameters
    ----------
    groups : two or more.
    cost_fp, cost_fn : costs of a false positive and a false negative, positive, default 1; used by "loss" alone.
    objective : "loss" (default), "separation", "separation_max", exactly; or a function of arrays (p, q), minimised over the whole
        region on a grid and by Nelder-Mead from its best points, to about 1e-8 where it is smooth.
    degenerate : "closure" (default) keeps all constraints of groups that are selected whole or not at all; "allow" drops those that
        are then undefined.

    Returns
    -------
    The minimum; of equal ones that with the largest p, then the least q.

    Raises
    ------
    NoSufficientClassifier : nothing is feasible, or nothing but PPV = FOR. ValueError : other arguments.
    """
    groups = check_groups(groups)
    if degenerate not in ("closure", "allow"):
        raise ValueError(f"degenerate must be 'closure' or 'allow', got {degenerate!r}")
    if not callable(objective) and objective not in NAMED:
        raise ValueError(f"objective must be a function or one of {', '.join(NAMED)}, got {objective!r}")
    region = feasible_region(groups)
    if callable(objective):
        value, (p, q) = objective, _explored(region, objective)
    elif objective == "loss":
        value = decision_loss(groups, cost_fp, cost_fn)
        p, q = _boundary(region, _stationary_of_loss(region, cost_fp, cost_fn))
    else:
        value = separation_deviation(groups, objective == "separation_max")
        p, q = _boundary(region, _stationary_of_separation(region, objective == "separation_max"))
    if degenerate == "allow":
        more_p, more_q = _edges(region)
        p, q = np.concatenate([p, more_p]), np.concatenate([q, more_q])
    apart = p - q > 1e-10
    if not apart.any():
        raise NoSufficientClassifier(
            f"the only feasible pair is PPV = FOR = {p[0]:.6g}: the decision would say nothing (p_low = {region.p_low:.6g}, "
            f"p_high = {region.p_high:.6g}, q_top = {region.q_top:.6g})"
        )
    p, q = p[apart], q[apart]
    found = np.asarray(value(p, q), dtype=np.float64)
    tied = np.flatnonzero(found <= found.min() + 1e-13)
    best = tied[np.lexsort((q[tied], -p[tied]))[0]]
    return _solution(region, float(p[best]), float(q[best]), float(found[best]))


def _solution(region: FeasibleRegion, p: float, q: float, value: float) -> SufficientSolution:
    rates = np.array([g.base_rate for g in region.groups])
    alpha = np.clip((rates - q) / (p - q), 0.0, 1.0)
    # A group that is selected whole holds exactly its positives; rounding must not carry a mass beyond its curve.
    tops = np.array([float(g.upper(a)) for g, a in zip(region.groups, alpha, strict=True)])
    positives = np.clip(alpha * p, alpha * rates, np.maximum(tops, alpha * rates))
    lam = np.array([mixture_weight(g, a, t) for g, a, t in zip(region.groups, alpha, positives, strict=True)])
    whole = bool(((alpha <= TOLERANCE) | (alpha >= 1 - TOLERANCE)).any())
    active = tuple(int(i) for i in np.flatnonzero(lam >= 1 - 1e-9))
    return SufficientSolution(p, q, value, alpha, positives, lam, whole, active, region)


def _boundary(region: FeasibleRegion, stationary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Candidates (p, q): vertices, stationary points within their arcs, and the corners of the upper edge."""
    vertices = region.vertices
    if len(region.arcs):
        low, high = vertices[:-1, :1], vertices[1:, :1]
        inside = (stationary > low) & (stationary < high)
        A, B, C = (column[:, None] for column in region.arcs.T)
        with np.errstate(divide="ignore", invalid="ignore"):
            curve = (A * stationary + B) / (stationary + C)
        more = stationary[inside], np.minimum(curve[inside], region.q_top)
    else:
        more = np.empty(0), np.empty(0)
    corners = np.array([[region.p_low, region.q_top], [region.p_star, region.q_top]])
    return (np.concatenate([vertices[:, i], more[i], corners[:, i]]) for i in range(2))


def _edges(region: FeasibleRegion) -> tuple[np.ndarray, np.ndarray]:
    """Further candidates where constraints of a group that is selected whole, or not at all, are dropped."""
    found: list[tuple[float, float]] = []
    rates = np.array([g.base_rate for g in region.groups])
    whole = [g for g, r in zip(region.groups, rates, strict=True) if r < region.p_low - TOLERANCE]
    if whole and len(whole) < len(region.groups):
        low = float(lower_curve(whole, region.p_low))
        if low <= region.q_top:
            found += [(region.p_low, low), (region.p_low, region.q_top)]
    partly = [g for g, r in zip(region.groups, rates, strict=True) if r > region.q_top + TOLERANCE]
    if partly and len(partly) < len(region.groups):
        high = min(g.p_max(region.q_top) for g in partly)
        if high >= region.p_low:
            found += [(region.p_low, region.q_top), (high, region.q_top)]
    return tuple(np.array(column) for column in zip(*found, strict=True)) if found else (np.empty(0), np.empty(0))


def _roots_of_derivative(n: np.ndarray, d1: np.ndarray, d0: np.ndarray) -> np.ndarray:
    """Where the derivative of (n2 p^2 + n1 p + n0) / (p^2 + d1 p + d0) is 0, per row: (rows, 2)."""
    n2, n1, n0 = n
    return quadratic_roots(n2 * d1 - n1, 2 * (n2 * d0 - n0), n1 * d0 - n0 * d1)


def _stationary_of_loss(region: FeasibleRegion, cost_fp: float, cost_fn: float) -> np.ndarray:
    mu = float(weights_of(region.groups) @ [g.base_rate for g in region.groups])
    A, B, C = region.arcs.T
    slope, constant, total = mu - A, mu * C - B, cost_fp + cost_fn
    n = -slope * total, slope * cost_fp - constant * total, constant * cost_fp
    return _roots_of_derivative(n, C - A, -B)


def _stationary_of_separation(region: FeasibleRegion, largest: bool) -> np.ndarray:
    u, v = separation_ranges(region.groups)
    A, B, C = region.arcs.T

    def numerator(u: float, v: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # u p (A p + B) + v (1 - p)((1 - A) p + C - B)
        return u * A - v * (1 - A), u * B + v * ((1 - A) - (C - B)), v * (C - B)

    if not largest:
        return _roots_of_derivative(numerator(u, v), C - A, -B)
    parts = [_roots_of_derivative(numerator(*pair), C - A, -B) for pair in ((u, 0.0), (0.0, v))]
    return np.concatenate([*parts, quadratic_roots(*numerator(u, -v))], axis=1)


def _explored(region: FeasibleRegion, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Candidates for a user's objective: a grid over the region, and what Nelder-Mead makes of its best points."""

    def inside(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = np.clip(t, 0.0, 1.0)
        p = region.p_low + t[0] * (region.p_star - region.p_low)
        low = np.minimum(region.curve(p), region.q_top)
        return p, low + t[1] * (region.q_top - low)

    side = np.linspace(0, 1, GRID)
    points = np.array(np.meshgrid(side, side)).reshape(2, -1)
    p, q = inside(points)
    apart = p - q > 1e-10
    if not apart.any():
        return p, q
    points, p, q = points[:, apart], p[apart], q[apart]
    values = np.asarray(objective(p, q), dtype=np.float64)
    if values.shape != p.shape or not np.isfinite(values).all():
        raise ValueError(f"objective must give a finite number for each pair (p, q), got shape {values.shape}")

    def single(t: np.ndarray) -> float:
        a, b = inside(t[:, None])
        return float(objective(a, b)[0]) if a[0] - b[0] > 1e-10 else float("inf")

    better = []
    for start in np.argsort(values, kind="stable")[:3]:
        done = minimize(single, points[:, start], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 600})
        better.append(inside(done.x[:, None]))
    extra = np.array(better)[:, :, 0].T
    return np.concatenate([p, extra[0]]), np.concatenate([q, extra[1]])
