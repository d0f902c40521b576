"""A job for tests of fan-outs that shows everything a worker process could get wrong."""

import os

import numpy as np
import torch


def draw(job):
    """Numbers from the generators as the runner has seeded them, numbers from the job's own seed, and the threads."""
    given = torch.rand(4).numpy().tobytes() + np.random.rand(4).tobytes()  # noqa: NPY002 - the global generator is what is tested
    torch.manual_seed(job)
    own = torch.randn(64).numpy().tobytes() + np.random.default_rng(job).normal(size=8).tobytes()
    return given, own, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], torch.are_deterministic_algorithms_enabled()
