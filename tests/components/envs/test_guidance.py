"""What the agent sees and what its actions mean, against values worked out by hand and against the symmetry of the lattice."""

import math

import numpy as np
import pytest

from components.envs.guidance import (
    AZIMUTHS,
    BIASES,
    N_ACTIONS,
    N_STATES,
    TIP_DISTANCES,
    Guide,
    action_index,
    actions_up_to,
    check_actions,
    manipulation_states,
    nearest_other,
)
from components.envs.polylines import Polylines


def guide_on(path, position):
    guide = Guide(Polylines([np.asarray(path, float)]))
    guide.look(np.array([position], float))
    return guide


def test_an_observation_by_hand():
    guide = guide_on([[0, 0], [0, 3]], [0.0, 0.0])
    guide.aim(np.array([0]))
    guide.record(np.array([[0.1, 0.5]]), np.array([[0.15, 0.3]]))
    guide.look(np.array([[0.15, 0.3]]))
    seen = guide.observation(np.array([1]), np.array([[0.6, 0.8]]))[0]
    ahead = np.array([-0.15, 1.0]) / math.hypot(0.15, 1.0)  # towards (0, 1.3), 1 nm further along the path
    left = np.array([-ahead[1], ahead[0]])
    theta = math.atan2(ahead[1], ahead[0])
    expected = [
        1.5,
        0,
        math.cos(6 * theta),
        math.sin(6 * theta),
        math.cos(2 * (math.pi / 3 - theta)),
        math.sin(2 * (math.pi / 3 - theta)),
        -0.15,  # to the right of a path that goes up
        *(np.array([0.15, 0.3]) @ np.stack([ahead, left], axis=1) / 0.3),
        *(np.array([0.6, 0.8]) @ np.stack([ahead, left], axis=1) / 2),
        *(np.array([-0.05, 0.2]) @ np.stack([ahead, left], axis=1)),
    ]
    assert seen.dtype == np.float32
    assert seen == pytest.approx(expected, abs=1e-6)


def test_the_look_ahead_point_follows_the_furthest_point_and_stops_at_the_target():
    guide = guide_on([[0, 0], [2, 0]], [0.8, 0.3])
    assert guide.furthest[0] == pytest.approx(0.8)
    guide.look(np.array([[0.4, 0.0]]))  # thrown back: still looking 1 nm ahead of where it was
    assert guide.furthest[0] == pytest.approx(0.8)
    assert guide.ahead[0] == pytest.approx([1, 0])
    guide.look(np.array([[1.7, 0.4]]))
    assert guide.ahead[0] == pytest.approx([0.6, -0.8])  # at the target (2, 0)
    assert guide.distance[0] == pytest.approx(0.5)
    to_go, lateral = guide.remaining(np.array([[1.7, 0.4]]))
    assert (to_go[0], lateral[0]) == pytest.approx((0.3 + 0.4, 0.4))


def test_a_path_that_comes_near_itself_cannot_be_cut_short():
    path = [[0, 0], [3, 0], [3, 0.5], [0, 0.5]]
    guide = guide_on(path, [0.0, 0.4])  # nearer to the end of the path than to its beginning
    assert guide.furthest[0] == 0
    assert guide.remaining(np.array([[0.0, 0.4]]))[0][0] == pytest.approx(6.5 + 0.4)
    guide.look(np.array([[1.7, 0.1]]))  # a long throw forward counts
    assert guide.furthest[0] == pytest.approx(1.7)


def test_turning_the_world_by_60_degrees_changes_nothing_that_is_seen():
    rng = np.random.default_rng(0)
    c, s = 0.5, math.sqrt(3) / 2
    turn = np.array([[c, -s], [s, c]])
    path, other = rng.normal(size=(2, 2)) * 2, rng.normal(size=2)
    track = path[0] + np.cumsum(rng.normal(0, 0.3, (4, 2)), axis=0)

    def views(m, phi):
        guide = guide_on(path @ m.T, m @ path[0])
        for position in track:
            aim = guide.aim(np.array([17]))
            guide.record(aim.tip, (m @ position)[None])
            guide.look((m @ position)[None])
            yield guide.observation(np.array([phi % 3]), (m @ other)[None])[0], m.T @ aim.tip[0], aim.bias[0]

    for (seen, tip, bias), (seen_, tip_, bias_) in zip(views(np.eye(2), 1), views(turn, 2)):
        assert seen == pytest.approx(seen_, abs=1e-5)
        assert tip == pytest.approx(tip_)
        assert bias == bias_


def test_actions_are_every_combination_once():
    guide = guide_on([[0, 0], [0, 5]], [0.0, 0.0])
    found = set()
    for azimuth, angle in enumerate(AZIMUTHS):
        for distance, nm in enumerate(TIP_DISTANCES):
            for bias, volt in enumerate(BIASES):
                action = action_index(azimuth, distance, bias)
                aim = guide.aim(np.array([action]))
                assert aim.tip[0] == pytest.approx([-nm * math.sin(angle), nm * math.cos(angle)])
                assert aim.bias[0] == volt
                found.add(action)
            gentle = actions_up_to(2.8)
            assert [gentle[action_index(azimuth, distance, k)] for k in range(3)] == [True, True, False]
    assert found == set(range(N_ACTIONS))
    with pytest.raises(ValueError, match=r"2\.2 V"):
        actions_up_to(2.0)


def test_the_nearest_of_those_that_are_there():
    others = np.array([[[1.0, 0], [0, 0.5], [3, 0]], [[1, 1], [2, 2], [3, 3]]])
    present = np.array([[True, False, True], [False, False, False]])
    nearest = nearest_other(np.zeros((2, 2)), others, present)
    assert nearest[0].tolist() == [1, 0] and np.isinf(nearest[1]).all()
    assert np.isinf(nearest_other(np.zeros((2, 2)), np.zeros((2, 0, 2)), np.zeros((2, 0), bool))).all()
    guide = guide_on([[0, 0], [1, 0]], [0, 0])
    assert guide.observation(np.array([0]), np.full((1, 2), np.inf))[0, 9:11].tolist() == [-1, 0]
    assert guide.observation(np.array([0]), np.array([[0.0, 30.0]]))[0, 9:11] == pytest.approx([0, 1])


def test_coarse_states_are_of_the_lattice():
    """They tell the direction modulo 60 degrees, the molecule's axis in that turned frame, and the distance."""
    states = set()
    for sector in range(6):
        for step in range(6):
            theta = math.radians(60 * sector + 10 * step + 5)
            for phi in range(3):
                for reach in (0.2, 0.5, 1.0, 3.0):
                    end = reach * np.array([math.cos(theta), math.sin(theta)])
                    guide = guide_on([[0, 0], end], [0, 0])
                    seen = guide.observation(np.array([phi]), np.full((1, 2), np.inf))
                    state = int(manipulation_states(seen)[0])
                    assert state // 12 == step
                    assert state // 4 % 3 == (phi - sector) % 3
                    assert state % 4 == (0.2, 0.5, 1.0, 3.0).index(reach)
                    states.add(state)
    assert states == set(range(N_STATES))


def test_bad_actions():
    with pytest.raises(ValueError, match=r"0\.\.44, got 45"):
        check_actions([3, 45], 2)
    with pytest.raises(ValueError, match="got -1"):
        check_actions([-1], 1)
    with pytest.raises(TypeError, match="whole numbers"):
        check_actions([0.5], 1)
    with pytest.raises(ValueError, match="shape"):
        check_actions([1, 2], 3)
    with pytest.raises(ValueError, match="bias must be in"):
        action_index(0, 0, 3)
