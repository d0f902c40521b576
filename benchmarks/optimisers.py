"""What a step of each optimiser costs, and what rounding costs: `python -m benchmarks.optimisers` writes its sections of RESULTS.md.

CPU time per call, median over repetitions, one thread, as ratios to `torch.optim.AdamW` on the same parameters in the same run.
To add an optimiser to the table, add a line to OPTIMISERS.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.results import write_section
from components.lowprec.formats import round_to
from components.optim.mplus_adam import AdamLP, MadamLP, MPlusAdam
from kernels.mplus_adam_step import LAYOUTS, round_reference

COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTH = 256  # parameters are matrices of 64 rows of this length, or one smaller one

BASELINES: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "torch.optim.AdamW, foreach": lambda params: torch.optim.AdamW(params, 1e-3, foreach=True),
    "torch.optim.AdamW, fused": lambda params: torch.optim.AdamW(params, 1e-3, fused=True),
}
OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "AdamLP, fp32": lambda params: AdamLP(params, 1e-3, fmt="fp32"),
    "AdamLP, bf16": lambda params: AdamLP(params, 1e-3),
    "AdamLP, E4M3 mx": lambda params: AdamLP(params, 1e-3, fmt="e4m3", scale="mx"),
    "AdamLP, E2M1 mx, Kahan": lambda params: AdamLP(params, 1e-3, fmt="e2m1", scale="mx", kahan=True),
    "MadamLP, E4M3 mx": lambda params: MadamLP(params, 5e-2, fmt="e4m3", scale="mx"),
    "MPlusAdam, fp32": lambda params: MPlusAdam(params, 1e-3, 1e-2, fmt="fp32"),
    "MPlusAdam, bf16": lambda params: MPlusAdam(params, 1e-3, 1e-2),
    "MPlusAdam, E4M3 mx": lambda params: MPlusAdam(params, 1e-3, 5e-2, fmt="e4m3", scale="mx"),
    "MPlusAdam, E4M3 mx, stochastic": lambda params: MPlusAdam(params, 1e-3, 2e-2, fmt="e4m3", scale="mx", rounding="sr"),
    "MPlusAdam, E2M1 mx": lambda params: MPlusAdam(params, 1e-3, 2e-1, fmt="e2m1", scale="mx"),
    "MPlusAdam, E2M1 nvfp4": lambda params: MPlusAdam(params, 1e-3, 2e-1, fmt="e2m1", scale="nvfp4", block=16),
}


def milliseconds(function: Callable[[], object], seconds: float = 0.6) -> float:
    """Median over as many calls as fit into the time, at least three."""
    function()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def parameters(count: int) -> list[nn.Parameter]:
    """About `count` weights with gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = [64] * max(count // (64 * WIDTH), 1) if count >= 64 * WIDTH else [max(count // WIDTH, 1)]
    params = [nn.Parameter(0.02 * torch.randn(n, WIDTH, generator=generator)) for n in rows]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    return params


def step_table() -> list[tuple[str, ...]]:
    """A row per optimiser: its time over that of AdamW foreach and fused, for each number of parameters."""
    found: dict[str, list[float]] = {}
    for count in COUNTS:
        for name, make in (BASELINES | OPTIMISERS).items():
            optimizer = make(parameters(count))
            found.setdefault(name, []).append(milliseconds(optimizer.step))
    first, second = (found[name] for name in BASELINES)
    rows = []
    for name, times in found.items():
        ratios = (f"{t / a:.1f} / {t / b:.1f}" for t, a, b in zip(times, first, second, strict=True))
        rows.append((name, *ratios, f"{times[COUNTS.index(1_000_000)]:.1f}"))
    return rows


def rounding_table(count: int = 1_000_000) -> list[tuple[str, ...]]:
    """Rounding on bits against the definition by logarithms, on the same numbers, which must agree."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    words = torch.randint(0, 1 << 32, (count,), generator=torch.Generator().manual_seed(1))
    rows = []
    for fmt in ("bf16", "e4m3", "e5m2", "e2m1"):
        for mode, given in (("rne", None), ("sr", words)):
            fast = functools.partial(round_to, x, fmt, mode, words=given)
            slow = functools.partial(round_reference, x, LAYOUTS[fmt], given)
            if not torch.equal(fast(), slow()):
                raise AssertionError(f"the two ways of rounding to {fmt}, {mode}, disagree")
            a, b = milliseconds(slow), milliseconds(fast)
            rows.append((f"{fmt}, {'to nearest' if mode == 'rne' else 'stochastic'}", f"{a:.1f}", f"{b:.1f}", f"{a / b:.1f}"))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    command = "python -m benchmarks.optimisers"
    columns = ("optimiser", *(f"{count:,} weights" for count in COUNTS), "ms of CPU at 1,000,000")
    write_section("Optimiser steps: time over AdamW foreach / fused", command, columns, step_table())
    columns = ("1,000,000 values", "by frexp in float64, ms of CPU", "on bits, ms of CPU", "times faster")
    write_section("Rounding onto a small grid", command, columns, rounding_table())


if __name__ == "__main__":
    main()
