"""Decisions that a sufficient one is compared with: thresholds, matched thresholds, demographic parity, equalised odds.

All take groups of calibrated scores and give, per group, a probability of acceptance at each score.

  single_threshold      Bayes rule: accept where s >= tau = c_FP / (c_FP + c_FN), the least loss of all
  matched_thresholds    a deterministic threshold per group, so that PPV, or PPV and FOR, differ as little as possible
  demographic_parity    the same selection rate in all groups, the best one
  equalised_odds        the same TPR and FPR in all groups, the best by a linear programme
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import linprog

from components.fairness.decision_rules import top_rule
from components.fairness.feasible_region import check_groups, weights_of
from components.fairness.group_scores import GroupScores

Rules = list[np.ndarray]


class NoThreshold(ValueError):
    """A group has a single score, which no threshold divides."""


def expected_loss(groups: Sequence[GroupScores], rules: Rules, cost_fp: float, cost_fn: float) -> float:
    """c_FP P(R = 1, Y = 0) + c_FN P(R = 0, Y = 1) of any rules."""
    parts = [g.pmf @ (cost_fp * r * (1 - g.scores) + cost_fn * (1 - r) * g.scores) for g, r in zip(groups, rules, strict=True)]
    return float(weights_of(groups) @ parts)


def single_threshold(groups: Sequence[GroupScores], cost_fp: float = 1.0, cost_fn: float = 1.0) -> Rules:
    """Accept where the score reaches c_FP / (c_FP + c_FN)."""
    groups = check_groups(groups)
    tau = cost_fp / (cost_fp + cost_fn)
    return [(g.scores >= tau).astype(np.float64) for g in groups]


def _thresholds(group: GroupScores) -> tuple[np.ndarray, np.ndarray]:
    """PPV and FOR when the k highest scores are accepted, k = 1 .. m - 1. A group with one score has no such threshold."""
    mass, positives = group.mass[1:-1], group.positives[1:-1]
    return positives / mass, (group.base_rate - positives) / (1 - mass)


def matched_thresholds(
    groups: Sequence[GroupScores], cost_fp: float = 1.0, cost_fn: float = 1.0, match: Literal["ppv", "both"] = "both"
) -> Rules:
    """One threshold per group: each threshold of the largest group in turn, every other group at the threshold that comes closest.

    match : "ppv", |dPPV| alone, or "both", |dPPV| + |dFOR| (default). Of the choices within 0.005 of the least total difference that
    with the least loss is taken. For two groups all pairs of thresholds are looked at. Raises NoThreshold for a group with one score."""
    groups = check_groups(groups)
    if match not in ("ppv", "both"):
        raise ValueError(f"match must be 'ppv' or 'both', got {match!r}")
    for place, group in enumerate(groups):
        if group.scores.size < 2:
            raise NoThreshold(f"group {place} has one score, which no threshold divides")
    tables = [_thresholds(g) for g in groups]
    lead = int(np.argmax(weights_of(groups)))
    choices, gaps = [], []
    for k in range(groups[lead].scores.size - 1):
        chosen, total = [], 0.0
        for place, (ppv, omitted) in enumerate(tables):
            distance = np.abs(ppv - tables[lead][0][k]) + (np.abs(omitted - tables[lead][1][k]) if match == "both" else 0.0)
            best = k if place == lead else int(distance.argmin())
            chosen.append(best)
            total += float(distance[best])
        choices.append(chosen)
        gaps.append(total)
    close = np.flatnonzero(np.array(gaps) <= min(gaps) + 0.005)
    made = [
        [(np.arange(g.scores.size) <= k).astype(np.float64) for g, k in zip(groups, choices[i], strict=True)] for i in close
    ]
    return min(made, key=lambda rules: expected_loss(groups, rules, cost_fp, cost_fn))


def demographic_parity(groups: Sequence[GroupScores], cost_fp: float = 1.0, cost_fn: float = 1.0) -> Rules:
    """The same selection rate everywhere, each group from its top. The loss is convex and piecewise linear in it: exact."""
    groups = check_groups(groups)
    rates = np.unique(np.concatenate([g.mass for g in groups]))
    hits = weights_of(groups) @ [g.upper(rates) for g in groups]
    best = rates[np.argmin(cost_fp * (rates - hits) - cost_fn * hits)]
    return [top_rule(g, float(best)) for g in groups]


def equalised_odds(groups: Sequence[GroupScores], cost_fp: float = 1.0, cost_fn: float = 1.0) -> Rules:
    """The least loss with one TPR and one FPR, by a linear programme over all randomised rules.

    Raises ValueError where a base rate is 0 or 1."""
    groups = check_groups(groups)
    if any(not 0 < g.base_rate < 1 for g in groups):
        raise ValueError("TPR and FPR need people with Y = 1 and Y = 0 in every group")
    sizes = [g.scores.size for g in groups]
    starts = np.cumsum([0, *sizes])
    weights = weights_of(groups)
    cost = np.concatenate(
        [w * g.pmf * (cost_fp * (1 - g.scores) - cost_fn * g.scores) for w, g in zip(weights, groups, strict=True)]
    )
    rows = np.zeros((2 * (len(groups) - 1), starts[-1]))
    for place in range(1, len(groups)):
        for kind in range(2):
            row = rows[2 * (place - 1) + kind]
            for at, sign in ((0, 1.0), (place, -1.0)):
                g = groups[at]
                part, total = (g.scores, g.base_rate) if kind == 0 else (1 - g.scores, 1 - g.base_rate)
                row[starts[at] : starts[at + 1]] = sign * g.pmf * part / total
    found = linprog(cost, A_eq=rows, b_eq=np.zeros(len(rows)), bounds=(0, 1), method="highs")
    if not found.success:
        raise RuntimeError(f"the linear programme of equalised odds was not solved: {found.message}")
    return [np.clip(part, 0.0, 1.0) for part in np.split(found.x, starts[1:-1])]
