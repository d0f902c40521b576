"""Same-run ratios for zeroth-order estimates and kernels: `python -m benchmarks.zeroth_order` writes its section of RESULTS.md.

CPU time per call, median over repetitions, one thread; sizes are those of the paper's flow: a 64-144-144-10 network (d = 31,392), 64
perturbations, 28 inputs with 10 outputs each, 16 pairs. On a machine with a GPU the Triton kernel is measured too.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.results import write_section
from components.optim.entk import project, zo_entk
from components.optim.ntk_nets import NTKMLP
from components.optim.perturbations import BLOCK, directions
from components.optim.zeroth_order import ZOSGD, ZOGradient
from kernels.seeded_projection import seeded_directions_reference, seeded_project

WIDTH, PERTURBATIONS, BATCH, INPUTS, PAIRS = 144, 64, 64, 28, 16


def milliseconds(function: Callable[[], object], repetitions: int = 7) -> float:
    function()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def on_gpu(function: Callable[[], object], repetitions: int = 20) -> float:
    """Milliseconds by the device's own clock."""
    function()
    times = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def materialised(J: torch.Tensor, P: int) -> torch.Tensor:
    """The same projection with U in memory."""
    return J @ torch.stack(list(directions(J.shape[1], P, "gaussian", 0))).T / math.sqrt(P)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = NTKMLP(64, [WIDTH, WIDTH], 10, seed=0)
    x, y = torch.randn(BATCH, 64), torch.arange(BATCH) % 10
    theta, rows = net.flat(), []

    def loss(weights: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net.functional(weights, x), y)

    zo = ZOGradient(PERTURBATIONS)
    one = milliseconds(lambda: zo.estimate(loss, theta, step=0))
    many = milliseconds(lambda: zo.estimate_batched(lambda th: net.batched_loss(th, x, y), theta, step=0))
    rows.append(
        (
            f"estimate, P = {PERTURBATIONS}, width {WIDTH}: loop over perturbations / batched, 16 at a time",
            one,
            many,
            "at least 2",
        )
    )
    fixed = torch.stack(list(directions(net.d, PERTURBATIONS, "gaussian", 0)))

    def losses_one_by_one() -> None:
        for u in fixed:
            loss(theta + 1e-3 * u), loss(theta - 1e-3 * u)

    def losses_batched() -> None:
        for part in fixed.split(16):
            net.batched_loss(torch.cat([theta + 1e-3 * part, theta - 1e-3 * part]), x, y)

    with torch.no_grad():
        rows.append(
            (
                "the losses alone, without drawing directions: loop / batched",
                milliseconds(losses_one_by_one),
                milliseconds(losses_batched),
                "",
            )
        )

    J = torch.randn(INPUTS, 10, net.d)
    pairs = list(itertools.combinations(range(INPUTS), 2))[:PAIRS]

    def pair_by_pair() -> None:
        for o, u in pairs:
            zo_entk(J[o], J[u], PERTURBATIONS)

    def at_once() -> None:
        S = project(J, PERTURBATIONS)
        for o, u in pairs:
            S[o] @ S[u].T

    rows.append(
        (
            f"kernels of {PAIRS} pairs, P = {PERTURBATIONS}: project per pair / once",
            milliseconds(pair_by_pair),
            milliseconds(at_once),
            "at least 3",
        )
    )
    flat = J.flatten(0, 1)
    rows.append(
        (
            f"projection of {INPUTS * 10} tangent vectors: U in memory ({net.d * PERTURBATIONS * 4 / 2**20:.1f} MiB) / in blocks "
            f"({BLOCK * PERTURBATIONS * 4 / 2**20:.1f} MiB whatever d)",
            milliseconds(lambda: materialised(flat, PERTURBATIONS)),
            milliseconds(lambda: project(flat, PERTURBATIONS)),
            "",
        )
    )
    steps = {}
    for restore in ("copy", "arithmetic"):
        trained = NTKMLP(64, [WIDTH, WIDTH], 10, seed=0)
        optimizer = ZOSGD(trained.parameters(), 1e-3, PERTURBATIONS, restore=restore)
        steps[restore] = milliseconds(
            lambda o=optimizer, n=trained: o.step(lambda: torch.nn.functional.cross_entropy(n(x), y)), 5
        )
    rows.append(
        (
            "ZOSGD step in place: arithmetic restore (no copy) / restore from one copy (d numbers)",
            steps["arithmetic"],
            steps["copy"],
            "",
        )
    )
    if torch.cuda.is_available():
        big = torch.randn(64, 2**22, device="cuda")

        def whole() -> torch.Tensor:
            return big @ seeded_directions_reference(big.shape[1], PERTURBATIONS, 0, device="cuda") / math.sqrt(PERTURBATIONS)

        def drawn() -> torch.Tensor:
            return big @ torch.randn(big.shape[1], PERTURBATIONS, device="cuda") / math.sqrt(PERTURBATIONS)

        kernel = on_gpu(lambda: seeded_project(big, PERTURBATIONS))
        rows.append(
            ("GPU, d = 2^22, ms of the device: the same U in memory / seeded kernel", on_gpu(whole, 5), kernel, "at least 2")
        )
        rows.append(
            ("GPU, d = 2^22, ms of the device: torch.randn's U in memory / seeded kernel", on_gpu(drawn), kernel, "at least 2")
        )
    else:
        print("no GPU: the Triton kernel's ratio is not measured")
    table = [(name, f"{first:.2f}", f"{second:.2f}", f"{first / second:.1f}", goal) for name, first, second, goal in rows]
    columns = ("first / second", "first, ms of CPU", "second, ms of CPU", "times faster", "goal")
    write_section("Zeroth-order optimisation", "python -m benchmarks.zeroth_order", columns, table)


if __name__ == "__main__":
    main()
