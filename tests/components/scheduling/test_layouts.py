"""Layouts are schedulable, whatever their size; guesses are orders; the example of the documentation runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from components.scheduling.graph import layers_of, short_cycles
from components.scheduling.guess import guess
from components.scheduling.layouts import hall, parking
from components.scheduling.moves import moves_on_cells
from components.scheduling.planted import planted_problem
from components.scheduling.problem import Location, Option, ScheduleProblem
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import check_schedule
from tests.components.scheduling.cases import random_problem


@pytest.mark.parametrize("layout", [hall, parking])
@pytest.mark.parametrize("n", [1, 7, 60])
def test_layouts_have_a_schedule(layout, n):
    for seed in range(3):
        moves = layout(n, seed=seed)
        assert len(moves) == n == len({move.start for move in moves}) == len({move.target for move in moves})
        problem = moves_on_cells(moves)
        check_schedule(problem, SatScheduler(problem).solve())
    assert layout(n, seed=1) == layout(n, seed=1)


def test_corridors_of_a_hall_are_connected_walks():
    for move in hall(40, seed=2):
        for corridor in move.corridors:
            reached, rest = {move.start}, set(corridor.cells) - {move.start}
            while grown := {(x, y) for x, y in rest if {(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)} & reached}:
                reached, rest = reached | grown, rest - grown
            assert not rest and move.target in reached


def test_two_thousand_jobs_are_scheduled():
    problem = planted_problem(2000)
    with SatScheduler(problem) as scheduler:
        check_schedule(problem, scheduler.solve())


def test_a_guess_is_an_order_and_runs_what_is_free_first():
    rng = np.random.default_rng(0)
    for seed in range(30):
        problem = random_problem(rng, 8)
        position, choice = guess(problem, seed=seed)
        assert sorted(position.tolist()) == list(range(8))
        assert all(0 <= k < len(options) for k, options in zip(choice, problem.options, strict=True))
    chain = ScheduleProblem([[Option(0, {j + 1})] for j in range(5)] + [[Option(0)]], [Location(None, j) for j in range(6)])
    assert guess(chain)[0].tolist() == [5, 4, 3, 2, 1, 0]
    assert guess(ScheduleProblem([[], [Option(0)]], []))[1].tolist() == [-1, 0]


def test_short_cycles_are_cycles_and_shortest():
    rng = np.random.default_rng(4)
    for _ in range(40):
        n = int(rng.integers(2, 8))
        arcs = {(u, v) for u, v in rng.integers(0, n, (12, 2)).tolist() if u != v}
        cycles = short_cycles(n, np.array(sorted(arcs)), 100)
        assert bool(cycles) == (layers_of(n, arcs) is None)
        reach = np.full((n, n), 99)
        for u, v in arcs:
            reach[u, v] = 1
        for k in range(n):
            reach = np.minimum(reach, reach[:, k : k + 1] + reach[k])
        through = {}
        for cycle in cycles:
            assert all(pair in arcs for pair in zip(cycle, cycle[1:] + cycle[:1], strict=True))
            for vertex in cycle:
                through[vertex] = min(through.get(vertex, 99), len(cycle))
        assert through == {v: reach[v, v] for v in range(n) if reach[v, v] < 99}
        assert len(short_cycles(n, np.array(sorted(arcs)), 1)) == min(1, len(cycles))


def test_bad_sizes_are_refused():
    for make in (lambda: hall(0), lambda: parking(0), lambda: parking(3, depth=0)):
        with pytest.raises(ValueError, match="at least"):
            make()


def test_the_example_of_the_documentation_runs(capsys):
    page = Path(__file__).parents[3] / "docs" / "scheduling.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    printed = capsys.readouterr().out
    assert printed.startswith("Infeasible(jobs=(0, 1))\nbox 0 and box 1 block each other:")
    assert printed.endswith("[1 0] [0 1] 13\n")
