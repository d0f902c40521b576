"""Same-run ratios for the manipulation simulator: `python -m benchmarks.nano_assembly` writes its section of RESULTS.md.

CPU time per step of all environments, median over repetitions, one thread; every environment is pulsed and resets itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import torch

from benchmarks.results import write_section
from components.envs.guidance import action_index
from components.envs.nano_assembly import NanoAssemblyEnv, NanoAssemblyVecEnv

STEPS, REPETITIONS = 10, 9


def per_step(step: Callable[[], object]) -> float:
    """Milliseconds of CPU."""
    step()
    times = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        for _ in range(STEPS):
            step()
        times.append(1e3 * (time.process_time() - start) / STEPS)
    return statistics.median(times)


def loop(count: int) -> Callable[[], None]:
    envs = [NanoAssemblyEnv() for _ in range(count)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    action = action_index(2, 1, 1)

    def step() -> None:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def vector(envs: gymnasium.vector.VectorEnv) -> Callable[[], None]:
    envs.reset(seed=0)
    actions = np.full(envs.num_envs, action_index(2, 1, 1))
    return lambda: envs.step(actions)


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for count in (32, 256):
        batched = per_step(vector(NanoAssemblyVecEnv(count)))
        sync = gymnasium.make_vec("NanoAssembly-v0", num_envs=count, vectorization_mode="sync")
        for name, other in (
            (f"loop over {count} single environments", loop(count)),
            ("SyncVectorEnv of as many", vector(sync)),
        ):
            alone = per_step(other)
            rows.append((f"B = {count}: {name} / batched", f"{alone:.2f}", f"{batched:.2f}", f"{alone / batched:.1f}"))
    columns = ("first / second", "first, ms of CPU a step", "second, ms of CPU a step", "times faster")
    write_section("STM manipulation simulator", "python -m benchmarks.nano_assembly", columns, rows)


if __name__ == "__main__":
    main()
