"""Learning rates by step."""

import itertools

import pytest

from components.optim.schedules import warmup_cosine


def test_warms_up_and_falls():
    rates = [warmup_cosine(step, 120, 20, 2e-3, 0.1) for step in range(120)]
    assert rates[0] == pytest.approx(1e-4) and rates[19] == rates[20] == pytest.approx(2e-3)
    assert rates[70] == pytest.approx(1.1e-3)  # half way: between the highest and the last
    assert rates[-1] == pytest.approx(2e-4, rel=0.01)
    assert all(a > b for a, b in itertools.pairwise(rates[20:]))
    assert warmup_cosine(0, 10, 0, 1.0) == 1.0
    assert warmup_cosine(2, 3, 5, 1.0) == pytest.approx(0.6)  # a training that ends within its warm-up


def test_bad_numbers_are_named():
    for given in ((10, 10, 2, 1.0), (-1, 10, 2, 1.0), (0, 10, -1, 1.0), (0, 10, 2, 1.0, 1.5)):
        with pytest.raises(ValueError, match="step must lie in"):
            warmup_cosine(*given)
