"""Polylines against dense sampling of the same paths."""

import itertools

import numpy as np
import pytest

from components.envs.polylines import Polylines, check_path


def dense(path, step=1e-3):
    arcs, points, total = [], [], 0.0
    for a, b in itertools.pairwise(path):
        length = float(np.hypot(*(b - a)))
        t = np.linspace(0, 1, max(int(length / step), 2))
        points.append(a + t[:, None] * (b - a))
        arcs.append(total + t * length)
        total += length
    return np.concatenate(arcs), np.concatenate(points)


@pytest.fixture
def paths():
    rng = np.random.default_rng(0)
    return [rng.uniform(-2, 2, (m, 2)) for m in (2, 5, 3, 7)]


def test_projection_and_points_against_dense_sampling(paths):
    lines, rng = Polylines(paths), np.random.default_rng(1)
    for _ in range(20):
        points, limit = rng.uniform(-3, 3, (4, 2)), rng.uniform(0.1, 6, 4)
        for bound in (None, limit):
            near = lines.project(points, bound)
            for row, path in enumerate(paths):
                arcs, samples = dense(path)
                if bound is not None:
                    samples, arcs = samples[arcs <= bound[row]], arcs[arcs <= bound[row]]
                gap = np.hypot(*(samples - points[row]).T)
                assert near.distance[row] == pytest.approx(gap.min(), abs=2e-3)
                assert np.hypot(*(near.point[row] - points[row])) == pytest.approx(near.distance[row])
                assert np.hypot(*near.tangent[row]) == pytest.approx(1)
        at = lines.at(limit)
        for row, path in enumerate(paths):
            arcs, samples = dense(path)
            assert np.hypot(*(samples[np.abs(arcs - limit[row]).argmin()] - at[row])) < 2e-3
        assert np.allclose(lines.project(at, limit).distance, 0, atol=1e-9)


def test_lengths_ends_and_parts(paths):
    lines = Polylines(paths)
    assert lines.length == pytest.approx([dense(path)[0][-1] for path in paths])
    assert np.array_equal(lines.ends, [path[-1] for path in paths])
    part = lines.subset(np.array([3, 0]))
    assert np.array_equal(part.length, lines.length[[3, 0]])
    lines.replace(np.array([1]), np.zeros((1, 9, 2)) + np.arange(9)[None, :, None])
    assert lines.length[1] == pytest.approx(8 * np.sqrt(2))
    assert np.array_equal(lines.length[[0, 2, 3]], Polylines(paths).length[[0, 2, 3]])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([[0, 0]], "at least two vertices"),
        ([[0, 0, 0], [1, 1, 1]], "shape"),
        ([[0, 0], [np.nan, 1]], "finite"),
        ([[1, 2], [1, 2]], "no length"),
    ],
)
def test_bad_paths(path, words):
    with pytest.raises(ValueError, match=words):
        check_path(path)
    with pytest.raises(ValueError, match="at least one path"):
        Polylines([])
