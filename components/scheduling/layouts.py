"""Layouts of things to move, of any size and with a schedule by construction: a hall full of boxes, a parking house.

Each is made by a hidden order in which one corridor of each move is free; the other corridors are as they come.
"""

import numpy as np

from components.scheduling.moves import Corridor, Move

Cell = tuple[int, int]
FILLED = 8
REACH = 12
TRIES = 400


def hall(n: int, seed: int = 0) -> list[Move]:
    """n boxes on a square floor, one on every eighth cell or so, each to be moved by up to 12 cells each way. Three corridors for
    each box: along one axis and then the other, or with one more bend. Raises ValueError for n < 1."""
    _check(n)
    rng = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(FILLED * n))) + 2
    cells = rng.permutation(side * side)[:n]
    starts: list[Cell] = [(int(c) // side, int(c) % side) for c in cells]
    occupied = np.zeros((side, side), dtype=bool)
    taken = np.zeros((side, side), dtype=bool)  # targets
    occupied[tuple(np.array(starts).T)] = True
    moves: list[Move | None] = [None] * n
    for job in rng.permutation(n).tolist():
        occupied[starts[job]] = False
        target, route = _free_route(rng, occupied, taken, starts[job])
        others = [_route(starts[job], target, *rng.integers(0, side, 2).tolist(), bend) for bend in ("x", "y")]
        routes = [route, *others]
        moves[job] = Move(starts[job], target, [Corridor(routes[k]) for k in rng.permutation(3)])
        occupied[target] = taken[target] = True
    return [move for move in moves if move is not None]


def parking(n: int, depth: int = 7, seed: int = 0) -> list[Move]:
    """n cars change from one parking house to another. Both have lanes, `depth` cars behind each other and open at both ends; a car
    leaves and enters a lane at either end, so it has four corridors. Raises ValueError for n < 1 or depth < 1.

    Cells are (house, lane, slot)."""
    _check(n)
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    rng = np.random.default_rng(seed)
    out, into = _peeled(rng, n, depth), _peeled(rng, n, depth)[::-1]
    moves = []
    for (lane, slot), (lane2, slot2) in zip(out, into, strict=True):
        corridors = []
        for exits in (range(slot, -1, -1), range(slot, depth)):
            for enters in (range(slot2 + 1), range(depth - 1, slot2 - 1, -1)):
                cells = [(0, lane, s) for s in exits] + [(1, lane2, s) for s in enters]
                corridors.append(Corridor(cells, cost=len(cells) + abs(lane - lane2)))
        moves.append(Move((0, lane, slot), (1, lane2, slot2), corridors))
    return [moves[k] for k in rng.permutation(n)]


def _peeled(rng: np.random.Generator, n: int, depth: int) -> list[Cell]:
    """The cars (lane, slot) of full lanes, but for the last one, in an order in which each stands at an end of what is left."""
    left = [list(range(min(depth, n - first))) for first in range(0, n, depth)]
    order = []
    for lane in rng.permutation([lane for lane, slots in enumerate(left) for _ in slots]).tolist():
        order.append((lane, left[lane].pop(0 if rng.random() < 0.5 else -1)))
    return order


def _route(start: Cell, target: Cell, x: int, y: int, bend: str) -> list[Cell]:
    """From start to target over column `x` (bend "x") or row `y` (bend "y"), kept between the two."""
    x = min(max(x, min(start[0], target[0])), max(start[0], target[0]))
    y = min(max(y, min(start[1], target[1])), max(start[1], target[1]))
    corners = [(x, start[1]), (x, target[1])] if bend == "x" else [(start[0], y), (target[0], y)]
    cells = [start]
    for u, v in (*corners, target):
        a, b = cells[-1]
        cells += [(a + (k if u > a else -k), b) for k in range(1, abs(u - a) + 1)]
        a, b = cells[-1]
        cells += [(a, b + (k if v > b else -k)) for k in range(1, abs(v - b) + 1)]
    return cells


def _free_route(rng, occupied: np.ndarray, taken: np.ndarray, start: Cell) -> tuple[Cell, list[Cell]]:
    side = len(occupied)
    for attempt in range(TRIES):
        reach = REACH if attempt < TRIES // 2 else 2
        target = tuple(np.clip(np.array(start) + rng.integers(-reach, reach + 1, 2), 0, side - 1).tolist())
        if occupied[target] or taken[target] or target == start:
            continue
        route = _route(start, target, *rng.integers(0, side, 2).tolist(), "xy"[attempt % 2])
        if not occupied[tuple(np.array(route).T)].any():
            return target, route
    return start, [start]  # walled in: it stays where it is


def _check(n: int) -> None:
    if n < 1:
        raise ValueError(f"there must be at least one thing to move, got {n}")
