"""How well a policy drives molecules: the same episodes for every policy, so that differences can be taken seed by seed."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from components.envs.guidance import check_actions
from components.envs.nano_assembly import Manipulation, Rewards, Scenes, seed_key
from components.envs.protocols import Policy
from components.envs.stm import DEFAULT_PHYSICS, Physics

MEASURES = ("return", "success", "pulses", "bystander_moved", "lost", "contacts")


def evaluate(
    policy: Policy,
    seeds: Sequence[int],
    episodes: int = 100,
    physics: Physics = DEFAULT_PHYSICS,
    rewards: Rewards | None = None,
    scenes: Scenes | None = None,
    observation: Literal["vector", "image"] = "vector",
) -> dict[str, np.ndarray]:
    """Drive `episodes` molecules for every seed, all at once.

    Policies that are given the same seeds meet the same scenes and the same chance: their results are paired.

    Args:
        policy: observations (B, 13) float32 -> actions (B,); called once a pulse with the episodes that are not over.
        observation: "vector", or "image" for a policy that takes (B, 64, 64, 3) uint8.
        seeds: at least one, not negative.  episodes: a seed, at least one.

    Returns for each measure an array (len(seeds),) float64, a mean over the seed's episodes: `return` (undiscounted), `success`
    (share that reached the target), `pulses` (an episode), `bystander_moved` (share in which any bystander moved), `lost` (share
    in which the molecule broke), `contacts` (refused hops an episode).
    """
    if not len(seeds) or episodes < 1:
        raise ValueError(f"at least one seed and one episode are needed, got {len(seeds)} and {episodes}")
    if observation not in ("vector", "image"):
        raise ValueError(f"observation must be 'vector' or 'image', got {observation!r}")
    keys = np.concatenate([np.random.default_rng(seed_key(int(seed))).integers(2**63, size=episodes) for seed in seeds])
    state = Manipulation(keys, physics, rewards, scenes)
    state.begin(np.arange(len(keys)))
    running = np.ones(len(keys), dtype=bool)
    total = {name: np.zeros(len(keys)) for name in MEASURES}
    while running.any():
        actions = np.zeros(len(keys), dtype=np.int64)  # scenes that are over go on, unseen
        seen = state.observation() if observation == "vector" else state.image()
        actions[running] = check_actions(policy(seen[running]), int(running.sum()))
        step = state.step(actions)
        total["return"] += np.where(running, step.reward, 0.0)
        total["pulses"] += running
        total["contacts"] += np.where(running, step.info["contacts"], 0)
        total["success"] += running & step.info["is_success"]
        total["lost"] += running & step.info["lost"]
        total["bystander_moved"] = np.maximum(total["bystander_moved"], running & (step.info["bystanders_moved"] > 0))
        running &= ~(step.terminated | step.truncated)
    return {name: values.reshape(len(seeds), episodes).mean(axis=1) for name, values in total.items()}


def mean_rating(seeds: Sequence[int], episodes: int = 100, **options: object) -> Callable[[Policy], dict[str, float]]:
    """`evaluate` with fixed seeds, as a function of the policy that gives the means over the seeds: what `rl.training.train`
    chooses its checkpoint by. `options` are those of `evaluate`."""
    return lambda policy: {name: float(values.mean()) for name, values in evaluate(policy, seeds, episodes, **options).items()}
