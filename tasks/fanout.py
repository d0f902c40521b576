"""A grid of methods and seeds, side by side: processes on one machine, Ray where there is a cluster."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from tasks.environment import WORKERS_VARIABLE, make_deterministic, seed_everything
from tasks.errors import UserError
from tasks.track import progress


def workers() -> int:
    """How many processes a fan-out uses: PAPERFLOWS_WORKERS, or the cores this process may use.

    Raises UserError if the variable is no positive number."""
    text = os.environ.get(WORKERS_VARIABLE)
    if text is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{WORKERS_VARIABLE} is {text!r}: a whole number from 1 is wanted")
    return int(text)


def fanout(
    function: Callable[[Any], Any],
    jobs: Sequence[Any],
    *,
    label: str = "training",
    threads: int = 1,
    seed: int = 0,
    on_result: Callable[[Any, Any], None] | None = None,
) -> list[Any]:
    """`[function(job) for job in jobs]`, side by side, in the order of the jobs.

    function: of a module's top level. Every call starts from the same seed and thread count, whichever process makes
    it, so the number of workers never changes a result; randomness that differs between jobs comes from the job.
    on_result(job, result) is called in this process, in the order of the jobs. An exception in a job is raised here."""
    jobs = list(jobs)
    results = []
    for job, result in zip(jobs, progress(_results(function, jobs, threads, seed), label, len(jobs)), strict=True):
        if on_result is not None:
            on_result(job, result)
        results.append(result)
    return results


def _results(function, jobs, threads, seed):
    if os.environ.get("RAY_ADDRESS") and not _inside_ray():
        return _on_ray(function, jobs, threads, seed)
    count = min(workers(), len(jobs))
    if count <= 1:
        return (call(function, job, threads, seed) for job in jobs)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=count, backend="loky", return_as="generator", pre_dispatch=count, batch_size=1)
    return parallel(delayed(call)(function, job, threads, seed) for job in jobs)


def call(function, job, threads, seed):
    """One job in a process that may have done others before: seeds and threads are set anew."""
    make_deterministic(threads)
    seed_everything(seed, threads)
    return function(job)


def _inside_ray() -> bool:
    """True within a Ray worker, such as a trial of a sweep: its jobs stay in its own process."""
    import sys

    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def _on_ray(function, jobs, threads, seed):
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    remote = ray.remote(call).options(num_cpus=threads)
    references = [remote.remote(function, job, threads, seed) for job in jobs]
    return (ray.get(reference) for reference in references)
