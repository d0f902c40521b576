"""What the transforms add to a step: `python -m benchmarks.gradient_stabilizer` writes its section of RESULTS.md.

CPU time per step on 20 tensors of 100,000 float32 entries and on 200 of 1,000, one thread, median over repetitions; each transform
beside AdamW's own step, looped over tensors in C++ (foreach) and fused. Where there is a GPU, the fused kernels too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.results import write_section
from components.optim.clipping import AGC, NormClip, ValueClip, ZClip
from components.optim.gradient_transforms import GradientStabilizer

REPETITIONS = 40


def milliseconds(function: Callable[[], object], device: str) -> float:
    """Median over repetitions of CPU time, or on a GPU of wall time with the queue drained."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(REPETITIONS + 3):
        start = clock()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (clock() - start))
    return statistics.median(times[3:])


def measure(count: int, size: int, device: str) -> list[tuple[str, ...]]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(size, device=device)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn_like(p)
    foreach, fused = (torch.optim.AdamW(params, 1e-6, **{kind: True}) for kind in ("foreach", "fused"))
    base = milliseconds(foreach.step, device), milliseconds(fused.step, device)
    transforms = {
        "GradientStabilizer": GradientStabilizer(),
        "NormClip": NormClip(),
        "ValueClip": ValueClip(),
        "AGC": AGC(),
        "ZClip": ZClip(),
    }
    if device != "cpu":
        transforms["GradientStabilizer, Triton"] = GradientStabilizer(backend="triton")
    rows = []
    for name, transform in transforms.items():
        took = milliseconds(lambda transform=transform: transform(params), device)
        rows.append(
            (
                f"{name}, {count} x {size:,}, {device}",
                f"{took:.2f}",
                *(f"{x:.2f}" for x in base),
                *(f"{took / x:.2f}" for x in base),
            )
        )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rows = measure(20, 100_000, "cpu") + measure(200, 1_000, "cpu")
    if torch.cuda.is_available():
        rows += measure(200, 1_000_000, "cuda")
    columns = ("transform", "ms", "AdamW foreach, ms", "AdamW fused, ms", "ratio to foreach", "ratio to fused")
    write_section("Gradient transforms beside AdamW", "python -m benchmarks.gradient_stabilizer", columns, rows)


if __name__ == "__main__":
    main()
