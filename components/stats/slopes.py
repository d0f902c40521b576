"""Exponents of power laws: slopes of straight lines through log x and log y, with an interval over seeds.

y ~ c x^s:  each seed's slope s is that of ordinary least squares of log y on log x; the mean over seeds is the slope of the mean
log y. The interval is the percentile bootstrap over seeds: seeds are resampled, not points, since the points of one seed share its
model and data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from components.stats.intervals import Summary, _sample

DRAWS = 2000


def log_log_slope(x: ArrayLike, y_per_seed: ArrayLike, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0) -> Summary:
    """Exponent of y as a power of x, one per seed, with its mean and bootstrap interval.

    Parameters
    ----------
    x : (n,) positive numbers, at least two different ones; any unit, which moves no slope.
    y_per_seed : (seeds, n) positive numbers, a row per seed.
    level : coverage of the interval, in (0, 1); default 0.95.
    draws : bootstrap resamples, default 2000.
    seed : of the bootstrap's generator; default 0.

    Returns
    -------
    {"mean", "ci95", "n", "values"} as `components.stats.intervals.summarise` gives: values are the seeds' slopes, n their number;
    "ci95" is None for one seed. With few seeds (below about five) a percentile interval is narrower than its level says.

    Raises
    ------
    ValueError : shapes that do not fit, fewer than two different x, numbers that are not finite and positive, level outside
        (0, 1), draws < 1.
    TypeError : values that are not real numbers.
    """
    x = _sample(x, "x")
    rows = np.asarray(y_per_seed)
    if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] != x.size:
        raise ValueError(f"y_per_seed must have shape (seeds, {x.size}), a column per x, got {rows.shape}")
    y = _sample(rows.ravel(), "y_per_seed").reshape(rows.shape)
    for name, values in (("x", x), ("y_per_seed", y)):
        if values.min() <= 0:
            raise ValueError(f"{name} must be positive to have a logarithm, but its smallest value is {values.min():g}")
    if np.ptp(x) == 0:
        raise ValueError(f"x must hold at least two different values, got {x.tolist()}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1 (0.95 for a 95% interval), got {level}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    centred = np.log(x) - np.log(x).mean()
    slopes = np.log(y) @ centred / (centred @ centred)
    interval = None
    if slopes.size > 1:
        generator = np.random.default_rng(seed)
        means = slopes[generator.integers(0, slopes.size, (draws, slopes.size))].mean(axis=1)
        interval = [float(bound) for bound in np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])]
    return {"mean": float(slopes.mean()), f"ci{100 * level:g}": interval, "n": int(slopes.size), "values": slopes.tolist()}
