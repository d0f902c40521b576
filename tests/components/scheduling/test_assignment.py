"""The assignment: brute force, the geometry of its optimum, and what it refuses."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.scheduling.assignment import assign


def scattered(seed: int, n: int, side: float = 10.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-side / 2, side / 2, (n, 2))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), targets=st.integers(1, 6), surplus=st.integers(0, 2))
def test_no_matching_is_shorter(seed, targets, surplus):
    starts, goals = scattered(seed, min(targets + surplus, 7)), scattered(seed + 1, targets)
    found = assign(starts, goals)
    distance = np.linalg.norm(starts[:, None] - goals[None], axis=-1)
    shortest = min(sum(distance[m, t] for t, m in enumerate(who)) for who in permutations(range(len(starts)), targets))
    assert found.lower_bound == pytest.approx(shortest, abs=1e-9)
    assert sorted(found.target[found.target >= 0]) == list(range(targets))
    assert sum(distance[m, t] for m, t in enumerate(found.target) if t >= 0) == pytest.approx(found.lower_bound)
    assert list(found.surplus) == [m for m, t in enumerate(found.target) if t < 0]


@pytest.mark.parametrize("seed", range(5))
def test_shifting_turning_and_mirroring_change_nothing(seed):
    starts, goals = scattered(seed, 60), scattered(seed + 100, 50)
    turn = np.array([[0.5, -np.sqrt(3) / 2], [np.sqrt(3) / 2, 0.5]])
    plain = assign(starts, goals)
    for change in (lambda x: x + np.array([3.7, -11.2]), lambda x: x @ turn.T, lambda x: x * [1, -1]):
        changed = assign(change(starts), change(goals))
        assert changed.lower_bound == pytest.approx(plain.lower_bound)
        np.testing.assert_array_equal(changed.target, plain.target)


@pytest.mark.parametrize("seed", range(3))
def test_straight_lines_of_the_optimum_do_not_cross(seed):
    starts, goals = scattered(seed, 80), scattered(seed + 50, 80)
    ends = goals[assign(starts, goals).target]

    def side(a, b, p):
        return np.sign((b - a)[..., 0] * (p - a)[..., 1] - (b - a)[..., 1] * (p - a)[..., 0])

    a, b, p, q = starts[:, None], ends[:, None], starts[None], ends[None]
    crossing = (side(a, b, p) * side(a, b, q) < 0) & (side(p, q, a) * side(p, q, b) < 0)
    assert not crossing.any()
    # Exchanging two ends must make some pair cross, or the test would see nothing.
    ends = np.roll(ends, 1, axis=0)
    b, q = ends[:, None], ends[None]
    assert ((side(a, b, p) * side(a, b, q) < 0) & (side(p, q, a) * side(p, q, b) < 0)).any()


@pytest.mark.parametrize(
    ("starts", "targets", "message"),
    [
        ([[0, 0]], [[0, 0], [2, 0]], "2 targets but only 1 molecules"),
        ([[0, np.nan]], [[0, 0]], "start 0 is at .*finite"),
        ([[0, 0], [2, 0]], [[0, np.inf]], "target 0 is at .*finite"),
        ([[0, 0], [5, 5], [0.5, 0]], [[0, 0]], "starts 0 and 2 are 0.5 nm apart"),
        ([[0, 0], [5, 5]], [[1, 1], [1, 1]], "targets 0 and 1 are 0 nm apart"),
        ([0, 0], [[0, 0]], r"shape \(n, 2\)"),
        ([[0, 0]], np.zeros((0, 2)), "target positions must have shape"),
    ],
)
def test_what_is_no_task_is_refused(starts, targets, message):
    with pytest.raises(ValueError, match=message):
        assign(starts, targets, 0.9)


def test_a_wrong_contact_distance_is_refused():
    with pytest.raises(ValueError, match="contact distance"):
        assign([[0, 0]], [[0, 0]], -1.0)
