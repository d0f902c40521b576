"""Mean with a confidence interval, of one sample or of paired differences.

t interval:  mean +- t_{n-1, (1 + level) / 2} * s / sqrt(n), with s the sample standard deviation (denominator n - 1).
Bootstrap:   the (1 -+ level) / 2 percentiles of the means of resamples with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

RESAMPLES = 9999  # odd (count + 1 is round), so that the usual percentiles fall on order statistics


class Summary(TypedDict):
    """What one cell of a metrics file holds; plain Python numbers, ready for JSON."""

    mean: float
    ci95: list[float] | None  # None where one value says nothing about the spread
    n: int
    values: list[float]


Metrics = dict[str, dict[str, Summary]]  # {method: {metric: summary}}


def _sample(values: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    array = array.astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty one-dimensional sequence, got shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"{name} must be finite, but {name}[{bad[0]}] is {array[bad[0]]}")
    return array


def _t_interval(array: np.ndarray, level: float) -> list[float]:
    half = student_t.ppf(0.5 + level / 2, array.size - 1) * array.std(ddof=1) / np.sqrt(array.size)
    mean = array.mean()
    return [float(mean - half), float(mean + half)]


def _bootstrap_interval(array: np.ndarray, level: float, seed: int) -> list[float]:
    generator = np.random.default_rng(seed)
    # Resamples in blocks: long samples (one value per test node, say) would otherwise need n * 9999 doubles at once.
    block = max(1, 2_000_000 // array.size)
    means = np.concatenate(
        [
            array[generator.integers(0, array.size, (min(block, RESAMPLES - start), array.size))].mean(axis=1)
            for start in range(0, RESAMPLES, block)
        ]
    )
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return [float(low), float(high)]


def summarise(values: ArrayLike, *, level: float = 0.95, method: Literal["t", "bootstrap"] = "t", seed: int = 0) -> Summary:
    """Mean, confidence interval of the mean, size and values of a sample.

    Parameters
    ----------
    values : sequence of n real numbers, any unit; the summary keeps that unit.
    level : coverage of the interval, in (0, 1); default 0.95.
    method : "t" (default; Student's interval, exact for normal samples) or "bootstrap" (percentiles of 9999 resampled means).
    seed : of the bootstrap's generator; default 0, so that the same sample always gives the same interval.

    Returns
    -------
    {"mean", "ci95", "n", "values"}; "ci95" is None where n = 1. With another level the key says so ("ci90").

    Raises
    ------
    ValueError : empty, not one-dimensional or not finite values; level outside (0, 1); unknown method.
    TypeError : values that are not real numbers.
    """
    array = _sample(values, "values")
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1 (0.95 for a 95% interval), got {level}")
    if method not in ("t", "bootstrap"):
        raise ValueError(f"method must be 't' or 'bootstrap', got {method!r}")
    if array.size == 1:
        interval = None
    elif method == "t":
        interval = _t_interval(array, level)
    else:
        interval = _bootstrap_interval(array, level, seed)
    return {
        "mean": float(array.mean()),
        f"ci{100 * level:g}": interval,
        "n": int(array.size),
        "values": [float(value) for value in array],
    }


def paired_difference(
    a: Sequence[float], b: Sequence[float], *, level: float = 0.95, method: Literal["t", "bootstrap"] = "t", seed: int = 0
) -> Summary:
    """Summary of a - b, where a[i] and b[i] were measured under the same conditions (split, seed).

    Parameters as for `summarise`; `a` and `b` are sequences of the same length n.

    Raises
    ------
    ValueError : lengths that differ, besides what `summarise` raises.
    """
    first, second = _sample(a, "a"), _sample(b, "b")
    if first.size != second.size:
        raise ValueError(f"a and b must be paired one to one, got {first.size} and {second.size} values")
    return summarise(first - second, level=level, method=method, seed=seed)
