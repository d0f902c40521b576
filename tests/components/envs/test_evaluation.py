"""Policies and how they are rated."""

import numpy as np
import pytest

from components.envs.evaluation import MEASURES, evaluate
from components.envs.nano_assembly import NanoAssemblyEnv, Rewards, Scenes
from components.envs.protocols import FixedProtocol, RandomPolicy, fixed_protocols
from components.envs.stm import Physics


def test_all_policies_meet_the_same_scenes_and_seeds_are_rated_one_by_one():
    first, both = evaluate(FixedProtocol(0.4, 2.6), [5], 30), evaluate(FixedProtocol(0.4, 2.6), [9, 5], 30)
    assert set(first) == set(MEASURES)
    for name in MEASURES:
        assert both[name].shape == (2,) and both[name][1] == first[name][0]
    # Nothing moves, and nothing is gained: both pay for 7 pulses, whatever they do.
    still = {
        "physics": Physics(threshold=90.0, dissociation=0.0),
        "scenes": Scenes(max_pulses=7),
        "rewards": Rewards(lateral=0.0),
    }
    for policy in (RandomPolicy(0), FixedProtocol(0.6, 3.0)):
        rated = evaluate(policy, [0], 10, **still)
        assert rated["return"][0] == pytest.approx(-7 * 0.05) and rated["pulses"][0] == 7 and rated["success"][0] == 0


def test_measures_agree_with_a_loop_over_single_environments():
    policy = FixedProtocol(0.6, 3.0)
    rated = evaluate(policy, range(4), 150)
    totals = []
    env = NanoAssemblyEnv()
    env.reset(seed=0)
    for _ in range(60):
        seen, _ = env.reset()
        total, pulses, moved, done = 0.0, 0, False, False
        while not done:
            seen, reward, terminated, truncated, info = env.step(int(policy(seen[None])[0]))
            total, pulses, moved = total + reward, pulses + 1, moved or info["bystanders_moved"] > 0
            done = terminated or truncated
        totals.append((total, info["is_success"], pulses, moved, info["lost"]))
    totals = np.array(totals, float)
    for name, column in zip(MEASURES, totals.T):
        error = np.sqrt(totals.var(axis=0)[MEASURES.index(name)] * (1 / 60 + 1 / 600))
        assert abs(rated[name].mean() - column.mean()) < 4 * error + 1e-9


def test_pulling_beats_chance_and_the_protocols_are_nine():
    protocols = fixed_protocols()
    assert len({policy.action for policy in protocols}) == len(protocols) == 9
    assert len({str(policy) for policy in protocols}) == 9
    pulled, chance = (evaluate(policy, [0, 1], 60) for policy in (FixedProtocol(0.4, 2.6), RandomPolicy(0)))
    assert pulled["return"].min() > chance["return"].max() + 1
    assert pulled["success"].mean() > 0.95 and pulled["lost"].sum() == 0


def test_chance_uses_every_action_and_repeats():
    seen = np.zeros((9000, 13), np.float32)
    actions = RandomPolicy(1)(seen)
    assert np.bincount(actions, minlength=45).min() > 120 and actions.max() == 44
    assert np.array_equal(actions, RandomPolicy(1)(seen))


def test_bad_input():
    with pytest.raises(ValueError, match=r"bias must be one of \[2\.2, 2\.6, 3\.0\]"):
        FixedProtocol(0.4, 2.5)
    with pytest.raises(ValueError, match="at least one seed"):
        evaluate(RandomPolicy(0), [])
    with pytest.raises(ValueError, match="at least one"):
        evaluate(RandomPolicy(0), [0], 0)
    with pytest.raises(ValueError, match=r"0\.\.44"):
        evaluate(lambda seen: np.full(len(seen), 45), [0], 1)
    with pytest.raises(TypeError, match="whole numbers"):
        evaluate(lambda seen: np.full(len(seen), np.nan), [0], 1)
    with pytest.raises(ValueError, match="'vector' or 'image'"):
        evaluate(RandomPolicy(0), [0], 1, observation="sound")
