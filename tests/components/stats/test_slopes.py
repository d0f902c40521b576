"""Slopes against exact power laws, scipy and a direct bootstrap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from components.stats.slopes import log_log_slope


@given(st.floats(-3, 3), st.floats(0.01, 100))
def test_exact_power_law(exponent, factor):
    x = np.array([1.0, 4, 16, 64])
    found = log_log_slope(x, [factor * x**exponent, 2 * factor * x**exponent])
    assert found["mean"] == pytest.approx(exponent, abs=1e-10) and found["ci95"] == pytest.approx([exponent] * 2, abs=1e-10)


def test_agrees_with_scipy_and_ignores_units():
    generator = np.random.default_rng(0)
    x, y = np.array([5856.0, 31392, 218592]), np.exp(generator.normal(size=(6, 3)))
    found = log_log_slope(x, y)
    wanted = [linregress(np.log(x), np.log(row)).slope for row in y]
    assert found["values"] == pytest.approx(wanted) and found["n"] == 6
    pooled = linregress(np.tile(np.log(x), 6), np.log(y).ravel()).slope
    assert found["mean"] == pytest.approx(pooled)
    assert log_log_slope(1000 * x, y / 7)["values"] == pytest.approx(wanted)


def test_interval_is_the_percentile_bootstrap_over_seeds():
    """Two seeds: the resampled mean is one slope, the other or their middle, with chances 1/4, 1/4, 1/2."""
    x = np.array([1.0, np.e])
    found = log_log_slope(x, [[1, 1], [1, np.e]])
    assert found["values"] == pytest.approx([0, 1]) and found["ci95"] == pytest.approx([0, 1])
    assert log_log_slope(x, [[1, 1], [1, np.e]], level=0.4)["ci40"] == pytest.approx([0.5, 0.5])


def test_coverage_with_many_seeds():
    generator, x, hits = np.random.default_rng(1), np.array([1.0, 2, 4, 8]), 0
    for _ in range(200):
        y = x**-0.5 * np.exp(generator.normal(0, 0.3, (30, 1)) * np.log(x))
        low, high = log_log_slope(x, y)["ci95"]
        hits += low <= -0.5 <= high
    assert 175 <= hits <= 199  # 95% of 200 is 190, three standard deviations are 9; the bootstrap is a little narrow


def test_one_seed_has_no_interval_and_the_same_input_the_same_bits():
    assert log_log_slope([1, 2], [[1, 2]])["ci95"] is None
    y = np.random.default_rng(2).uniform(1, 2, (5, 2))
    assert log_log_slope([1, 2], y) == log_log_slope([1, 2], y)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([1, 2], [1, 2], r"shape \(seeds, 2\)"),
        ([1, 2], [[1, 2, 3]], r"shape \(seeds, 2\)"),
        ([1, 0], [[1, 2]], "x must be positive"),
        ([1, 2], [[1, -1]], "y_per_seed must be positive"),
        ([3, 3], [[1, 2]], "two different values"),
        ([1, 2], [[1, np.nan]], "must be finite"),
        ([], np.zeros((1, 0)), "non-empty"),
    ],
)
def test_bad_input_is_named(x, y, says):
    with pytest.raises(ValueError, match=says):
        log_log_slope(x, y)
    with pytest.raises(ValueError, match="level"):
        log_log_slope([1, 2], [[1, 2]], level=1)
    with pytest.raises(ValueError, match="draws"):
        log_log_slope([1, 2], [[1, 2]], draws=0)
    with pytest.raises(TypeError, match="real numbers"):
        log_log_slope([1, 2], [["a", "b"]])
