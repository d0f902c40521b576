"""Ways to drive a molecule without learning: the pulling protocols of manual practice, and chance.

A policy maps observations (B, 13) float32 to actions (B,) int64, one row a molecule.
"""

from collections.abc import Callable

import numpy as np

from components.envs.guidance import BIASES, N_ACTIONS, TIP_DISTANCES, action_index

Policy = Callable[[np.ndarray], np.ndarray]


class FixedProtocol:
    """Pull straight ahead, always from the same lateral distance with the same bias.

    Args:
        distance: nm, one of `guidance.TIP_DISTANCES`.  bias: V, one of `guidance.BIASES`.
    """

    def __init__(self, distance: float, bias: float) -> None:
        for name, value, options in (("distance", distance, TIP_DISTANCES), ("bias", bias, BIASES)):
            if value not in options:
                raise ValueError(f"{name} must be one of {options.tolist()}, got {value}")
        self.distance, self.bias = float(distance), float(bias)
        self.action = action_index(2, int(np.argmax(TIP_DISTANCES == distance)), int(np.argmax(BIASES == bias)))

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return np.full(len(observation), self.action)

    def __str__(self) -> str:
        return f"pull {self.distance:g} nm {self.bias:g} V"


def fixed_protocols() -> list[FixedProtocol]:
    """All nine."""
    return [FixedProtocol(distance, bias) for distance in TIP_DISTANCES for bias in BIASES]


class RandomPolicy:
    """Any of the 45 actions with equal probability."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return self._rng.integers(N_ACTIONS, size=len(observation))

    def __str__(self) -> str:
        return "random"
