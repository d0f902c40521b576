"""Instances: the geometry of every shape, scattered starts, and measured positions."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from components.envs.hexagonal import A0, to_position
from components.scheduling.instances import make_instance, read_positions, target_positions

# Neighbours at the pitch of a site inside the structure.
COORDINATION = {"square": 4, "hex": 6, "honeycomb": 3, "kagome": 4}


@pytest.mark.parametrize(("shape", "coordination"), COORDINATION.items())
def test_periodic_shapes_have_their_pitch_and_coordination(shape, coordination):
    points = target_positions(shape, 200, 1.7)
    distance = squareform(pdist(points)) + 99 * np.eye(200)
    assert distance.min() == pytest.approx(1.7)
    inside = np.hypot(*points.T) < 5
    assert inside.sum() > 20
    np.testing.assert_array_equal((np.abs(distance - 1.7) < 1e-6).sum(axis=1)[inside], coordination)


def test_square_is_a_full_square():
    points = target_positions("square", 36, 2.0)
    np.testing.assert_allclose(np.unique(points[:, 0]), np.arange(-5, 6, 2))
    np.testing.assert_allclose(np.unique(points[:, 1]), np.arange(-5, 6, 2))
    assert len(np.unique(points, axis=0)) == 36


def test_rings_are_filled_from_the_inside():
    points = target_positions("rings", 100, 2.0)
    # Seven sites of the inmost ring are not symmetric about the centre of the bounding box, so the rings' centre is fitted.
    outer = points[28:63]
    normal = np.linalg.lstsq(np.c_[2 * outer, np.ones(35)], (outer**2).sum(axis=1), rcond=None)[0]
    radius = np.hypot(*(points - normal[:2]).T)
    np.testing.assert_allclose(radius, np.repeat([2.4, 6.8, 11.2, 15.6], [7, 21, 35, 37]), atol=1e-9)
    distance = squareform(pdist(points)) + 99 * np.eye(100)
    assert 1.9 < distance.min()
    assert (distance[:63].min(axis=1) < 2.2).all()


@pytest.mark.parametrize("shape", ["square", "hex", "honeycomb", "rings", "kagome", "bitmap", "bitmap(ICML 26)"])
def test_instances_lie_on_the_lattice_and_in_the_box(shape):
    instance = make_instance(shape, 60, 1.8, 76.0, 2.0, seed=3, surplus=0.1)
    assert instance.target_sites.shape == (60, 2) and instance.start_sites.shape == (66, 2)
    np.testing.assert_allclose(instance.targets, to_position(instance.target_sites))
    assert pdist(instance.starts).min() >= 2.0 - 1e-9
    assert pdist(instance.targets).min() >= 0.9
    assert max(np.abs(instance.starts).max(), np.abs(instance.targets).max()) <= 38.0
    assert np.abs(instance.starts).max() > 33, "starts fill the box"
    # Snapping moves a target by at most the lattice's covering radius.
    moved = np.hypot(*(instance.targets - target_positions(shape, 60, 1.8)).T)
    assert moved.max() <= A0 / np.sqrt(3) + 1e-9
    np.testing.assert_allclose((instance.targets.max(axis=0) + instance.targets.min(axis=0)) / 2, 0, atol=A0)
    assert set(instance.orientations) == {0, 1, 2} and instance.orientations.shape == (66,)


def test_the_seed_decides_the_starts_alone():
    first, again, other = (make_instance("hex", 40, 2.0, 40.0, 2.0, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.start_sites, again.start_sites)
    np.testing.assert_array_equal(first.orientations, again.orientations)
    np.testing.assert_array_equal(first.target_sites, other.target_sites)
    assert not np.array_equal(first.start_sites, other.start_sites)


def test_a_text_reads_from_left_to_right():
    points = target_positions("bitmap(T1)", 21, 2.0)
    left = points[points[:, 0] < 0]
    # The T: a bar of five above a stem of six.
    assert len(left) == 11
    assert (left[:, 1] == left[:, 1].max()).sum() == 5
    assert len(np.unique(left[left[:, 1] < left[:, 1].max()][:, 0])) == 1
    assert len(np.unique(target_positions("bitmap(T1)", 100, 2.0), axis=0)) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "circle"}, "unknown shape 'circle'; the shapes are square"),
        ({"shape": "bitmap(å)"}, "letters, digits and spaces"),
        ({"shape": "bitmap( )"}, "letters, digits and spaces"),
        ({"n": 0}, "n must be a whole number"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"pitch": 0.0}, "pitch must be a positive"),
        ({"pitch": 0.95}, "targets .* apart"),
        ({"box": 8.0}, "needs a box of"),
        ({"box": float("inf")}, "box must be a positive"),
        ({"d_min": 0.5}, "contact distance"),
        ({"box": 12.0, "d_min": 3.0}, "molecules fit in a box"),
        ({"surplus": -0.1}, "surplus"),
    ],
)
def test_impossible_instances_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_instance(**({"shape": "hex", "n": 36, "pitch": 1.6, "box": 30.0, "d_min": 2.0, "seed": 0} | change))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_measured_positions_are_read_by_column_name(tmp_path, separator):
    rows = [["orientation_deg", "label", "x_nm", "y_nm"], ["61.5", "a", "1.25", "-3e-1"], ["-59", "b", "4", "0.5"]]
    path = tmp_path / "positions.csv"
    path.write_text("\ufeff# exported\n" + "\n".join(separator.join(row) for row in rows) + "\n\n", encoding="utf-8")
    measured = read_positions(path)
    np.testing.assert_array_equal(measured.positions, [[1.25, -0.3], [4.0, 0.5]])
    np.testing.assert_array_equal(measured.orientations, [61.5, -59.0])
    np.testing.assert_array_equal(measured.orientation_index, [1, 2])
    assert np.hypot(*(to_position(measured.sites) - measured.positions).T).max() <= A0 / np.sqrt(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("x_nm,y_nm\n1,2\n", "lacks the column orientation_deg"),
        ("a,b\n1,2\n", "lacks the columns x_nm, y_nm, orientation_deg"),
        ("x_nm,y_nm,orientation_deg\n", "no molecules"),
        ("x_nm,y_nm,orientation_deg\n1,2,0\n1,two,0\n", "molecule 2: expected finite numbers, got x_nm=1, y_nm=two"),
        ("x_nm,y_nm,orientation_deg\n1,nan,0\n", "molecule 1: expected finite"),
        ("x_nm,y_nm,orientation_deg\n1,2\n", "molecule 1: expected finite"),
        ("x_nm,y_nm,orientation_deg\n1,2,0\n1.1,2,0\n", "positions.csv: molecules 0 and 1 are 0.1 nm apart"),
    ],
)
def test_unreadable_positions_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "positions.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_positions(path)
