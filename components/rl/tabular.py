"""Tabular Q-learning (Watkins and Dayan, "Q-learning") on states that an encoder makes of observations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


class TabularQ:
    """The agent: Q(s, a) += alpha_(s,a) (r + gamma max_a' Q(s', a') - Q(s, a)), alpha_(s,a) = max(alpha, 1 / visits).

    Args:
        n_states, n_actions: size of the table.
        encode: observations (B, ...) -> states (B,) int in [0, n_states).
        alpha: least step size.  gamma: discount.
        epsilon_start, epsilon_end, epsilon_steps: share of random actions, falling linearly over so many calls of `act`.
        seed: of exploration.

    Calling it with observations gives the greedy actions.
    """

    def __init__(
        self,
        n_states: int,
        n_actions: int,
        encode: Callable[[np.ndarray], np.ndarray],
        *,
        alpha: float = 0.02,
        gamma: float = 0.95,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_steps: int = 2_400,
        seed: int = 0,
    ) -> None:
        if n_states < 1 or n_actions < 2 or epsilon_steps < 1:
            raise ValueError(
                f"a state, two actions and one epsilon step are the least, got {n_states}, {n_actions} and {epsilon_steps}"
            )
        if not 0 < alpha <= 1 or not 0 <= gamma <= 1 or not 0 <= epsilon_end <= epsilon_start <= 1:
            raise ValueError("0 < alpha <= 1, 0 <= gamma <= 1 and 0 <= epsilon_end <= epsilon_start <= 1 are needed")
        self.encode, self.alpha, self.gamma = encode, alpha, gamma
        self.table = np.zeros((n_states, n_actions))
        self.visits = np.zeros((n_states, n_actions), dtype=np.int64)
        self.acts = 0
        self._epsilon = epsilon_start, epsilon_end, epsilon_steps
        self._rng = np.random.default_rng(seed)

    @property
    def epsilon(self) -> float:
        """Share of random actions at the next `act`."""
        start, end, steps = self._epsilon
        return start + (end - start) * min(self.acts / steps, 1.0)

    def act(self, observation: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions (B,) int64: epsilon-greedy, which advances the schedule, or greedy."""
        best = self.table[self.encode(observation)].argmax(axis=1)
        if greedy:
            return best
        explore = self._rng.random(len(best)) < self.epsilon
        self.acts += 1
        return np.where(explore, self._rng.integers(self.table.shape[1], size=len(best)), best)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return self.act(observation, greedy=True)

    def learn(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        following: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        """Learn from a batch of transitions, all valued with the table as it was before; those of one cell are averaged."""
        cell = self.encode(observation), action
        goal = reward + self.gamma * (1.0 - terminated) * self.table[self.encode(following)].max(axis=1)
        count, total = np.zeros_like(self.visits), np.zeros_like(self.table)
        np.add.at(count, cell, 1)
        np.add.at(total, cell, goal - self.table[cell])
        self.visits += count
        share = np.maximum(count / np.maximum(self.visits, 1), np.minimum(self.alpha * count, 1.0))
        self.table += np.where(count > 0, share * total / np.maximum(count, 1), 0.0)

    def save(self, path: Path | str) -> None:
        """Write the table and the visits to a safetensors file."""
        save_file({"table": self.table, "visits": self.visits}, path)

    def load(self, path: Path | str) -> None:
        """Read them back. Raises ValueError for a table of another size."""
        with safe_open(path, framework="numpy") as file:
            table, visits = file.get_tensor("table"), file.get_tensor("visits")
        if table.shape != self.table.shape:
            raise ValueError(f"{path} holds a table of {table.shape}, this agent's is {self.table.shape}")
        self.table, self.visits = table, visits
