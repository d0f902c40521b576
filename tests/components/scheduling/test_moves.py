"""Moves with corridors: puzzles whose orders are known, a walk over the grid, and what makes no sense."""

import numpy as np
import pytest

from components.scheduling.moves import Corridor, Move, moves_in_space, moves_on_cells
from components.scheduling.problem import Infeasible, Schedule
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import check_schedule


def row(start: int, target: int, y: int = 0) -> list[tuple[int, int]]:
    step = 1 if target > start else -1
    return [(x, y) for x in range(start, target + step, step)]


def test_three_in_a_lane_leave_from_the_front():
    moves = [Move((x, 0), (x + 5, 0), [Corridor(row(x, x + 5))]) for x in range(3)]
    found = SatScheduler(moves_on_cells(moves)).solve()
    assert found.order.tolist() == [2, 1, 0] and found.cost == 18


def test_two_that_meet_in_a_lane_need_a_way_round():
    lane = [Move((0, 0), (5, 0), [Corridor(row(0, 5))]), Move((3, 0), (-3, 0), [Corridor(row(3, -3))])]
    scheduler = SatScheduler(moves_on_cells(lane))
    assert scheduler.solve() == Infeasible((0, 1))
    assert scheduler.explain().jobs == (0, 1)
    round_it = Corridor([(3, 0), (3, 1), *row(2, -3, 1), (-3, 0)], cost=11)
    problem = moves_on_cells([lane[0], Move((3, 0), (-3, 0), [*lane[1].corridors, round_it])])
    found = SatScheduler(problem).minimise_cost()
    check_schedule(problem, found)
    assert found.order.tolist() == [1, 0] and found.cost == 6 + 11


def test_a_target_that_is_another_ones_start_is_taken_after_it_left():
    chain = [Move((x, 0), (x + 1, 0), [Corridor(row(x, x + 1))]) for x in range(4)]
    assert SatScheduler(moves_on_cells(chain)).solve().order.tolist() == [3, 2, 1, 0]
    swap = [Move(0, 1, [Corridor([0, 1])]), Move(1, 0, [Corridor([0, 1])])]
    assert isinstance(SatScheduler(moves_on_cells(swap)).solve(), Infeasible)


def test_obstacles_close_corridors():
    move = Move((0, 0), (4, 0), [Corridor(row(0, 4)), Corridor([(0, 0), *row(0, 4, 1), (4, 0)], cost=20)])
    assert SatScheduler(moves_on_cells([move])).minimise_cost().cost == 5
    assert SatScheduler(moves_on_cells([move], obstacles=[(2, 0)])).minimise_cost().cost == 20
    assert isinstance(SatScheduler(moves_on_cells([move], obstacles=[(2, 0), (2, 1)])).solve(), Infeasible)


def walk(moves: list[Move], found: Schedule, obstacles: set) -> None:
    """Things on a grid really move, one after the other; a corridor must be empty but for the mover."""
    standing = {move.start: index for index, move in enumerate(moves)}
    for job in found.order.tolist():
        cells = moves[job].corridors[found.choice[job]].cells
        assert not cells & obstacles
        assert {standing[cell] for cell in cells if cell in standing} <= {job}
        del standing[moves[job].start]
        assert moves[job].target not in standing
        standing[moves[job].target] = job
    assert sorted(standing.values()) == list(range(len(moves)))


def test_things_on_a_grid_find_their_corridors_empty():
    rng, seen = np.random.default_rng(1), set()
    for _ in range(60):
        cells = [tuple(cell) for cell in rng.permutation([(x, y) for x in range(7) for y in range(7)]).tolist()]
        starts, targets, walls = cells[:6], cells[4:10], set(cells[10:13])  # two targets are starts of others
        moves = []
        for (x, y), (u, v) in zip(starts, targets, strict=True):
            along = [(a, y) for a in range(min(x, u), max(x, u) + 1)] + [(u, b) for b in range(min(y, v), max(y, v) + 1)]
            across = [(x, b) for b in range(min(y, v), max(y, v) + 1)] + [(a, v) for a in range(min(x, u), max(x, u) + 1)]
            moves.append(Move((x, y), (u, v), [Corridor(along), Corridor(across)]))
        problem = moves_on_cells(moves, walls, surface=cells)
        found = SatScheduler(problem).solve()
        seen.add(type(found))
        if isinstance(found, Schedule):
            check_schedule(problem, found)
            walk(moves, found, walls)
    assert seen == {Schedule, Infeasible}


def near_segment(path: np.ndarray, point: np.ndarray) -> bool:
    a, b = path
    along = np.clip((point - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
    return bool(np.linalg.norm(a + along * (b - a) - point) < 1.0)


def test_a_predicate_says_what_is_in_the_way():
    starts, targets = [[0.0, 0], [4, 0], [20, 0]], [[8.0, 0], [4, 5]]
    paths = [[np.array([starts[i], targets[i]])] for i in range(2)]
    assert SatScheduler(moves_in_space(starts, targets, paths, near_segment)).solve().order.tolist() == [1, 0]
    # The third thing stays: where it stands on the way, nothing can pass.
    starts[2] = [6.0, 0.5]
    assert SatScheduler(moves_in_space(starts, targets, paths, near_segment)).solve() == Infeasible((0,))
    far = moves_in_space(starts[:2], targets, paths, near_segment, costs=[[3], [4]], obstacles=[[4.0, 20.0]])
    assert SatScheduler(far).minimise_cost().cost == 7


def straight(n: int) -> list[list[np.ndarray]]:
    return [[np.zeros((2, 2))]] * n


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: moves_on_cells([]), "at least one move"),
        (
            lambda: moves_on_cells([Move(0, 1, [Corridor([1])]), Move(0, 2, [Corridor([2])])]),
            "moves 0 and 1 have the same start, 0",
        ),
        (lambda: moves_on_cells([Move(0, 2, [Corridor([1])]), Move(1, 2, [])]), "moves 0 and 1 have the same target, 2"),
        (
            lambda: moves_on_cells([Move(0, 2, [Corridor([1])])], surface={0, 2}),
            "corridor 0 of move 0 has cell 1, .* not on the surface",
        ),
        (lambda: moves_on_cells([Move(0, 2, [])], surface={0, 1}), "target of move 0 has cell 2"),
        (lambda: moves_on_cells([Move(0, 2, [])], obstacles={0}), "start of move 0, cell 0, is an obstacle"),
        (lambda: moves_on_cells([Move((0, np.nan), 2, [])]), "not all finite"),
        (lambda: moves_on_cells([Move(0, 2, [Corridor([1], cost=-1)])]), "whole number >= 0"),
        (lambda: Corridor([]), "at least one cell"),
        (lambda: moves_in_space([[0, np.nan]], [[1, 1]], straight(1), near_segment), "starts must be finite"),
        (lambda: moves_in_space([[0, 0]], [[1, np.inf]], straight(1), near_segment), "targets must be finite"),
        (lambda: moves_in_space([[0, 0]], [], straight(1), near_segment), "at least one target"),
        (lambda: moves_in_space([[0, 0]], [[1, 1], [2, 2]], straight(2), near_segment), "2 targets need as many things"),
        (
            lambda: moves_in_space([[0, 0], [3, 3]], [[1, 1]], straight(2), near_segment),
            "2 things have paths, but .* 1 targets",
        ),
        (lambda: moves_in_space([[0, 0]] * 2, [[1, 1], [2, 2]], straight(2), near_segment), "starts 0 and 1 overlap"),
        (
            lambda: moves_in_space([[0, 0], [3, 3]], [[1, 1], [1, 2]], straight(2), near_segment, apart=1.0),
            "targets 0 and 1 overlap",
        ),
        (lambda: moves_in_space([[0, 0]], [[1, 1]], [], near_segment), "paths for only 0 moves"),
        (lambda: moves_in_space([[0, 0]], [[1, 1]], straight(1), near_segment, costs=[[]]), "a number for each path"),
        (lambda: moves_in_space([[0, 0]], [[1, 1, 1]], straight(1), near_segment), "one dimension"),
        (lambda: moves_in_space([[0, 0]], [[1, 1]], straight(1), near_segment, apart=-1), "distance >= 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
