"""Scalar quadratics  f(w) = sum_i h_i (w_i - w*_i)^2 / 2  whose minimisers lie at very different magnitudes.

They separate what a step can lose to rounding: large weights (an additive step vanishes), small ones (a multiplicative step
vanishes) and sign changes (a multiplicative step cannot make one).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GROUPS = ("L", "S", "X")


class Quadratics(NamedTuple):
    """Arrays of one shape, float32: start, minimiser, curvature."""

    w0: np.ndarray
    w_star: np.ndarray
    h: np.ndarray


def magnitude_bench(n: int, seed: int) -> Quadratics:
    """n problems of each of the three groups, arrays of shape (3, n) in the order of GROUPS; h = 2^N(0, 1).

    L: |w*| = 2^U(3, 8) of random sign, start 1.25 w*.   S: w* and start 0.01 N(0, 1).   X: w* = 0.3 N(0, 1), start -w*.
    Raises ValueError for n below 1."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    rng = np.random.default_rng(seed)
    large = rng.choice([-1.0, 1.0], n) * 2.0 ** rng.uniform(3, 8, n)
    small, start = 0.01 * rng.standard_normal((2, n))
    crossing = 0.3 * rng.standard_normal(n)
    h = 2.0 ** rng.standard_normal((3, n))
    arrays = np.stack([1.25 * large, start, -crossing]), np.stack([large, small, crossing]), h
    return Quadratics(*(array.astype(np.float32) for array in arrays))


def descent_problem(n: int, seed: int) -> Quadratics:
    """n problems far from their minimisers for their size, arrays of shape (1, n): |w*| = U(0.5, 4), |w0 - w*| = U(0.5, 2), both of
    random sign, h = 2^N(0, 1) within [1/4, 4]. Raises ValueError for n below 1."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], (2, 1, n))
    w_star, gap = signs[0] * rng.uniform(0.5, 4, (1, n)), signs[1] * rng.uniform(0.5, 2, (1, n))
    h = 2.0 ** rng.standard_normal((1, n)).clip(-2, 2)
    return Quadratics(*(array.astype(np.float32) for array in (w_star + gap, w_star, h)))
