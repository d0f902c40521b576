"""Checks schedules and plans by replaying them, step by step. Shares no code with what makes them.

`schedule_violations` keeps a table of which locations are occupied and runs one job after the other.
`geometry_violations` moves points: it samples the moving molecule along its path and measures the distance to where every
other molecule really is at that time. Both return sentences, none if all is well; the `check_` functions raise instead.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from components.scheduling.problem import Schedule, ScheduleProblem

SHOWN = 3


class ScheduleError(ValueError):
    """A schedule or plan breaks its rules; the message names the first few breaches."""


def check_schedule(problem: ScheduleProblem, schedule: Schedule) -> None:
    """Raise ScheduleError unless `schedule` is a schedule of `problem`, see `schedule_violations`."""
    _raise(schedule_violations(problem, schedule))


def schedule_violations(problem: ScheduleProblem, schedule: Schedule) -> list[str]:
    """What is wrong with a schedule: the order is no permutation, a job finds its way blocked or has no such option, a token
    leaves before it is there, the cost is another sum, jobs of one layer depend on each other's order."""
    n = problem.n_jobs
    shapes = [np.shape(array) for array in (schedule.order, schedule.layer, schedule.choice)]
    if shapes != [(n,)] * 3:
        return [f"order, layer and choice must each have {n} entries, got shapes {shapes}"]
    order, layer, choice = (np.asarray(array).tolist() for array in (schedule.order, schedule.layer, schedule.choice))
    if sorted(order) != list(range(n)):
        return [f"the order must hold each of the jobs 0..{n - 1} once"]
    found = []
    for job, option in enumerate(choice):
        if not -1 <= option < len(problem.options[job]):
            found.append(f"job {job} has no option {option}")
    if found:
        return found
    cost = sum(problem.options[job][option].cost for job, option in enumerate(choice) if option >= 0)
    if cost != schedule.cost:
        found.append(f"the chosen options cost {cost}, the schedule says {schedule.cost}")
    if any(layer[a] > layer[b] for a, b in itertools.pairwise(order)):
        found.append("the order does not follow the layers")
    leaves: dict[int | None, list[int]] = {}
    enters: dict[int | None, list[int]] = {}
    for index, location in enumerate(problem.locations):
        leaves.setdefault(location.departs, []).append(index)
        enters.setdefault(location.arrives, []).append(index)
    occupied = {index for index, location in enumerate(problem.locations) if location.arrives is None}
    entered = set(occupied)

    def blocked(job: int, when: str) -> None:
        if choice[job] >= 0:
            for index in sorted(problem.options[job][choice[job]].blocked_by & occupied):
                found.append(f"job {job} is blocked: location {index} is occupied when {when}")

    for _, jobs in itertools.groupby(order, key=lambda job: layer[job]):
        fellows = list(jobs)
        for job in fellows:
            # Any order within a layer has to do. A location is only ever in the way with all of the layer's other jobs before
            # this one, or with none of them.
            blocked(job, "it runs" if job == fellows[0] else "it runs first of its layer")
            found += [
                f"job {job} takes a token from location {index} before it is there"
                for index in leaves.get(job, ())
                if index not in entered
            ]
        for job in fellows:
            occupied.difference_update(leaves.get(job, ()))
            occupied.update(enters.get(job, ()))
            entered.update(enters.get(job, ()))
        for job in fellows:
            blocked(job, "it runs last of its layer")
    return found


def check_geometry(
    starts: ArrayLike,
    targets: ArrayLike,
    paths: Sequence[ArrayLike],
    order: Sequence[int],
    w: float,
    c: float,
    step: float = 0.05,
    molecules: Sequence[int] | None = None,
    assignment: Sequence[int] | None = None,
) -> None:
    """Raise ScheduleError unless moving along `paths` in `order` is free of collisions, see `geometry_violations`."""
    _raise(geometry_violations(starts, targets, paths, order, w, c, step, molecules, assignment))


def geometry_violations(
    starts: ArrayLike,
    targets: ArrayLike,
    paths: Sequence[ArrayLike],
    order: Sequence[int],
    w: float,
    c: float,
    step: float = 0.05,
    molecules: Sequence[int] | None = None,
    assignment: Sequence[int] | None = None,
) -> list[str]:
    """What goes wrong when molecules move one after the other.

    A molecule on its way must be at least c from every other one, and at least w while it is more than w of arc length away from
    both ends of its path. Paths start where their molecule is, and in the end molecule i is on target assignment[i].

    Args:
        starts: (M, 2) nm.  targets: (N, 2) nm.
        paths: polylines (m, 2) nm, one a move.  order: the moves, as indices of `paths`.
        w, c: clearance and contact distance, nm.  step: spacing of the samples, nm.
        molecules: which molecule makes each move; move k is molecule k's by default.
        assignment: (M,) target of each molecule, -1 for none; molecule i goes to target i by default.

    Raises ValueError for other shapes, numbers that are not finite, or a step that is not positive.
    """
    positions = np.array(starts, dtype=np.float64)
    targets = np.asarray(targets, dtype=np.float64)
    lines = [np.asarray(path, dtype=np.float64) for path in paths]
    for name, array in (("starts", positions), ("targets", targets), *((f"path {k}", line) for k, line in enumerate(lines))):
        if array.ndim != 2 or array.shape[1] != 2 or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite numbers of shape (n, 2), got shape {array.shape}")
    if not (np.isfinite(step) and step > 0):
        raise ValueError(f"step must be a positive length in nm, got {step!r}")
    count = len(positions)
    movers = list(range(len(lines))) if molecules is None else [int(m) for m in molecules]
    if len(movers) != len(lines) or not all(0 <= m < count for m in movers):
        raise ValueError(f"molecules must name one of 0..{count - 1} for each of {len(lines)} paths")
    if sorted(int(k) for k in order) != list(range(len(lines))):
        raise ValueError(f"order must hold each of the moves 0..{len(lines) - 1} once")
    goals = np.arange(count) if assignment is None else np.asarray(assignment)
    if assignment is None:
        goals = np.where(goals < len(targets), goals, -1)
    if goals.shape != (count,):
        raise ValueError(f"assignment must have {count} entries, got {goals.shape}")

    found = []
    for move in order:
        line, mover = lines[move], movers[move]
        if np.linalg.norm(line[0] - positions[mover]) > 1e-6:
            found.append(f"move {move} starts {np.linalg.norm(line[0] - positions[mover]):.3f} nm from molecule {mover}")
        # Only what lies near the path's bounding box can be near the path.
        around = ((positions > line.min(axis=0) - w - c) & (positions < line.max(axis=0) + w + c)).all(axis=1)
        around[mover] = False
        others = np.flatnonzero(around)
        samples, travelled, left = _samples(line, step)
        gaps = np.linalg.norm(samples[:, None] - positions[others], axis=2)
        inner = (travelled > w) & (left > w)
        # Distances are compared with a tolerance of 1e-9 nm: a path may touch the limit.
        wrong = (gaps < c - 1e-9) | (inner[:, None] & (gaps < w - 1e-9))
        for other in np.flatnonzero(wrong.any(axis=0)):
            nearest = gaps[wrong[:, other], other].min()
            found.append(f"move {move}: molecule {mover} comes within {nearest:.3f} nm of molecule {others[other]}")
        positions[mover] = line[-1]
    for molecule, goal in enumerate(goals.tolist()):
        if goal >= 0 and np.linalg.norm(positions[molecule] - targets[goal]) > 1e-6:
            found.append(
                f"molecule {molecule} ends {np.linalg.norm(positions[molecule] - targets[goal]):.3f} nm from target {goal}"
            )
    return found


def _samples(line: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points along a polyline at most `step` apart, vertices among them, and the arc length before and after each."""
    points = [line[:1]]
    for start, end in itertools.pairwise(line):
        pieces = max(1, int(np.ceil(np.linalg.norm(end - start) / step)))
        points.append(start + (end - start) * (np.arange(1, pieces + 1) / pieces)[:, None])
    samples = np.concatenate(points)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(samples, axis=0), axis=1))])
    return samples, travelled, travelled[-1] - travelled


def _raise(found: list[str]) -> None:
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise ScheduleError("; ".join(found[:SHOWN]) + more)
