"""Times of several functions side by side: they take turns within a repetition, and medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def cpu_milliseconds(functions: Mapping[str, Callable[[], object]], seconds: float = 2.0, least: int = 3) -> dict[str, float]:
    """Median milliseconds of CPU time per call, which other programs on the machine do not change.

    At least `least` rounds, then as many as fit into `seconds` of CPU time over all functions. The first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    spent = 0.0
    while spent < seconds or min(map(len, times.values())) < least:
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
            spent += times[name][-1]
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def gpu_milliseconds(functions: Mapping[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Median milliseconds by the device's own clock, its cache emptied between calls; tuning and compiling are not counted."""
    import triton

    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(triton.testing.do_bench(function, warmup=10, rep=40, return_mode="median"))
    return {name: statistics.median(found) for name, found in times.items()}


def milliseconds(functions: Mapping[str, Callable[[], object]], device: torch.device | str) -> dict[str, float]:
    """By the clock that fits the device."""
    return gpu_milliseconds(functions) if torch.device(device).type == "cuda" else cpu_milliseconds(functions)
