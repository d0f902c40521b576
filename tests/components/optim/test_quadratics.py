"""The planted quadratics are what they are said to be."""

import numpy as np
import pytest

from components.optim.quadratics import GROUPS, descent_problem, magnitude_bench


def test_groups_have_their_magnitudes_and_starts():
    q = magnitude_bench(4000, 3)
    large, small, crossing = (dict(zip(("w0", "w_star", "h"), (part[i] for part in q), strict=True)) for i in range(3))
    assert GROUPS == ("L", "S", "X") and q.h.shape == (3, 4000)
    assert 8 <= np.abs(large["w_star"]).min() and np.abs(large["w_star"]).max() <= 256
    np.testing.assert_allclose(large["w0"] / large["w_star"], 1.25, rtol=1e-6)
    assert (
        small["w_star"].std() == pytest.approx(0.01, rel=0.05) and abs(np.corrcoef(small["w0"], small["w_star"])[0, 1]) < 0.06
    )
    np.testing.assert_array_equal(crossing["w0"], -crossing["w_star"])
    assert np.log2(q.h).std() == pytest.approx(1, rel=0.05)
    assert np.array_equal(magnitude_bench(10, 1).w0, magnitude_bench(10, 1).w0)
    assert not np.array_equal(magnitude_bench(10, 1).w0, magnitude_bench(10, 2).w0)


def test_descent_problems_start_far_away():
    q = descent_problem(500, 0)
    gap = np.abs(q.w0 - q.w_star)
    assert q.w0.shape == (1, 500) and 0.49 < gap.min() and gap.max() < 2.01 and q.h.min() >= 0.25 and q.h.max() <= 4


def test_bad_sizes_are_named():
    for function in (magnitude_bench, descent_problem):
        with pytest.raises(ValueError, match="n must be at least 1, got 0"):
            function(0, 0)
