"""The lattice of sites: geometry of neighbours, and the nearest site by brute force."""

import numpy as np
import pytest

from components.envs.hexagonal import A0, NEIGHBOURS, snap, to_position


def test_neighbours_lie_at_the_lattice_constant_every_sixty_degrees():
    steps = to_position(NEIGHBOURS)
    np.testing.assert_allclose(np.hypot(*steps.T), A0)
    np.testing.assert_allclose(np.rad2deg(np.arctan2(steps[:, 1], steps[:, 0])) % 360, 60 * np.arange(6), atol=1e-9)


def test_snap_finds_the_nearest_site():
    sites = np.stack(np.meshgrid(np.arange(-12, 13), np.arange(-12, 13)), axis=-1).reshape(-1, 2)
    points = np.random.default_rng(0).uniform(-1.2, 1.2, (2000, 2))
    distance = np.linalg.norm(points[:, None] - to_position(sites), axis=-1)
    np.testing.assert_array_equal(snap(points), sites[distance.argmin(axis=1)])
    np.testing.assert_array_equal(snap(to_position(sites)), sites)


@pytest.mark.parametrize("wrong", [np.zeros((3, 3)), 1.0, [np.nan, 0.0], [np.inf, 0.0]])
def test_what_is_no_position_is_refused(wrong):
    with pytest.raises(ValueError, match="positions must"):
        snap(wrong)
