"""One-sided Wilcoxon signed-rank test with an exact p value, ties and zeros included.

Statistic: W+ = sum of the ranks of |d_i| over the positive d_i (average ranks for ties, zeros dropped). Under the null
each sign is a fair coin, so the law of W+ is the product of (1 + x^rank_i) / 2: a polynomial that is multiplied out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from components.stats.intervals import _sample

EXACT_UP_TO = 200  # beyond it the normal approximation agrees to four digits and the polynomial grows cubically
TIE_DIGITS = 10  # differences of accuracies tie mathematically, but not in their last bits


def _exact_tail(doubled_ranks: np.ndarray, doubled_statistic: int) -> float:
    """P(2 W+ >= doubled_statistic); ranks are doubled so that average ranks of ties are whole numbers."""
    law = np.zeros(int(doubled_ranks.sum()) + 1)
    law[0] = 1.0
    for rank in doubled_ranks:
        shifted = np.zeros_like(law)
        shifted[rank:] = law[: law.size - rank]
        law = 0.5 * (law + shifted)
    return float(law[doubled_statistic:].sum())


def wilcoxon_greater(values: ArrayLike) -> float:
    """p value of the signed-rank test against the alternative that the differences tend to be positive.

    Parameters
    ----------
    values : n paired differences (any unit), for example accuracy of A minus accuracy of B per split.

    Returns
    -------
    p in (0, 1]; exact up to n = 200 non-zero differences, the normal approximation (with tie correction and continuity
    correction) beyond. All differences zero: 1.0, no evidence either way. The smallest possible p is 2^-n.

    Raises
    ------
    ValueError : empty, not one-dimensional or not finite values.
    TypeError : values that are not real numbers.

    References
    ----------
    Wilcoxon, "Individual comparisons by ranking methods", 1945.
    """
    array = _sample(values, "values")
    scale = np.abs(array).max()
    if scale == 0:
        return 1.0
    array = np.round(array / scale, TIE_DIGITS)
    array = array[array != 0]
    ranks = rankdata(np.abs(array))
    statistic = ranks[array > 0].sum()
    if array.size <= EXACT_UP_TO:
        return min(1.0, _exact_tail(np.rint(2 * ranks).astype(np.int64), int(np.rint(2 * statistic))))
    # Each rank enters with probability one half: mean sum / 2, variance sum of squares / 4 (this includes the ties).
    mean, deviation = ranks.sum() / 2, np.sqrt((ranks**2).sum()) / 2
    return float(norm.sf((statistic - mean - 0.5) / deviation))
