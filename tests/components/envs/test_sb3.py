"""Agents of stable-baselines3 on the batched environment."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import make_vec_env

import components.envs.nano_assembly  # noqa: F401 - registers the environment
from components.envs.evaluation import evaluate
from components.envs.nano_assembly import NanoAssemblyVecEnv, Scenes
from components.envs.sb3 import GymnasiumVecEnv, Sb3Policy, train_sb3

OPTIONS = {"DQN": {"learning_starts": 200, "train_freq": 8}, "PPO": {"n_steps": 32, "n_epochs": 1}}


@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_an_agent_trains_for_1000_steps(algorithm):
    told = []
    model = train_sb3(
        algorithm,
        NanoAssemblyVecEnv(8),
        1000,
        0,
        on_steps=lambda steps, model: told.append(steps),
        every=500,
        **OPTIONS[algorithm],
    )
    assert 1000 <= model.num_timesteps < 1300
    assert told == [504, 1000] if algorithm == "DQN" else told[0] == 504
    rated = evaluate(Sb3Policy(model), [0], 10)
    assert np.isfinite(rated["return"]).all() and rated["pulses"][0] >= 1


@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_the_same_seed_gives_the_same_agent(algorithm):
    models = [train_sb3(algorithm, NanoAssemblyVecEnv(8), 256, seed, **OPTIONS[algorithm]) for seed in (0, 0, 1)]
    first, second, other = ([p.detach().numpy() for p in model.policy.parameters()] for model in models)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_an_agent_trains_on_images():
    model = train_sb3("PPO", NanoAssemblyVecEnv(2, "image"), 16, 0, policy="CnnPolicy", n_steps=8, batch_size=8, n_epochs=1)
    assert model.num_timesteps == 16
    rated = evaluate(Sb3Policy(model), [0], 2, scenes=Scenes(max_pulses=3), observation="image")
    assert rated["pulses"][0] <= 3


def test_the_adapter_steps_as_the_libraries_own():
    scenes = Scenes(max_pulses=6)
    ours = GymnasiumVecEnv(NanoAssemblyVecEnv(3, scenes=scenes), seed=5)
    theirs = make_vec_env("NanoAssembly-v0", 3, seed=5, env_kwargs={"scenes": scenes})
    assert np.array_equal(ours.reset(), theirs.reset())
    rng, ended = np.random.default_rng(0), 0
    for _ in range(40):
        actions = rng.integers(45, size=3)
        a, b = ours.step(actions), theirs.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3]))
        for row in np.nonzero(a[2])[0]:
            ended += 1
            assert np.array_equal(a[3][row]["terminal_observation"], b[3][row]["terminal_observation"])
            assert a[3][row]["TimeLimit.truncated"] == b[3][row]["TimeLimit.truncated"]
            assert a[3][row]["is_success"] == b[3][row]["is_success"]
    assert ended > 10


def test_bad_input():
    with pytest.raises(ValueError, match="DQN, PPO"):
        train_sb3("SARSA", NanoAssemblyVecEnv(1), 10, 0)
    with pytest.raises(ValueError, match="at least 1"):
        train_sb3("PPO", NanoAssemblyVecEnv(1), 0, 0)
    with pytest.raises(ValueError, match="SAME_STEP"):
        GymnasiumVecEnv(NanoAssemblyVecEnv(1, autoreset_mode=AutoresetMode.DISABLED))
