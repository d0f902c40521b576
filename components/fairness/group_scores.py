"""One group of people with calibrated scores, and which pairs of predictive values a decision can have on it.

A group has scores s_1 > ... > s_m with shares pi_i, calibrated: P(Y=1 | S=s, group) = s. A randomised decision r_i = P(R=1 | s_i)
has selection rate alpha = sum pi r and true-positive mass T = sum pi r s, from which everything follows:

    PPV  p = T / alpha           FOR  q = (mu - T) / (1 - alpha)           mu = sum pi s, the base rate

(alpha, T) can be reached iff T lies between the concave curve U (accept the alpha share with the highest scores) and its
reflection. So with p > q, the pair (p, q) can be reached iff mu <= p <= s_1 and q_min(p) <= q <= mu, where q_min belongs to the
largest selection rate that has precision p: the ray T = p alpha meets U. Where it meets the segment of score s, with
c = E[(S - s)_+]:

    alpha = c / (p - s),      q_min = ((mu - c) p - mu s) / (p - s - c)     an arc (A p + B) / (p + C), rising in p

Source: the problem is that of "Fair Decisions from Calibrated Scores: Achieving Optimal Classification While Satisfying
Sufficiency" (Benger and Ligett); the formulas are derived here from the two definitions above.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

TOLERANCE = 1e-12  # of scores, rates and predictive values, all of them in [0, 1]


@dataclass(frozen=True, eq=False)
class GroupScores:
    """The calibrated scores of one group. Sorted downwards, equal scores merged, scores without mass dropped.

    Parameters
    ----------
    scores : (m,) in [0, 1], in any order; P(Y=1) of those who have this score.
    pmf : (m,) non-negative, sum 1 within 1e-9; share of the group at each score.
    weight : positive; the group's share of the population (or its size: only ratios count).

    Raises
    ------
    ValueError : other shapes, values that are not finite or outside these bounds, a pmf that does not sum to 1, weight <= 0.
    """

    scores: np.ndarray
    pmf: np.ndarray
    weight: float

    def __post_init__(self) -> None:
        scores, pmf = (np.asarray(values, dtype=np.float64) for values in (self.scores, self.pmf))
        if scores.ndim != 1 or scores.shape != pmf.shape or not scores.size:
            raise ValueError(
                f"scores and pmf must be two non-empty sequences of one length, got {scores.shape} and {pmf.shape}"
            )
        if not np.isfinite(scores).all() or (scores < 0).any() or (scores > 1).any():
            raise ValueError("scores must be probabilities in [0, 1], without NaN")
        if not np.isfinite(pmf).all() or (pmf < 0).any() or abs(pmf.sum() - 1) > 1e-9:
            raise ValueError(f"pmf must be non-negative and sum to 1, its sum is {pmf.sum()}")
        if not (np.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"weight must be a positive number, got {self.weight}")
        kept = pmf > 0
        levels, level_of = np.unique(scores[kept], return_inverse=True)
        mass = np.bincount(level_of, weights=pmf[kept])
        object.__setattr__(self, "scores", levels[::-1].copy())
        object.__setattr__(self, "pmf", mass[::-1] / mass.sum())
        object.__setattr__(self, "weight", float(self.weight))

    @cached_property
    def base_rate(self) -> float:
        """mu = P(Y=1) in the group."""
        return float(self.pmf @ self.scores)

    @cached_property
    def mass(self) -> np.ndarray:
        """(m + 1,): share of the group above each score, A_0 = 0 to A_m = 1."""
        found = np.concatenate([[0.0], np.cumsum(self.pmf)])
        found[-1] = 1.0
        return found

    @cached_property
    def positives(self) -> np.ndarray:
        """(m + 1,): true-positive mass above each score, B_0 = 0 to B_m = mu."""
        return np.concatenate([[0.0], np.cumsum(self.pmf * self.scores)])

    def upper(self, alpha: ArrayLike) -> np.ndarray:
        """U(alpha): the largest true-positive mass at selection rate `alpha`, any shape, in [0, 1]; ValueError outside."""
        alpha = np.asarray(alpha, dtype=np.float64)
        if not ((alpha >= -TOLERANCE) & (alpha <= 1 + TOLERANCE)).all():
            raise ValueError("alpha must be a selection rate in [0, 1]")
        return np.interp(alpha, self.mass, self.positives)

    def arcs(self) -> np.ndarray:
        """The curve q_min as arcs q = (A p + B) / (p + C), p falling: (m - 1, 5) rows (p_high, p_low, A, B, C).

        From (s_1, ...) down to (mu, s_m); none for a group with a single score. The last one is the constant s_m, written so
        that it can be computed at p = mu, where the general form is 0 / 0.
        """
        return self._arcs.copy()

    @cached_property
    def _arcs(self) -> np.ndarray:
        s, a, mu = self.scores, self.mass, self.base_rate
        # c_k = B_k - A_k s_{k+1} = E[(S - s_{k+1})_+], summed from terms that are all positive
        excess = np.cumsum(a[1:-1] * (s[:-1] - s[1:]))
        precision = np.concatenate([s[:1], self.positives[2:] / a[2:]]) if s.size > 1 else s[:1]
        precision = np.minimum.accumulate(precision)  # a rounding error must not turn the order round
        found = np.column_stack([precision[:-1], precision[1:], mu - excess, -mu * s[1:], -(s[1:] + excess)])
        if s.size > 1:
            found[-1, 1:] = mu, s[-1], 0.0, 0.0
        return found

    def q_min(self, p: ArrayLike) -> np.ndarray:
        """The least false omission rate at precision `p`, any shape, in [mu, s_1]. ValueError outside these bounds."""
        p = np.asarray(p, dtype=np.float64)
        low, high = self.base_rate, self.scores[0]
        if not ((p >= low - TOLERANCE) & (p <= high + TOLERANCE)).all():
            raise ValueError(f"p must lie between the group's base rate {low} and its highest score {high}")
        if self.scores.size == 1:
            return np.full(p.shape, low)
        arcs = self._arcs[::-1]
        p = np.clip(p, low, high)
        # Neighbouring arcs agree where they meet, so either will do there.
        A, B, C = arcs[np.minimum(np.searchsorted(arcs[:, 0], p), len(arcs) - 1), 2:].T.reshape(3, *p.shape)
        return (A * p + B) / (p + C)

    def p_max(self, q: float) -> float:
        """The largest precision at which the false omission rate can be `q` or less, in [mu, s_1].

        Raises ValueError where no precision has so small a rate: q below the least score."""
        if q < self.q_min(self.base_rate) - TOLERANCE:
            raise ValueError(f"the false omission rate cannot be {q}: it is at least the least score {self.scores[-1]}")
        if self.scores.size == 1 or q >= self.q_min(self.scores[0]):
            return float(self.scores[0])
        arcs = self._arcs[::-1]  # p rising, q rising
        ends = self.q_min(arcs[:, 0])
        low, high, A, B, C = (arcs[min(int(np.searchsorted(ends, q)), len(arcs) - 1)])[[1, 0, 2, 3, 4]]
        p = (q * C - B) / (A - q) if A != q else high
        return float(np.clip(p, low, high))
