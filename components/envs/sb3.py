"""Agents of stable-baselines3 on the manipulation environment, with as many environment steps as our own.

`GymnasiumVecEnv` lets stable-baselines3 step a batched Gymnasium environment directly; `stable_baselines3.common.env_util.
make_vec_env("NanoAssembly-v0", n_envs=B)` does the same thing one environment after the other. Algorithms for continuous actions
(SAC) do not apply: an action is one of 45.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import stable_baselines3
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from torch import Tensor

ALGORITHMS = ("DQN", "PPO")


class GymnasiumVecEnv(VecEnv):
    """A vectorised Gymnasium environment in mode SAME_STEP as a stable-baselines3 `VecEnv`.

    Args:
        envs: whose infos hold `final_obs` where an episode ended.
        seed: of the first reset; `seed()` sets another one. Environment b gets seed + b.
    """

    def __init__(self, envs: VectorEnv, seed: int | None = None) -> None:
        if envs.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise ValueError("the environments must reset themselves in the same step (AutoresetMode.SAME_STEP)")
        self.envs = envs
        self.render_mode = envs.render_mode
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.seed(seed)

    def reset(self) -> np.ndarray:
        seeds = None if self._seeds[0] is None else [int(seed) for seed in self._seeds]
        observation, _ = self.envs.reset(seed=seeds)
        self._reset_seeds()
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward, terminated, truncated, info = self.envs.step(self._actions)
        over = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.nonzero(over)[0]:
            infos[row] = {
                "terminal_observation": info["final_obs"][row],
                "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                "is_success": bool(info["final_info"]["is_success"][row]),
            }
        return observation, reward.astype(np.float32), over, infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: int | Sequence[int] | None = None) -> list[Any]:
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Sequence[int] | None = None) -> None:
        raise NotImplementedError("the environments share one object: make a new one with other parameters")

    def env_method(self, method_name: str, *args: Any, indices: int | Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the environments share one object and have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type, indices: int | Sequence[int] | None = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


class _Progress(BaseCallback):
    """Calls a function with the number of environment steps and the model."""

    def __init__(self, every: int, call: Callable[[int, BaseAlgorithm], None]) -> None:
        super().__init__()
        self._every, self._call, self._due = every, call, every

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._due:
            self._due += self._every
            self._call(self.num_timesteps, self.model)
        return True


def train_sb3(
    algorithm: Literal["DQN", "PPO"],
    envs: VectorEnv,
    steps: int,
    seed: int,
    *,
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy",
    on_steps: Callable[[int, BaseAlgorithm], None] | None = None,
    every: int = 32_000,
    **options: Any,
) -> BaseAlgorithm:
    """Train an agent of stable-baselines3, with its own default parameters except for `options`, on the CPU.

    Args:
        algorithm: one of ALGORITHMS.
        envs: a vectorised environment in mode SAME_STEP.
        steps: environment steps, counted over all environments; PPO rounds up to whole rollouts.
        seed: of environments and agent: the same seed gives the same agent.
        policy: "MlpPolicy" for vectors, "CnnPolicy" for images.
        on_steps: called with the steps so far and the model about every `every` steps.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if steps < 1 or every < 1:
        raise ValueError(f"steps and every must be at least 1, got {steps} and {every}")
    venv = VecMonitor(GymnasiumVecEnv(envs, seed))
    model = getattr(stable_baselines3, algorithm)(policy, venv, seed=seed, device="cpu", verbose=0, **options)
    venv.seed(seed)
    model.learn(steps, callback=None if on_steps is None else _Progress(every, on_steps))
    return model


class Sb3Policy:
    """A model of stable-baselines3 as a policy: observations (B, ...) -> its deterministic actions (B,)."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return self.model.predict(observation, deterministic=True)[0].astype(np.int64)


def load_sb3(algorithm: Literal["DQN", "PPO"], envs: VectorEnv, weights: Mapping[str, Tensor]) -> BaseAlgorithm:
    """An agent of stable-baselines3 with the given weights of its policy (`model.policy.state_dict()`), ready to act.

    Raises ValueError for another algorithm, RuntimeError for weights that do not fit."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", GymnasiumVecEnv(envs), device="cpu", verbose=0)
    model.policy.load_state_dict(dict(weights))
    return model
