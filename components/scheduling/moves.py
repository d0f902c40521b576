"""Moves with corridors -> a scheduling problem: find an order in which each corridor is free when its move runs.

Two ways to say what a corridor is: as a set of cells of a grid (`moves_on_cells`), or as any object, with a predicate that says
whether a thing that stands at a point is in its way (`moves_in_space`). Both give a `ScheduleProblem` for any scheduler here:
location j is the start of move j, location n + j its target, and then come the obstacles.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from components.scheduling.problem import Location, Option, ScheduleProblem

Cell = Hashable
Path = object


@dataclass(frozen=True)
class Corridor:
    """One way to make a move.

    Args:
        cells: the cells that must be empty while the move runs. The move's own start and target may be among them.
        cost: a whole number >= 0; None: the number of cells.
    """

    cells: frozenset[Cell]
    cost: int | None = None

    def __init__(self, cells: Iterable[Cell], cost: int | None = None) -> None:
        object.__setattr__(self, "cells", frozenset(cells))
        object.__setattr__(self, "cost", cost)
        if not self.cells:
            raise ValueError("a corridor needs at least one cell, got none")


@dataclass(frozen=True)
class Move:
    """Something goes from one cell to another, through one of its corridors. Without corridors it cannot move at all."""

    start: Cell
    target: Cell
    corridors: tuple[Corridor, ...]

    def __init__(self, start: Cell, target: Cell, corridors: Sequence[Corridor]) -> None:
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "corridors", tuple(corridors))


def moves_on_cells(
    moves: Sequence[Move], obstacles: Collection[Cell] = (), surface: Collection[Cell] | None = None
) -> ScheduleProblem:
    """The problem of making all moves, one after the other.

    Args:
        moves: job i is move i, its option k corridor k.
        obstacles: cells that are never free.
        surface: all cells that there are; None: any cell will do.

    Raises ValueError for no moves, two moves with one start or one target, a start or target on an obstacle, a cell outside the
    surface, and a cell with NaN. A move may end where another one starts: then the other has to leave first.
    """
    moves, obstacles = list(moves), set(obstacles)
    if not moves:
        raise ValueError("there must be at least one move, got none")
    for index, move in enumerate(moves):
        cells = {move.start, move.target}.union(*(corridor.cells for corridor in move.corridors))
        strange = [cell for cell in cells if not _finite(cell)]
        if strange:
            raise ValueError(f"move {index} has cell {strange[0]!r}, whose numbers are not all finite")
    _distinct([move.start for move in moves], "start")
    _distinct([move.target for move in moves], "target")
    if surface is not None:
        allowed = surface if isinstance(surface, set | frozenset | dict) else set(surface)
        for index, move in enumerate(moves):
            for what, cells in (
                ("start", [move.start]),
                ("target", [move.target]),
                *((f"corridor {k}", corridor.cells) for k, corridor in enumerate(move.corridors)),
            ):
                outside = [cell for cell in cells if cell not in allowed]
                if outside:
                    raise ValueError(f"{what} of move {index} has cell {min(outside, key=repr)!r}, which is not on the surface")
    starts = {move.start: index for index, move in enumerate(moves)}
    targets = {move.target: index for index, move in enumerate(moves)}
    for index, move in enumerate(moves):
        for what, cell in (("start", move.start), ("target", move.target)):
            if cell in obstacles:
                raise ValueError(f"the {what} of move {index}, cell {cell!r}, is an obstacle")
    n = len(moves)
    walls = {cell: 2 * n + k for k, cell in enumerate(sorted(obstacles, key=repr))}
    options = []
    for index, move in enumerate(moves):
        mine = []
        for corridor in move.corridors:
            cells = corridor.cells | {move.target}  # nothing may stand there on arrival
            blocked = {starts[cell] for cell in cells if cell in starts} - {index}
            blocked |= {n + targets[cell] for cell in cells if cell in targets and targets[cell] != index}
            blocked |= {walls[cell] for cell in cells if cell in walls}
            cost = len(corridor.cells) if corridor.cost is None else corridor.cost
            mine.append(Option(cost, frozenset(blocked)))
        options.append(mine)
    return ScheduleProblem(options, _locations(n, len(walls)))


def moves_in_space(
    starts: ArrayLike,
    targets: ArrayLike,
    paths: Sequence[Sequence[Path]],
    blocks: Callable[[Path, np.ndarray], bool],
    costs: Sequence[Sequence[int]] | None = None,
    obstacles: ArrayLike = (),
    apart: float = 0.0,
) -> ScheduleProblem:
    """The problem of moving thing i from starts[i] to targets[i] along one of paths[i].

    Args:
        starts: (M, d) where things are. Those beyond the N-th stay and are obstacles.
        targets: (N, d), N <= M.
        paths: for each of the N moves its alternatives, objects of any kind.
        blocks: whether something at a point, (d,) float64, is in the way of a path.
        costs: a whole number for each path; all 0 by default.
        obstacles: (k, d) more points that are never free.
        apart: two starts, or two targets, at this distance or less overlap; 0: only where they are the same.

    Raises ValueError for numbers that are not finite, overlapping starts or targets, fewer things than targets, fewer targets than
    things that have paths, a number of costs other than of paths.
    """
    starts, targets, obstacles = (
        _points(a, name) for a, name in ((starts, "starts"), (targets, "targets"), (obstacles, "obstacles"))
    )
    if not len(targets):
        raise ValueError("there must be at least one target, got none")
    if len(starts) < len(targets):
        raise ValueError(f"{len(targets)} targets need as many things to move, there are {len(starts)}")
    if starts.shape[1] != targets.shape[1] or (len(obstacles) and obstacles.shape[1] != starts.shape[1]):
        raise ValueError("starts, targets and obstacles must be points of one dimension")
    n = len(targets)
    if len(paths) > n:
        raise ValueError(f"{len(paths)} things have paths, but there are only {n} targets")
    if len(paths) < n:
        raise ValueError(f"there are {n} targets, but paths for only {len(paths)} moves")
    if costs is not None and [len(c) for c in costs] != [len(p) for p in paths]:
        raise ValueError("costs must have a number for each path of each move")
    if not apart >= 0:
        raise ValueError(f"apart must be a distance >= 0, got {apart!r}")
    for name, places in (("starts", starts), ("targets", targets)):
        for i, j in sorted(cKDTree(places).query_pairs(apart)):
            raise ValueError(f"{name} {i} and {j} overlap: {places[i].tolist()} and {places[j].tolist()}")
    walls = np.concatenate([starts[n:], obstacles.reshape(-1, starts.shape[1])])
    points = np.concatenate([starts[:n], targets, walls])
    options = []
    for index, of_move in enumerate(paths):
        others = [k for k in range(len(points)) if k not in (index, n + index)]
        options.append(
            [
                Option(0 if costs is None else costs[index][k], frozenset(o for o in others if blocks(path, points[o])))
                for k, path in enumerate(of_move)
            ]
        )
    return ScheduleProblem(options, _locations(n, len(walls)))


def _locations(n: int, obstacles: int) -> list[Location]:
    return [Location(None, j) for j in range(n)] + [Location(j, None) for j in range(n)] + [Location()] * obstacles


def _distinct(places: Iterable[Hashable], what: str) -> None:
    first: dict[Hashable, int] = {}
    for index, place in enumerate(places):
        if place in first:
            raise ValueError(f"moves {first[place]} and {index} have the same {what}, {place!r}")
        first[place] = index


def _finite(cell: Cell) -> bool:
    return all(not isinstance(x, float) or isfinite(x) for x in (cell if isinstance(cell, tuple) else (cell,)))


def _points(array: ArrayLike, name: str) -> np.ndarray:
    points = np.asarray(array, dtype=np.float64)
    if points.size == 0:
        return points.reshape(0, points.shape[1] if points.ndim == 2 else 0)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise ValueError(f"{name} must be finite numbers of shape (n, d), got shape {points.shape}")
    return points
