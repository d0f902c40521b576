"""Molecular assembly: `python -m benchmarks.nano_assembly` writes its two sections of RESULTS.md.

The simulator: CPU time per step of all environments, median over repetitions, one thread; every environment is pulsed and
resets itself. Whole assemblies: CPU seconds of planning and of execution by a fixed protocol at a bias that breaks nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import torch

from benchmarks.results import write_section
from components.envs.assembly_runner import AssemblyRunner
from components.envs.guidance import action_index
from components.envs.nano_assembly import NanoAssemblyEnv, NanoAssemblyVecEnv
from components.envs.protocols import FixedProtocol
from components.scheduling.assembly import AssemblyPlanner
from components.scheduling.instances import make_instance

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


def assembly(shape: str, pitch: float, n: int, box: float) -> tuple[str, ...]:
    """One structure, planned and built."""
    task = make_instance(shape, n, pitch, box, seed=0)
    start = time.process_time()
    plan = AssemblyPlanner(task.starts, task.targets, box=box).plan()
    planned = time.process_time()
    done = AssemblyRunner(plan, FixedProtocol(0.4, 2.6), orientation=task.orientations).run()
    built = time.process_time()
    return (
        f"{shape} {n}",
        f"{planned - start:.1f}",
        f"{built - planned:.1f}",
        f"{plan.length / plan.lower_bound:.4f}",
        str(plan.n_layers),
        f"{done.n_pulses:,}",
        f"{100 * done.fidelity:.1f}",
    )


def assemblies() -> None:
    # Compiled code and caches first, so that no structure pays for them.
    assembly("square", 2.0, 36, 26.0)
    rows = [assembly(shape, pitch, 420, 80.0) for shape, pitch in (("square", 2.0), ("honeycomb", 1.6), ("hex", 2.0))]
    rows.append(assembly("square", 2.0, 840, 110.0))
    columns = ("structure", "planning, s of CPU", "execution, s of CPU", "length / bound", "layers", "pulses", "filled (%)")
    write_section("Assembly of hundreds of molecules", "python -m benchmarks.nano_assembly", columns, rows)


def main() -> None:
    torch.set_num_threads(1)
    assemblies()
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
