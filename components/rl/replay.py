"""A replay buffer of transitions in flat arrays, written and read in batches."""

from typing import NamedTuple

import numpy as np


class Transitions(NamedTuple):
    """n transitions."""

    observation: np.ndarray  # (n, d) float32
    action: np.ndarray  # (n,) int64
    reward: np.ndarray  # (n,) float32
    following: np.ndarray  # (n, d) float32, the observation that followed; that of the same episode, also at its end
    terminated: np.ndarray  # (n,) float32, 1 where the episode ended for good (not where it was cut off)


class ReplayBuffer:
    """The latest `capacity` transitions; older ones are overwritten.

    Args:
        capacity: how many.  observation_dim: d.
    """

    def __init__(self, capacity: int, observation_dim: int) -> None:
        if capacity < 1 or observation_dim < 1:
            raise ValueError(f"capacity and observation_dim must be at least 1, got {capacity} and {observation_dim}")
        self.capacity, self._next, self._size = capacity, 0, 0
        self._data = Transitions(
            np.zeros((capacity, observation_dim), np.float32),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, observation_dim), np.float32),
            np.zeros(capacity, np.float32),
        )

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        following: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        """Store a batch of transitions, at most `capacity` of them. Raises ValueError for shapes that do not fit, NaN or inf."""
        batch = Transitions(*(np.asarray(part) for part in (observation, action, reward, following, terminated)))
        count, width = len(batch.action), self._data.observation.shape[1]
        if count > self.capacity:
            raise ValueError(f"a batch of {count} transitions does not fit into a buffer of {self.capacity}")
        for name, part in zip(Transitions._fields, batch, strict=True):
            shape = (count, width) if name in ("observation", "following") else (count,)
            if part.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {part.shape}")
            if not np.isfinite(part).all():
                raise ValueError(f"{name} must be finite")
        rows = (self._next + np.arange(count)) % self.capacity
        for stored, part in zip(self._data, batch, strict=True):
            stored[rows] = part
        self._next = (self._next + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, count: int, rng: np.random.Generator) -> Transitions:
        """`count` transitions, each drawn evenly, with replacement. Raises ValueError from an empty buffer."""
        if not self._size:
            raise ValueError("there is nothing to sample: the buffer is empty")
        rows = rng.integers(self._size, size=count)
        return Transitions(*(stored[rows] for stored in self._data))
