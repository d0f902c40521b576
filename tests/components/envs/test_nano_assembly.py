"""The environments: the contracts of both libraries, equality of single and batched, rewards, scenes, pictures."""

import warnings

import gymnasium
import numpy as np
import pytest
import stable_baselines3.common.env_checker
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from components.envs.guidance import action_index
from components.envs.hexagonal import snap, to_position
from components.envs.nano_assembly import Manipulation, NanoAssemblyEnv, NanoAssemblyVecEnv, Rewards, Scenes
from components.envs.protocols import FixedProtocol
from components.envs.stm import Physics

AHEAD = action_index(2, 1, 1)  # 0.4 nm straight ahead, 2.6 V


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_both_libraries_accept_the_environment(observation):
    env = gymnasium.make("NanoAssembly-v0", observation=observation, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        stable_baselines3.common.env_checker.check_env(NanoAssemblyEnv(observation))


def rollout(envs, steps, seed):
    rng = np.random.default_rng(seed)
    history = [envs.reset(seed=seed)[0]]
    for _ in range(steps):
        history += envs.step(rng.integers(45, size=envs.num_envs))[:4]
    return history


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_a_batch_is_bit_for_bit_as_many_single_environments(observation):
    count, steps, seed = (8, 120, 7) if observation == "vector" else (2, 20, 7)
    envs = NanoAssemblyVecEnv(count, observation)
    singles = [NanoAssemblyEnv(observation) for _ in range(count)]
    seen, _ = envs.reset(seed=seed)
    assert np.array_equal(seen, [env.reset(seed=seed + b)[0] for b, env in enumerate(singles)])
    rng, ended = np.random.default_rng(0), 0
    for _ in range(steps):
        actions = np.where(rng.random(count) < 0.7, AHEAD, rng.integers(45, size=count))
        seen, reward, terminated, truncated, info = envs.step(actions)
        for b, env in enumerate(singles):
            alone = env.step(int(actions[b]))
            assert (alone[1], alone[2], alone[3]) == (reward[b], terminated[b], truncated[b])
            if alone[2] or alone[3]:
                ended += 1
                assert info["_final_obs"][b] and np.array_equal(info["final_obs"][b], alone[0])
                assert all(np.array_equal(info["final_info"][name][b], value) for name, value in alone[4].items())
                alone = env.reset()
            assert np.array_equal(seen[b], alone[0])
    assert ended > count or observation == "image"


def test_same_seed_same_run_other_seed_another():
    first, second, other = (rollout(NanoAssemblyVecEnv(5), 40, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], other[0])
    env = NanoAssemblyEnv()
    assert not np.array_equal(env.reset(seed=1)[0], env.reset()[0])  # the stream goes on


def test_gymnasium_makes_the_batch():
    envs = gymnasium.make_vec("NanoAssembly-v0", num_envs=3)
    assert isinstance(envs.unwrapped, NanoAssemblyVecEnv)
    seen, _ = envs.reset(seed=0)
    assert seen.shape == (3, 13) and envs.observation_space.contains(seen)
    sync = gymnasium.make_vec("NanoAssembly-v0", num_envs=3, vectorization_mode="sync")
    assert np.array_equal(sync.reset(seed=0)[0], seen)


def test_without_autoreset_one_resets_by_a_mask():
    envs = NanoAssemblyVecEnv(6, scenes=Scenes(max_pulses=2), autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.zeros(6, dtype=int))
    seen, _, terminated, truncated, info = envs.step(np.zeros(6, dtype=int))
    assert truncated.all() and not terminated.any() and "final_obs" not in info
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(6, dtype=int))
    mask = np.arange(6) % 2 == 0
    again, _ = envs.reset(options={"reset_mask": mask})
    assert np.array_equal(again[~mask], seen[~mask]) and not (again[mask] == seen[mask]).all(axis=1).any()
    envs.reset(options={"reset_mask": ~mask})
    envs.step(np.zeros(6, dtype=int))


def test_random_scenes_are_what_they_claim():
    state = Manipulation(np.arange(400))
    state.begin(np.arange(400))
    place = to_position(state.sites)
    end = to_position(state.target)
    length = np.hypot(*(end - place[:, 0]).T)
    assert 1.5 <= length.min() < 1.7 and 3.8 < length.max() <= 4.0
    t = np.linspace(0, 1, 400)[:, None]
    for b in range(400):
        way = place[b, 0] + t * (end[b] - place[b, 0])
        gap = np.hypot(*(place[b, 1:, None] - way).transpose(2, 0, 1)).min(axis=1)
        assert (gap >= 1.2 - 1e-9).all() and (gap <= 1.7 + 1e-2).all()
        assert np.hypot(*(place[b, 1] - place[b, 2])) >= 0.9
    angles = np.arctan2(*(end - place[:, 0]).T[::-1])
    assert np.histogram(angles, bins=4, range=(-np.pi, np.pi))[0].min() > 60
    assert np.bincount(state.orientation.ravel(), minlength=3).min() > 320


def test_a_molecule_may_be_alone_or_in_a_crowd():
    for bystanders in (0, 5):
        envs = NanoAssemblyVecEnv(20, scenes=Scenes(bystanders=bystanders))
        seen, _ = envs.reset(seed=0)
        assert (seen[:, 9:11] == (-1, 0)).all() == (bystanders == 0)
        for _ in range(30):
            seen, _, _, _, info = envs.step(np.full(20, AHEAD))
            assert envs.observation_space.contains(seen) and (info["bystanders_moved"] <= bystanders).all()


def given_scene(env, *, others=(), path=((0, 0), (2.3, 0)), seed=0):
    sites = snap(np.array([path[0], *others], dtype=float))
    return env.reset(seed=seed, options={"sites": sites, "path": to_position(snap(np.array(path)))})


def test_rewards_add_up():
    """Over an episode: the way that was made, less what was paid, plus the goal, from the infos alone."""
    rewards = Rewards(pulse=0.07, lateral=0.0, bystander=2.0, lost=4.0, goal=1.5)
    env = NanoAssemblyEnv(rewards=rewards, physics=Physics(dissociation=0.05, dissociation_bias=2.5))
    policy, outcomes = FixedProtocol(0.6, 3.0), set()
    for seed in range(40):
        seen, info = env.reset(seed=seed)
        to_go, total, expected = info["remaining"], 0.0, 0.0
        done = False
        while not done:
            seen, reward, terminated, truncated, info = env.step(int(policy(seen[None])[0]))
            total += reward
            expected -= 0.07 + 2.0 * (info["bystanders_moved"] > 0)
            done = terminated or truncated
        assert terminated == (info["is_success"] or info["lost"])
        expected += to_go - info["remaining"] + 1.5 * info["is_success"] - 4.0 * info["lost"]
        assert total == pytest.approx(expected, abs=1e-9)
        if info["is_success"]:
            assert info["remaining"] == pytest.approx(0, abs=1e-9)
        outcomes.add((info["is_success"], info["lost"]))
    assert {(True, False), (False, True)} <= outcomes


def test_the_distance_from_the_path_costs_beyond_its_tolerance():
    env = NanoAssemblyEnv(rewards=Rewards(pulse=0, lateral=1.0, tolerance=0.3), physics=Physics(threshold=90.0))
    given_scene(env)
    env.state.sites[0, 0] = (0, 3)  # 0.75 nm beside the path
    env.state.guide.look(to_position(env.state.sites[:, 0]))
    env.state.to_go, _ = env.state.guide.remaining(to_position(env.state.sites[:, 0]))
    reward = env.step(AHEAD)[1]
    assert reward == pytest.approx(-(3 * 0.2885 * np.sqrt(3) / 2 - 0.3), abs=1e-9)


def test_a_molecule_is_pulled_to_its_target_around_a_corner():
    env = NanoAssemblyEnv(scenes=Scenes(max_pulses=400))
    reached = 0
    for seed in range(10):
        _, info = given_scene(env, path=((0, 0), (2.4, 0), (2.4, 2.4)), seed=seed)
        assert info["remaining"] == pytest.approx(4.8, abs=0.3)
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(AHEAD)
            done = terminated or truncated
        reached += info["is_success"]
        assert info["pulses"] < 100
    assert reached >= 9


def test_an_episode_is_cut_off_and_has_to_be_reset():
    env = NanoAssemblyEnv(scenes=Scenes(max_pulses=3), physics=Physics(threshold=90.0))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def brightest(picture, extent=8.0, count=3):
    """Positions, nm from the centre, of the brightest separate blobs of a picture (n, n)."""
    left, found = picture.astype(float).copy(), []
    ticks = ((np.arange(len(left)) + 0.5) / len(left) - 0.5) * extent
    for _ in range(count):
        row, column = np.unravel_index(left.argmax(), left.shape)
        found.append((ticks[column], -ticks[row]))
        left[(np.hypot(ticks[None] - ticks[column], (ticks[:, None] - ticks[row])) < 0.6)] = 0
    return np.array(found)


def test_pictures_show_blobs_at_the_molecules():
    env = NanoAssemblyEnv(render_mode="rgb_array")
    given_scene(env, others=[(0.2, 1.7), (2.6, -1.6)])
    picture = env.render()
    assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
    place = to_position(env.state.sites[0])
    middle = 0.5 * (place[0] + to_position(env.state.target[0]))
    assert_same_places(brightest(picture[..., 0]) + middle, place)
    image = NanoAssemblyEnv("image")
    seen, _ = given_scene(image, others=[(0.2, 1.7), (2.6, -1.6)])
    assert_same_places(brightest(seen[..., 0]) + place[0], place, 0.15)
    goal = brightest(seen[..., 1], count=1) + place[0]
    assert goal[0] == pytest.approx(to_position(image.state.target[0]), abs=0.15)
    assert seen[32, 32:48, 2].min() > 200 > 60 > seen[:20, :, 2].max()  # the path leads to the right
    batch = NanoAssemblyVecEnv(2, render_mode="rgb_array")
    batch.reset(seed=0)
    assert [shot.shape for shot in batch.render()] == [(64, 64, 3)] * 2
    assert NanoAssemblyVecEnv(2).render() is None


def assert_same_places(found, expected, tolerance=0.06):
    gap = np.hypot(*(found[:, None] - expected[None]).transpose(2, 0, 1))
    assert (gap.min(axis=0) < tolerance).all() and (gap.min(axis=1) < tolerance).all()


def test_bad_input():
    env = NanoAssemblyEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"0\.\.44"):
        env.step(45)
    with pytest.raises(TypeError, match="whole numbers"):
        env.step(1.5)
    with pytest.raises(ValueError, match="'vector' or 'image'"):
        NanoAssemblyEnv("sound")
    with pytest.raises(ValueError, match="render_mode"):
        NanoAssemblyEnv(render_mode="human")
    with pytest.raises(ValueError, match="shortest < longest"):
        Scenes(shortest=4.0)
    for wrong in ({"bystanders": 1.5}, {"max_pulses": 0}, {"longest": np.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Scenes(**wrong)
    with pytest.raises(ValueError, match="lost must be finite"):
        Rewards(lost=np.inf)
    with pytest.raises(ValueError, match="clearance"):
        Manipulation(np.array([0]), scenes=Scenes(clearance=0.5))
    with pytest.raises(ValueError, match="at least one environment"):
        NanoAssemblyVecEnv(0)
    with pytest.raises(ValueError, match="SAME_STEP or DISABLED"):
        NanoAssemblyVecEnv(1, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs = NanoAssemblyVecEnv(2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="2 seeds"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"mask": np.ones(2, dtype=bool)})
    path = np.array([[0.0, 0.0], [2.0, 0.0]])
    for options, words in (
        ({"sites": np.array([[0, 0]])}, "path"),
        ({"sites": np.array([[0, 0], [2, 0]]), "path": path}, "contact distance"),
        ({"sites": np.array([[0.0, 0.0]]), "path": path}, "whole numbers"),
        ({"sites": np.array([[0, 0]] * 4), "path": path}, "sites must be"),
        ({"sites": np.array([[9, 0]]), "path": path}, "must start at"),
        ({"sites": np.array([[0, 0]]), "path": path * np.nan}, "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            env.reset(options=options)
