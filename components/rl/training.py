"""Training value-based agents on vectorised environments, and keeping the best checkpoint rather than the last."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from components.rl.dqn import DoubleDQN
from components.rl.tabular import TabularQ

Evaluation = Callable[[Callable[[np.ndarray], np.ndarray]], Mapping[str, float]]
"""Rates a policy; `train` maximises its entry "return"."""


@dataclass
class Training:
    """How a training went.

    Attributes:
        best_iteration: after which the best evaluation was made, the first among equals.
        best: that evaluation.
        curve: one entry an evaluation: its measures, `iteration`, `steps` (of environments), `epsilon` and `loss` (mean since the
            last evaluation; nan before the first update).
    """

    best_iteration: int = 0
    best: dict[str, float] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


def _check(envs: VectorEnv, iters: int, eval_every: int) -> None:
    if iters < 1 or eval_every < 1:
        raise ValueError(f"iters and eval_every must be at least 1, got {iters} and {eval_every}")
    if envs.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        raise ValueError("the environments must reset themselves in the same step (AutoresetMode.SAME_STEP)")


def train(
    agent: DoubleDQN | TabularQ,
    envs: VectorEnv,
    evaluate: Evaluation,
    *,
    iters: int,
    eval_every: int,
    seed: int,
    updates_per_iter: int = 1,
    on_evaluation: Callable[[dict[str, float]], None] | None = None,
    on_iteration: Callable[[int], None] | None = None,
) -> Training:
    """Train `agent` for `iters` steps of all environments; it ends as the checkpoint with the best evaluation return.

    Args:
        envs: in mode SAME_STEP, with `final_obs` in their infos; reset with `seed`.
        evaluate: called with the agent, which then acts greedily, every `eval_every` iterations and after the last.
        updates_per_iter: gradient steps after each step of the environments (`DoubleDQN` alone).
        on_evaluation: called with each entry of the curve; an exception that it raises ends the training.
        on_iteration: called with the number of finished iterations, for progress.

    Raises ValueError for iters or eval_every below 1 and for another autoreset mode.
    """
    _check(envs, iters, eval_every)
    if updates_per_iter < 1:
        raise ValueError(f"updates_per_iter must be at least 1, got {updates_per_iter}")
    deep = isinstance(agent, DoubleDQN)
    result, losses, kept = Training(), [], None
    observation, _ = envs.reset(seed=seed)
    for iteration in range(1, iters + 1):
        action = agent.act(observation)
        following, reward, terminated, truncated, info = envs.step(action)
        last = following
        if (terminated | truncated).any():
            last = np.where((terminated | truncated)[:, None], info["final_obs"], following)
        if deep:
            agent.remember(observation, action, reward, last, terminated)
            losses += [loss for loss in (agent.update() for _ in range(updates_per_iter)) if loss is not None]
        else:
            agent.learn(observation, action, reward, last, terminated)
        observation = following
        if on_iteration is not None:
            on_iteration(iteration)
        if iteration % eval_every and iteration != iters:
            continue
        measures = {name: float(value) for name, value in evaluate(agent).items()}
        entry = measures | {
            "iteration": iteration,
            "steps": iteration * envs.num_envs,
            "epsilon": agent.epsilon,
            "loss": float(np.mean(losses)) if losses else float("nan"),
        }
        losses = []
        result.curve.append(entry)
        if kept is None or measures["return"] > result.best["return"]:
            kept, result.best, result.best_iteration = _snapshot(agent), measures, iteration
        if on_evaluation is not None:
            on_evaluation(entry)
    _restore(agent, kept)
    return result


def _snapshot(agent: DoubleDQN | TabularQ) -> dict[str, Tensor] | tuple[np.ndarray, np.ndarray]:
    return agent.weights() if isinstance(agent, DoubleDQN) else (agent.table.copy(), agent.visits.copy())


def _restore(agent: DoubleDQN | TabularQ, kept: dict[str, Tensor] | tuple[np.ndarray, np.ndarray]) -> None:
    if isinstance(agent, DoubleDQN):
        agent.load_weights(kept)
    else:
        agent.table, agent.visits = kept
