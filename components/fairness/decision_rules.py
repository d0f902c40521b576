"""Randomised decisions on groups of calibrated scores, and the rates that they have.

A rule gives each score of a group a probability of acceptance. All rates follow from the selection rate alpha and the
true-positive mass T, so that rules with the same (alpha, T) are equally good: `mixture_rule` randomises at all scores,
`band_rule` at two scores at most.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from components.fairness.group_scores import TOLERANCE, GroupScores


def top_rule(group: GroupScores, alpha: float) -> np.ndarray:
    """(m,): accept the share `alpha` with the highest scores, randomised at one score. ValueError outside [0, 1]."""
    alpha = _rate(alpha)
    return np.clip((alpha - group.mass[:-1]) / group.pmf, 0.0, 1.0)


def mixture_weight(group: GroupScores, alpha: float, positives: float) -> float:
    """lambda of `mixture_rule`: 1 for a threshold rule, 0 for a coin. 1 where all rules of this selection rate are alike."""
    alpha = _rate(alpha)
    coin, top = alpha * group.base_rate, float(group.upper(alpha))
    if not coin - TOLERANCE <= positives <= top + TOLERANCE:
        raise ValueError(f"true-positive mass {positives} at selection rate {alpha} must lie in [{coin}, {top}]")
    return 1.0 if top - coin <= TOLERANCE else float(np.clip((positives - coin) / (top - coin), 0.0, 1.0))


def mixture_rule(group: GroupScores, alpha: float, positives: float) -> np.ndarray:
    """(m,): lambda times the threshold rule plus 1 - lambda times a coin of probability `alpha`.

    positives : true-positive mass, between alpha mu (a coin) and U(alpha) (the threshold rule); ValueError outside.
    """
    weight = mixture_weight(group, alpha, positives)
    return weight * top_rule(group, alpha) + (1.0 - weight) * _rate(alpha)


def band_rule(group: GroupScores, alpha: float, positives: float) -> np.ndarray:
    """(m,): accept a contiguous band of the share `alpha` in the order of scores, as far from the top as `positives` says.

    The band that skips the top share l has true-positive mass U(l + alpha) - U(l), which falls with l and is piecewise linear, so
    that l is found exactly. Parameters and errors as for `mixture_rule`.
    """
    mixture_weight(group, alpha, positives)
    alpha = _rate(alpha)
    knots = np.concatenate([group.mass, group.mass - alpha, [0.0, 1.0 - alpha]])
    knots = np.unique(np.clip(knots, 0.0, 1.0 - alpha))
    inside = group.upper(np.minimum(knots + alpha, 1.0)) - group.upper(knots)
    start = np.interp(-positives, -inside, knots)
    below, above = np.maximum(group.mass[:-1], start), np.minimum(group.mass[1:], start + alpha)
    return np.clip((above - below) / group.pmf, 0.0, 1.0)


STYLES = {"mixture": mixture_rule, "band": band_rule}


def group_rates(
    groups: Sequence[GroupScores], rules: Sequence[ArrayLike], names: Sequence[Hashable] | None = None
) -> pd.DataFrame:
    """The rates of a decision: a row per group with columns group, alpha, ppv, for, tpr, fpr.

    rules : one (m,) array of probabilities per group. names : of the groups; default 0, 1, ...
    A rate whose condition never occurs (ppv of a group that is never selected) is NaN.
    Raises ValueError for rules of other lengths or outside [0, 1].
    """
    names = list(range(len(groups))) if names is None else list(names)
    rows = []
    for name, group, rule in zip(names, groups, rules, strict=True):
        r = np.asarray(rule, dtype=np.float64)
        if r.shape != group.scores.shape or not ((r >= 0) & (r <= 1)).all():
            raise ValueError(f"the rule of group {name!r} must be {group.scores.size} probabilities, got shape {r.shape}")
        rows.append({"group": name, **rates(group.pmf, group.pmf * group.scores, r)})
    return pd.DataFrame(rows)


def rates(counts: np.ndarray, positives: np.ndarray, rule: np.ndarray) -> dict[str, float]:
    """alpha, ppv, for, tpr, fpr of a rule on cells of a group that hold `counts` people, `positives` of them with Y = 1."""
    total, positive = float(counts.sum()), float(positives.sum())
    selected, hits = float(counts @ rule), float(positives @ rule)
    rejected, missed = float(counts @ (1 - rule)), float(positives @ (1 - rule))

    def share(part: float, whole: float) -> float:
        return part / whole if whole > TOLERANCE * total else float("nan")

    return {
        "alpha": share(selected, total),
        "ppv": share(hits, selected),
        "for": share(missed, rejected),
        "tpr": share(hits, positive),
        "fpr": share(selected - hits, total - positive),
    }


def rate_gap(values: ArrayLike) -> float:
    """Largest minus least rate over the groups that have one; 0 where fewer than two have, since nothing then differs."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.ptp(known)) if known.size > 1 else 0.0


def _rate(alpha: float) -> float:
    if not -TOLERANCE <= alpha <= 1 + TOLERANCE:
        raise ValueError(f"alpha must be a selection rate in [0, 1], got {alpha}")
    return float(min(max(alpha, 0.0), 1.0))
