"""Intervals and the signed-rank test against scipy, and their laws."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from components.stats import paired_difference, summarise, wilcoxon_greater

numbers = st.floats(-1e6, 1e6, allow_nan=False)
samples = st.lists(numbers, min_size=2, max_size=30)


@given(samples, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_t_interval_is_scipys(values, level):
    low, high = summarise(values, level=level)[f"ci{100 * level:g}"]
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(level)
    scale = max(1.0, np.abs(values).max())
    if np.ptp(values) == 0:
        assert low == pytest.approx(values[0]) and high == pytest.approx(values[0])
    else:
        np.testing.assert_allclose([low, high], expected, atol=1e-9 * scale)


def test_summary_is_plain_json_and_keeps_the_values():
    summary = summarise(np.array([1, 2, 4], dtype=np.float32))
    assert json.loads(json.dumps(summary)) == summary
    assert summary["values"] == [1.0, 2.0, 4.0] and summary["n"] == 3
    assert summary["mean"] == pytest.approx(7 / 3)


def test_one_value_has_no_interval():
    assert summarise([3.5]) == {"mean": 3.5, "ci95": None, "n": 1, "values": [3.5]}
    assert summarise([3.5], method="bootstrap")["ci95"] is None


def test_bootstrap_matches_scipy_and_is_reproducible():
    values = np.random.default_rng(3).exponential(size=40)
    ours = summarise(values, method="bootstrap")
    theirs = scipy_stats.bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(0), n_resamples=9999
    ).confidence_interval
    np.testing.assert_allclose(ours["ci95"], theirs, atol=0.02)
    assert ours == summarise(values, method="bootstrap")
    assert ours["ci95"] != summarise(values, method="bootstrap", seed=1)["ci95"]


def test_bootstrap_in_blocks_covers_all_resamples():
    values = np.random.default_rng(0).normal(size=3000)  # more than one block
    low, high = summarise(values, method="bootstrap")["ci95"]
    assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(values.size), rel=0.05)


@given(samples.flatmap(lambda a: st.tuples(st.just(a), st.lists(numbers, min_size=len(a), max_size=len(a)))))
@settings(max_examples=40, deadline=None)
def test_paired_difference_is_the_summary_of_differences_and_antisymmetric(pair):
    a, b = pair
    forward, backward = paired_difference(a, b), paired_difference(b, a)
    assert forward == summarise(np.subtract(a, b))
    assert forward["mean"] == pytest.approx(-backward["mean"])
    assert forward["ci95"] == pytest.approx([-backward["ci95"][1], -backward["ci95"][0]])


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=11))
@settings(max_examples=60, deadline=None)
def test_signed_rank_is_the_enumeration_of_all_signs(values):
    """Ties and zeros included: every assignment of signs is enumerated."""
    nonzero = np.array([v for v in values if v], dtype=float)
    if nonzero.size == 0:
        assert wilcoxon_greater(values) == 1.0
        return
    ranks = scipy_stats.rankdata(np.abs(nonzero))
    signs = (np.arange(2**nonzero.size)[:, None] >> np.arange(nonzero.size)) & 1
    p = np.mean(signs @ ranks >= ranks[nonzero > 0].sum() - 1e-9)
    assert wilcoxon_greater(values) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("n", [5, 20, 49])
def test_signed_rank_is_scipys_without_ties(n):
    values = np.random.default_rng(n).normal(0.2, 1, n)
    expected = scipy_stats.wilcoxon(values, alternative="greater", method="exact").pvalue
    assert wilcoxon_greater(values) == pytest.approx(expected, rel=1e-9)


def test_signed_rank_of_long_samples_is_the_normal_approximation():
    values = np.round(np.random.default_rng(0).normal(0.1, 1, 400), 1)  # with ties and zeros
    expected = scipy_stats.wilcoxon(values, alternative="greater", method="asymptotic", correction=True).pvalue
    assert wilcoxon_greater(values) == pytest.approx(expected, rel=1e-6)


def test_signed_rank_golds():
    assert wilcoxon_greater([1, 2, 3, 4, 5]) == 1 / 32
    assert wilcoxon_greater([-1, -2, -3]) == 1.0
    # the two differences tie although 0.3 - 0.2 and 0.2 - 0.1 differ in the last bit
    assert wilcoxon_greater([0.3 - 0.2, -(0.2 - 0.1)]) == 0.75


@pytest.mark.parametrize("function", [summarise, wilcoxon_greater])
@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ([], ValueError, "non-empty"),
        ([[1.0, 2.0]], ValueError, r"shape \(1, 2\)"),
        ([1.0, np.nan], ValueError, r"values\[1\] is nan"),
        ([1.0, np.inf], ValueError, r"values\[1\] is inf"),
        (["a"], TypeError, "real numbers"),
        ([1j], TypeError, "real numbers"),
    ],
)
def test_bad_samples_are_named(function, values, error, says):
    with pytest.raises(error, match=says):
        function(values)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        summarise([1.0, 2.0], level=95)
    with pytest.raises(ValueError, match="'t' or 'bootstrap', got 'z'"):
        summarise([1.0, 2.0], method="z")
    with pytest.raises(ValueError, match="paired one to one, got 2 and 3"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])
