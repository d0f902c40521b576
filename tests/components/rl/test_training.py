"""Training: the best checkpoint is kept, ends of episodes are told apart, runs repeat."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from components.envs.evaluation import mean_rating
from components.envs.guidance import N_ACTIONS, N_STATES, manipulation_states
from components.envs.nano_assembly import NanoAssemblyVecEnv, Scenes
from components.envs.protocols import RandomPolicy
from components.rl.dqn import DoubleDQN, DQNConfig
from components.rl.tabular import TabularQ
from components.rl.training import train

CFG = DQNConfig(hidden=32, batch=128, epsilon_steps=60, target_every=50)


rate = mean_rating([0, 1], 15)


def test_an_agent_learns_to_drive_molecules_and_the_same_seed_learns_the_same():
    results, agents = [], []
    for _ in range(2):
        agent, iterations = DoubleDQN(13, N_ACTIONS, CFG, seed=0), []
        results.append(
            train(agent, NanoAssemblyVecEnv(16), rate, iters=150, eval_every=50, seed=0, on_iteration=iterations.append)
        )
        agents.append(agent)
        assert iterations == list(range(1, 151))
    assert results[0] == results[1]
    assert all((a == b).all() for a, b in zip(agents[0].weights().values(), agents[1].weights().values(), strict=True))
    result = results[0]
    assert [entry["iteration"] for entry in result.curve] == [50, 100, 150]
    assert [entry["steps"] for entry in result.curve] == [800, 1600, 2400]
    assert result.best["return"] == max(entry["return"] for entry in result.curve)
    assert rate(agents[0]) == result.best  # the agent is the best checkpoint
    assert result.best["return"] > rate(RandomPolicy(0))["return"] + 0.5


def test_the_best_checkpoint_is_kept_not_the_last():
    scores, agent, kept = iter([1.0, 3.0, 3.0, 2.0]), DoubleDQN(13, N_ACTIONS, CFG), []

    def judged(policy):
        kept.append(policy.weights())
        return {"return": next(scores)}

    result = train(agent, NanoAssemblyVecEnv(16), judged, iters=40, eval_every=10, seed=0)
    assert result.best_iteration == 20 and result.best == {"return": 3.0}
    now = agent.weights()
    assert all((kept[1][name] == now[name]).all() for name in now)
    assert any((kept[3][name] != now[name]).any() for name in now)


class Recorder(DoubleDQN):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__(13, N_ACTIONS, CFG)
        self.told = []

    def remember(self, *transition):
        self.told.append([np.array(part) for part in transition])
        super().remember(*transition)


def test_transitions_belong_together_across_the_ends_of_episodes():
    agent, envs = Recorder(), NanoAssemblyVecEnv(4, scenes=Scenes(max_pulses=5))
    train(agent, envs, lambda policy: {"return": 0.0}, iters=12, eval_every=12, seed=1)
    ended, cut = 0, 0
    for (_, _, _, following, terminated), (observation, *_) in zip(agent.told[:-1], agent.told[1:], strict=True):
        same = (following == observation).all(axis=1)
        assert not same[terminated].any()
        ended += int(terminated.sum())
        cut += int((~same & ~terminated).sum())
    assert cut >= 4  # cut off after five pulses: their last observation, not the next episode's first, and not terminated
    assert ended + cut < 4 * 11


def test_tabular_learning_on_coarse_states():
    agent = TabularQ(N_STATES, N_ACTIONS, manipulation_states, epsilon_steps=100)
    result = train(agent, NanoAssemblyVecEnv(32), rate, iters=120, eval_every=60, seed=0)
    assert agent.visits.sum() <= 120 * 32
    assert (agent.visits.sum(axis=1) > 0).mean() > 0.75
    assert result.best["return"] == max(entry["return"] for entry in result.curve)
    assert rate(agent) == result.best


def test_an_exception_of_the_callback_ends_the_training():
    def stop(entry):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(DoubleDQN(13, N_ACTIONS, CFG), NanoAssemblyVecEnv(4), rate, iters=20, eval_every=1, seed=0, on_evaluation=stop)


def test_bad_input():
    agent, envs = DoubleDQN(13, N_ACTIONS, CFG), NanoAssemblyVecEnv(2)
    with pytest.raises(ValueError, match="at least 1"):
        train(agent, envs, rate, iters=0, eval_every=1, seed=0)
    with pytest.raises(ValueError, match="updates_per_iter"):
        train(agent, envs, rate, iters=1, eval_every=1, seed=0, updates_per_iter=0)
    off = NanoAssemblyVecEnv(2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="SAME_STEP"):
        train(agent, off, rate, iters=1, eval_every=1, seed=0)
