"""Double deep Q-learning for vector observations and discrete actions (van Hasselt, Guez and Silver, "Deep Reinforcement
Learning with Double Q-learning").

The target of a transition is r + gamma * Q'(s', argmax_a Q(s', a)): the online network chooses the action, a slower copy of it
values it. Episodes that were cut off are valued beyond their end, those that ended are not.

Where rare, dear events decide between actions of nearly equal value, the greedy policy changes from one update to the next; so
it may act on an average of the recent weights (Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging").
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from components.rl.replay import ReplayBuffer


@dataclass(frozen=True)
class DQNConfig:
    """Parameters of `DoubleDQN`."""

    hidden: int = 128  # units of each of the two hidden layers
    lr: float = 1e-3  # Adam's learning rate
    gamma: float = 0.95  # discount
    batch: int = 256  # transitions an update
    buffer: int = 100_000  # transitions kept
    epsilon_start: float = 1.0  # share of random actions at first
    epsilon_end: float = 0.05  # and in the end
    epsilon_steps: int = 2_400  # calls of `act` over which it falls linearly
    target_every: int = 200  # updates after which the target network is renewed
    huber: float = (
        1.0  # error up to which the loss is quadratic; rarer and dearer events than this count for less than their mean
    )
    average: float = 0.998  # decay of the average of the weights on which the greedy policy acts; 0: the latest weights

    def __post_init__(self) -> None:
        for name in ("hidden", "batch", "buffer", "epsilon_steps", "target_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr!r}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma!r}")
        if not self.huber > 0:
            raise ValueError(f"huber must be positive, got {self.huber!r}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be in [0, 1), got {self.average!r}")
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise ValueError(
                f"0 <= epsilon_end <= epsilon_start <= 1 is needed, got {self.epsilon_end!r} and {self.epsilon_start!r}"
            )


class DoubleDQN:
    """The agent.

    Args:
        obs_dim: entries of an observation.  n_actions: number of actions.
        cfg: parameters.  seed: of the network's initial weights, of exploration and of the replayed batches.
        allowed: (n_actions,) bool, the actions that it may ever take or value a state by; default all.

    Calling it with observations (B, obs_dim) gives the greedy actions (B,): a trained agent is a policy.
    """

    def __init__(
        self, obs_dim: int, n_actions: int, cfg: DQNConfig | None = None, seed: int = 0, allowed: ArrayLike | None = None
    ) -> None:
        if obs_dim < 1 or n_actions < 2:
            raise ValueError(f"at least one observation and two actions are needed, got {obs_dim} and {n_actions}")
        self.obs_dim, self.n_actions, self.cfg = obs_dim, n_actions, cfg or DQNConfig()
        self.allowed = self._mask(np.ones(n_actions, dtype=bool) if allowed is None else allowed)
        self._forbidden = torch.from_numpy(~self.allowed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.online, self.target, self.averaged = self._network(), self._network(), self._network()
        self.load_weights(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=self.cfg.lr, fused=True)
        self.replay = ReplayBuffer(self.cfg.buffer, obs_dim)
        self.acts = self.updates = 0
        self._rng = np.random.default_rng(seed)

    def _network(self) -> nn.Sequential:
        width = self.cfg.hidden
        return nn.Sequential(
            nn.Linear(self.obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, self.n_actions)
        )

    def _mask(self, allowed: ArrayLike) -> np.ndarray:
        allowed = np.asarray(allowed)
        if allowed.shape != (self.n_actions,) or allowed.dtype != bool or not allowed.any():
            raise ValueError(f"allowed must be a boolean vector of {self.n_actions} with at least one True")
        return allowed

    @property
    def epsilon(self) -> float:
        """Share of random actions at the next `act`."""
        cfg = self.cfg
        return cfg.epsilon_start + (cfg.epsilon_end - cfg.epsilon_start) * min(self.acts / cfg.epsilon_steps, 1.0)

    def _inputs(self, observation: np.ndarray) -> Tensor:
        observation = np.asarray(observation, dtype=np.float32)
        if observation.ndim != 2 or observation.shape[1] != self.obs_dim:
            raise ValueError(f"observations must have shape (B, {self.obs_dim}), got {observation.shape}")
        if not np.isfinite(observation).all():
            raise ValueError("observations must be finite")
        return torch.from_numpy(observation)

    @torch.no_grad()
    def values(self, observation: np.ndarray, averaged: bool = True) -> np.ndarray:
        """Q(s, a) of observations (B, obs_dim) -> (B, n_actions) float32, with the averaged weights or the latest ones."""
        return (self.averaged if averaged else self.online)(self._inputs(observation)).numpy()

    def act(self, observation: np.ndarray, greedy: bool = False, allowed: ArrayLike | None = None) -> np.ndarray:
        """Actions (B,) int64 for observations (B, obs_dim): epsilon-greedy, which advances the schedule, or greedy.

        Args:
            allowed: (n_actions,) bool, the actions to choose from this time; default those of the agent.
        """
        allowed = self.allowed if allowed is None else self._mask(allowed)
        values = np.where(allowed, self.values(observation, averaged=greedy), -np.inf)
        best = values.argmax(axis=1)
        if greedy:
            return best
        options = np.nonzero(allowed)[0]
        explore = self._rng.random(len(best)) < self.epsilon
        self.acts += 1
        return np.where(explore, options[self._rng.integers(len(options), size=len(best))], best)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return self.act(observation, greedy=True)

    def remember(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        following: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        """Store a batch of transitions, see `ReplayBuffer.add`."""
        self.replay.add(observation, action, reward, following, terminated)

    def update(self) -> float | None:
        """One gradient step on a replayed batch -> its Huber loss; None while fewer than a batch are stored.

        Raises FloatingPointError for a loss that is not finite."""
        cfg = self.cfg
        if len(self.replay) < cfg.batch:
            return None
        batch = self.replay.sample(cfg.batch, self._rng)
        observation, action, reward, following, terminated = (torch.from_numpy(part) for part in batch)
        with torch.no_grad():
            choice = self.online(following).masked_fill(self._forbidden, -torch.inf).argmax(dim=1, keepdim=True)
            goal = reward + cfg.gamma * (1 - terminated) * self.target(following).gather(1, choice).squeeze(1)
        value = self.online(observation).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.huber_loss(value, goal, delta=cfg.huber)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()} in update {self.updates + 1}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        # At first the mean of all weights so far, later one that forgets.
        share = 1.0 if cfg.average == 0 else max(1.0 - cfg.average, 1.0 / (1 + self.updates))
        with torch.no_grad():
            for slow, fast in zip(self.averaged.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, share)
        if self.updates % cfg.target_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item()

    def weights(self) -> dict[str, Tensor]:
        """A copy of the parameters that the greedy policy acts on."""
        return {name: value.detach().clone() for name, value in self.averaged.state_dict().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Let all networks be `weights`."""
        for network in (self.online, self.target, self.averaged):
            network.load_state_dict(dict(weights))

    def save(self, path: Path | str) -> None:
        """Write what the greedy policy acts on and the configuration to a safetensors file. The replay buffer and the optimiser are not kept."""
        # One entry: several would be written in any order.
        agent = {
            "obs_dim": self.obs_dim,
            "n_actions": self.n_actions,
            "cfg": asdict(self.cfg),
            "allowed": self.allowed.tolist(),
        }
        save_file(self.weights(), path, metadata={"double_dqn": json.dumps(agent, sort_keys=True)})

    @classmethod
    def load(cls, path: Path | str) -> "DoubleDQN":
        """The agent that `save` wrote, ready to act. Raises ValueError for a file that holds no such agent."""
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("double_dqn")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata is None:
            raise ValueError(f"{path} holds no DoubleDQN agent: its metadata has no entry 'double_dqn'")
        shape = json.loads(metadata)
        agent = cls(shape["obs_dim"], shape["n_actions"], DQNConfig(**shape["cfg"]), allowed=shape["allowed"])
        agent.load_weights(tensors)
        return agent
