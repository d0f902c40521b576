"""Agents against value iteration, and their bookkeeping."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from components.rl.dqn import DoubleDQN, DQNConfig
from components.rl.replay import ReplayBuffer
from components.rl.tabular import TabularQ

GAMMA = 0.9


def chain(state, action):
    """Five states in a row; left (0) from the first pays 0.2 and stays, right (1) from the last pays 1 and ends."""
    following = np.clip(state + 2 * action - 1, 0, 4)
    ended = (state == 4) & (action == 1)
    return following, np.where(ended, 1.0, np.where((state == 0) & (action == 0), 0.2, 0.0)), ended


def value_iteration():
    q = np.zeros((5, 2))
    state, action = np.repeat(np.arange(5), 2), np.tile([0, 1], 5)
    for _ in range(500):
        following, reward, ended = chain(state, action)
        q = (reward + GAMMA * ~ended * q.max(axis=1)[following]).reshape(5, 2)
    return q


def one_hot(states):
    return np.eye(5, dtype=np.float32)[states]


def learn(agent, calls, update):
    """Episodes of at most 20 steps from random states, 16 at a time, those that are cut off being told from those that end."""
    rng = np.random.default_rng(0)
    state, age = rng.integers(5, size=16), np.zeros(16, int)
    for _ in range(calls):
        action = agent.act(one_hot(state))
        following, reward, ended = chain(state, action)
        update(one_hot(state), action, reward, one_hot(following), ended)
        age += 1
        fresh = ended | (age >= 20)
        state, age = np.where(fresh, rng.integers(5, size=16), following), np.where(fresh, 0, age)


CFG = DQNConfig(hidden=32, lr=3e-3, gamma=GAMMA, batch=64, buffer=4000, epsilon_steps=800, epsilon_end=0.2, target_every=25)


@pytest.mark.parametrize("average", [0.0, 0.95])
def test_double_dqn_solves_a_chain(average):
    agent = DoubleDQN(5, 2, replace(CFG, average=average), seed=1)

    def update(*transition):
        agent.remember(*transition)
        agent.update()

    learn(agent, 1000, update)
    expected = value_iteration()
    assert agent.values(one_hot(np.arange(5))) == pytest.approx(expected, abs=0.05)
    assert np.array_equal(agent(one_hot(np.arange(5))), expected.argmax(axis=1))


def test_tabular_q_learning_solves_a_chain():
    agent = TabularQ(5, 2, lambda seen: seen.argmax(axis=1), gamma=GAMMA, epsilon_end=1.0, alpha=0.05, seed=0)
    learn(agent, 1500, agent.learn)
    expected = value_iteration()
    assert agent.table == pytest.approx(expected, abs=1e-3)
    assert np.array_equal(agent(one_hot(np.arange(5))), expected.argmax(axis=1))


def test_the_target_is_that_of_double_q_learning():
    """One update from fixed numbers, with the loss computed by hand from both networks."""
    agent = DoubleDQN(2, 3, DQNConfig(hidden=8, batch=1, gamma=0.7), seed=0)
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    seen, after = np.array([[0.5, -1.0]], np.float32), np.array([[1.0, 0.25]], np.float32)
    online, target = (
        [net(torch.from_numpy(x)).detach().numpy()[0] for x in (seen, after)] for net in (agent.online, agent.target)
    )
    for terminated in (False, True):
        fresh = DoubleDQN(2, 3, DQNConfig(hidden=8, batch=1, gamma=0.7), seed=0)
        fresh.target.load_state_dict(agent.target.state_dict())
        fresh.remember(seen, np.array([2]), np.array([4.0]), after, np.array([terminated]))
        error = 4.0 + (0 if terminated else 0.7 * target[1][online[1].argmax()]) - online[0][2]
        assert fresh.update() == pytest.approx(abs(error) - 0.5 if abs(error) > 1 else error**2 / 2, rel=1e-5)


def test_exploration_falls_linearly_and_greedy_acts_do_not_count():
    agent = DoubleDQN(5, 2, DQNConfig(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=10))
    found = []
    for _ in range(15):
        agent(one_hot([0]))
        found.append(agent.epsilon)
        agent.act(one_hot([0]))
    assert found == pytest.approx([*np.linspace(0.9, 0.1, 11), 0.1, 0.1, 0.1, 0.1])
    always = DoubleDQN(5, 4, DQNConfig(epsilon_start=1.0, epsilon_end=1.0))
    counts = np.bincount(always.act(one_hot(np.zeros(20_000, int))), minlength=4)
    assert abs(counts - 5000).max() < 300


def test_only_allowed_actions():
    agent = DoubleDQN(5, 4, DQNConfig(epsilon_start=0.5, epsilon_end=0.5), seed=3)
    allowed = np.array([False, True, False, True])
    states = one_hot(np.arange(500) % 5)
    assert set(agent.act(states, allowed=allowed)) == {1, 3}
    values = agent.values(states)
    assert np.array_equal(agent.act(states, greedy=True, allowed=allowed), np.where(values[:, 1] >= values[:, 3], 1, 3))


def test_an_agent_that_may_not_go_left_values_states_without_it(tmp_path):
    """With 'right' alone every state is worth the discounted prize at the end."""
    agent = DoubleDQN(5, 2, replace(CFG, average=0.0), seed=1, allowed=[False, True])

    def update(*transition):
        assert (transition[1] == 1).all()
        agent.remember(*transition)
        agent.update()

    learn(agent, 500, update)
    assert agent.values(one_hot(np.arange(5)))[:, 1] == pytest.approx(GAMMA ** np.arange(4, -1, -1), abs=0.03)
    agent.save(tmp_path / "right.safetensors")
    assert (DoubleDQN.load(tmp_path / "right.safetensors")(one_hot(np.arange(5))) == 1).all()


def test_the_same_seed_learns_the_same_and_a_saved_agent_acts_the_same(tmp_path):
    agents = [DoubleDQN(5, 2, CFG, seed=seed) for seed in (4, 4, 5)]
    for agent in agents:

        def update(*transition, agent=agent):
            agent.remember(*transition)
            agent.update()

        learn(agent, 60, update)
    states = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    first, second, other = (agent.values(states) for agent in agents)
    assert np.array_equal(first, second) and not np.array_equal(first, other)
    agents[0].save(tmp_path / "agent.safetensors")
    loaded = DoubleDQN.load(tmp_path / "agent.safetensors")
    assert loaded.cfg == CFG
    assert np.array_equal(loaded.values(states), first)
    assert np.array_equal(loaded(states), agents[0](states))
    agents[1].save(tmp_path / "again.safetensors")
    assert (tmp_path / "agent.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_a_table_is_saved_and_loaded(tmp_path):
    agent = TabularQ(5, 2, lambda seen: seen.argmax(axis=1), gamma=GAMMA)
    learn(agent, 50, agent.learn)
    agent.save(tmp_path / "table.safetensors")
    other = TabularQ(5, 2, lambda seen: seen.argmax(axis=1))
    other.load(tmp_path / "table.safetensors")
    assert np.array_equal(other.table, agent.table) and np.array_equal(other.visits, agent.visits)
    with pytest.raises(ValueError, match=r"\(5, 2\)"):
        TabularQ(6, 2, lambda seen: seen).load(tmp_path / "table.safetensors")


def test_the_buffer_keeps_the_latest():
    buffer = ReplayBuffer(10, 1)
    for start in range(0, 28, 4):
        x = np.arange(start, start + 4, dtype=float)
        buffer.add(x[:, None], x.astype(int), x, x[:, None] + 0.5, x % 2)
    assert len(buffer) == 10
    drawn = buffer.sample(2000, np.random.default_rng(0))
    assert set(drawn.action) == set(range(18, 28))
    assert np.array_equal(drawn.observation[:, 0], drawn.action)
    assert np.array_equal(drawn.following[:, 0], drawn.action + 0.5)
    assert np.array_equal(drawn.terminated, drawn.action % 2)
    with pytest.raises(ValueError, match="does not fit"):
        buffer.add(np.zeros((11, 1)), np.zeros(11, int), np.zeros(11), np.zeros((11, 1)), np.zeros(11))


def test_bad_input(tmp_path):
    for wrong in ({"gamma": 1.5}, {"lr": 0}, {"batch": 0}, {"epsilon_end": 2.0}, {"hidden": 1.5}, {"average": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DQNConfig(**wrong)
    agent = DoubleDQN(5, 2)
    assert agent.update() is None
    with pytest.raises(ValueError, match=r"shape \(B, 5\)"):
        agent.act(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="finite"):
        agent.act(np.full((3, 5), np.nan))
    with pytest.raises(ValueError, match="allowed"):
        agent.act(np.zeros((3, 5)), allowed=np.array([False, False]))
    with pytest.raises(ValueError, match="reward must be finite"):
        agent.remember(np.zeros((1, 5)), np.array([0]), np.array([np.nan]), np.zeros((1, 5)), np.array([False]))
    with pytest.raises(ValueError, match="following must have shape"):
        agent.remember(np.zeros((1, 5)), np.array([0]), np.array([0.0]), np.zeros((2, 5)), np.array([False]))
    with pytest.raises(ValueError, match="two actions"):
        DoubleDQN(5, 1)
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(5, 1).sample(2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 1"):
        ReplayBuffer(0, 1)
    with pytest.raises(ValueError, match="alpha"):
        TabularQ(5, 2, lambda seen: seen, alpha=0.0)
    save_file({"x": np.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="no DoubleDQN agent"):
        DoubleDQN.load(tmp_path / "other.safetensors")
