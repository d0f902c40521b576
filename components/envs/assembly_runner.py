"""Executing an assembly plan pulse by pulse, in a simulated world where every other molecule is a real bystander.

The plan's layers are worked off one after another. All molecules of a layer are driven in one batch: a policy sees each of them
and says where the tip goes. Nothing is taken from the planner on trust: before a molecule moves, its corridor is checked
against where the molecules are now, and what a pulse drags along, breaks or brings into contact is the simulator's business.
After a layer the surface is scanned: whoever is not where the plan wants it is put back by a short move over a free corridor. A
move that finds its corridor blocked looks for a way round, waits for a later layer, and is in the end handed to `replan`.

One tip serves the batch. Pulses far enough apart touch disjoint sets of molecules and commute, so they are computed together;
others one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree

from components.envs.guidance import Guide, check_actions, nearest_other
from components.envs.hexagonal import snap, to_position
from components.envs.polylines import Polylines, check_path
from components.envs.protocols import Policy
from components.envs.stm import DEFAULT_PHYSICS, Physics, change_tip, fresh_tip, pulse, scan
from components.envs.streams import Streams
from components.scheduling.clearance import blockers, tighten
from components.scheduling.hex_grid import HexGrid

PULSE_COLUMNS = ("run", "step", "mol", "R_x", "R_y", "V", "q0", "r0", "q1", "r1", "bystanders")
DETOUR_MARGIN = 6.0  # nm around start and end that a detour may use
DETOUR_GRID = 0.45  # nm
DETOUR_PENALTY = 1000.0  # an edge near a molecule counts so many times its length


class PlannedMove(Protocol):
    """One molecule's way, (m, 2) nm."""

    molecule: int
    path: np.ndarray


class LayeredSchedule(Protocol):
    order: np.ndarray  # (n_moves,)
    layer: np.ndarray  # (n_moves,)


class Plan(Protocol):
    """What an executable plan has: `starts` (M, 2) and `targets` (N, 2) nm, `assignment` (M,) target of each molecule or -1,
    `moves` and their `schedule`."""

    starts: np.ndarray
    targets: np.ndarray
    assignment: np.ndarray
    moves: tuple[PlannedMove, ...]
    schedule: LayeredSchedule


Replan = Callable[[np.ndarray, np.ndarray], Plan | None]
"""Given where the molecules are (A, 2) and the targets (N', 2), N' <= A, nm: a new plan for them, or None if there is none."""


class Frame(NamedTuple):
    """The surface after a layer."""

    pulses: int
    sites: np.ndarray  # (M, 2) int64
    alive: np.ndarray  # (M,) bool


@dataclass
class Execution:
    """What came of a plan.

    Attributes:
        occupied: (N,) bool, targets on whose site a molecule sits.
        sites, orientation, alive: (M, 2), (M,), (M,) the surface at the end.
        pulses: the log, a column for each of PULSE_COLUMNS: position of the tip (nm) and bias (V); site of the addressed molecule
            before and after; number of other molecules that the pulse moved or broke.
        frames: the surface at the beginning, after each layer and, if there was more to do, at the end.
        contacts: refused hops.  lost: molecules that broke.
        timeouts: moves given up after too many pulses.  put_back: short moves of displaced molecules.
        detours: moves that had to take another way than planned.  postponed: moves that could not run in their layer.
        replaced: targets filled by a surplus molecule without a new plan.  replans: new plans made.
        stranded: moves that were never made, because their corridor stayed blocked.
        displaced: molecules that at the end are not where the plan, or what replaced it, wants them.
    """

    occupied: np.ndarray
    sites: np.ndarray
    orientation: np.ndarray
    alive: np.ndarray
    pulses: dict[str, np.ndarray] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    contacts: int = 0
    lost: int = 0
    timeouts: int = 0
    put_back: int = 0
    detours: int = 0
    postponed: int = 0
    replaced: int = 0
    replans: int = 0
    stranded: int = 0
    displaced: int = 0

    @property
    def fidelity(self) -> float:
        """Share of the targets that are occupied."""
        return float(self.occupied.mean())

    @property
    def n_pulses(self) -> int:
        return len(self.pulses["mol"])

    @property
    def bystanders_moved(self) -> int:
        """Over all pulses, molecules moved or broken that were not addressed."""
        return int(self.pulses["bystanders"].sum())


class _Job(NamedTuple):
    molecule: int
    path: np.ndarray


class AssemblyRunner:
    """Executes a plan.

    Args:
        plan: see `Plan`; its positions are snapped to the lattice.
        policy: observations (A, 13) float32 -> actions (A,).
        physics: of the simulated surface.
        w: clearance of corridors, nm; the contact distance is the physics'.
        orientation: (M,) int in {0, 1, 2}, the molecules' axes; random by default.
        seed: of everything random, with `run`.  run: number of this run, for the log.
        max_pulses: on one move.  repair_rounds: of short moves after a layer.
        replan: called when after the last layer moves are still blocked, molecules displaced, or targets empty that a surplus
            molecule could fill; at most `max_replans` times.
        on_layer: called with (layers done, layers in all) for progress.

    Raises ValueError for a plan that does not fit together: other shapes, positions that are not finite, share a site or touch, moves
    of unknown molecules, paths that do not lead from where their molecule is to its target.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        *,
        physics: Physics = DEFAULT_PHYSICS,
        w: float = 1.2,
        orientation: ArrayLike | None = None,
        seed: int = 0,
        run: int = 0,
        max_pulses: int = 400,
        repair_rounds: int = 3,
        replan: Replan | None = None,
        max_replans: int = 3,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        if not w >= physics.contact:
            raise ValueError(f"the clearance {w} nm must not be below the contact distance {physics.contact} nm")
        if max_pulses < 1 or repair_rounds < 0 or max_replans < 0:
            raise ValueError("max_pulses must be at least 1, repair_rounds and max_replans not negative")
        self._layers = check_plan(plan, physics.a0)
        self.plan, self.policy, self.physics, self.w = plan, policy, physics, w
        self.run_id, self.max_pulses, self.repair_rounds = run, max_pulses, repair_rounds
        self.replan, self.max_replans, self.on_layer = replan, max_replans, on_layer
        self.goals = snap(plan.targets, physics.a0)
        sites = snap(plan.starts, physics.a0)
        count = len(sites)
        touching = KDTree(to_position(sites, physics.a0)).query_pairs(physics.contact * (1 - 1e-9))
        if touching:
            first, second = min(touching)
            raise ValueError(f"molecules {first} and {second} start closer than the contact distance {physics.contact} nm")
        keys = np.random.SeedSequence([seed, run]).generate_state(count + 2, np.uint64)
        self._streams = Streams(keys)  # one a molecule, then the tip's, then the scans'
        self._tip_row, self._scan_row = np.array([count]), np.array([count + 1])
        if orientation is None:
            orientation = (3 * self._streams.uniform(np.arange(count), 1)[:, 0]).astype(np.int64)
        orientation = np.asarray(orientation)
        if orientation.shape != (count,) or not np.isin(orientation, (0, 1, 2)).all():
            raise ValueError(
                f"orientation must hold 0, 1 or 2 for each of the plan's {count} molecules, got {orientation.shape}"
            )
        self.world = Execution(
            np.zeros(len(self.goals), dtype=bool), sites, orientation.astype(np.int64), np.ones(count, dtype=bool)
        )
        self._planned = sites.copy()  # where each molecule should be now
        self._offset = fresh_tip(self._streams.uniform(self._tip_row, 2), physics)
        self._log: list[np.ndarray] = []
        self._steps = 0

    # The course of things

    def run(self) -> Execution:
        """Execute the plan, once."""
        if self.world.frames:
            raise RuntimeError("this runner has run: make another one")
        self._frame()
        waiting = self._work_off(self._layers)
        self._fill_gaps()
        for _ in range(self.max_replans):
            fillable = all(len(found) for found in self._gaps())
            if self.replan is None or not (waiting or fillable or self._displaced().any()):
                break
            layers = self._new_layers()
            if layers is None:
                break
            self.world.replans += 1
            waiting = self._work_off(layers)
            self._fill_gaps()
        self.world.stranded = len(waiting)
        world = self.world
        if world.frames[-1].pulses != self._steps:
            self._frame()
        world.lost, world.displaced = int((~world.alive).sum()), int(self._displaced().sum())
        world.occupied = (self.goals[:, None] == world.sites[None, world.alive]).all(axis=2).any(axis=1)
        log = np.concatenate(self._log) if self._log else np.zeros((0, len(PULSE_COLUMNS)))
        world.pulses = {
            name: log[:, k] if name in ("R_x", "R_y", "V") else log[:, k].astype(np.int64)
            for k, name in enumerate(PULSE_COLUMNS)
        }
        return world

    def _work_off(self, layers: list[list[_Job]]) -> list[_Job]:
        """All layers; returns the jobs that found no way."""
        waiting: list[_Job] = []
        for number, layer in enumerate(layers):
            before = len(waiting)
            waiting = self._attempt(waiting + layer)
            self._put_back()
            if waiting:  # what was in the way may be back in its place now
                waiting = self._attempt(waiting)
                self._put_back()
            self.world.postponed += max(len(waiting) - before, 0)
            self._frame()
            if self.on_layer is not None:
                self.on_layer(number + 1, len(layers))
        while waiting:
            before = len(waiting)
            waiting = self._attempt(waiting)
            self._put_back()
            if len(waiting) == before:
                break
        return waiting

    def _attempt(self, jobs: list[_Job]) -> list[_Job]:
        """Drive those molecules whose corridor is free, or that find another; return the jobs of the others, to be tried later.

        A job whose molecule waits for an earlier job of its own waits too."""
        go, planned, wait, busy = [], {}, [], set()
        for job in jobs:
            molecule = job.molecule
            if not self.world.alive[molecule]:
                continue
            path = None if molecule in busy else self._path(molecule, job.path)
            busy.add(molecule)
            if path is None:
                wait.append(job)
            else:
                go.append(_Job(molecule, path))
                planned[molecule] = job
        return wait + [planned[job.molecule] for job in self._drive_apart(go)]

    def _path(self, molecule: int, planned: np.ndarray) -> np.ndarray | None:
        """The planned path from where the molecule is, if nothing blocks it now, or a detour to its end, or None."""
        here = to_position(self.world.sites[molecule], self.physics.a0)
        path = np.concatenate([here[None], planned[1:]])
        if not (path == path[0]).all() and not blockers(path, self._others(molecule), self.w, self.physics.contact).any():
            return path
        path = self._route(molecule, planned[-1])
        self.world.detours += path is not None
        return path

    def _others(self, molecule: int) -> np.ndarray:
        """Positions of all other molecules that are there, nm."""
        there = self.world.alive.copy()
        there[molecule] = False
        return to_position(self.world.sites[there], self.physics.a0)

    def _route(self, molecule: int, end: np.ndarray) -> np.ndarray | None:
        """A free way from where the molecule is to `end`: straight, or round the others; None if there is none."""
        start, others = to_position(self.world.sites[molecule], self.physics.a0), self._others(molecule)
        contact = self.physics.contact
        straight = np.stack([start, end])
        if (start == end).all():
            return None
        if not blockers(straight, others, self.w, contact).any():
            return straight
        reach = 0.5 * np.hypot(*(end - start)) + DETOUR_MARGIN
        centre = 0.5 * (start + end)
        near = others[np.hypot(*(others - centre).T) < reach + self.w]
        if (np.hypot(*(near - end).T) < contact).any():
            return None
        grid = HexGrid(centre, reach, DETOUR_GRID)
        at_ends = np.minimum(np.hypot(*(grid.nodes - start).T), np.hypot(*(grid.nodes - end).T)) < self.w
        penalty = np.zeros(grid.n_edges)
        for point in near:
            wide = grid.edges_near(point, self.w)
            penalty[wide[~at_ends[wide // 12]]] = DETOUR_PENALTY
            penalty[grid.edges_near(point, contact)] = DETOUR_PENALTY
        path = grid.path(start, end, penalty)
        if path is None or blockers(path, others, self.w, contact).any():
            return None
        return tighten(np.ascontiguousarray(path), others, self.w, contact)

    def _displaced(self) -> np.ndarray:
        """(M,) bool: molecules that are not where they should be. A scan's noise is far below the lattice's spacing, so that a
        scanned surface is known site by site."""
        return self.world.alive & (self.world.sites != self._planned).any(axis=1)

    def _put_back(self) -> None:
        """Scan; bring displaced molecules to where they should be, over free corridors."""
        for _ in range(self.repair_rounds):
            jobs = []
            for molecule in np.nonzero(self._displaced())[0]:
                path = self._route(molecule, to_position(self._planned[molecule], self.physics.a0))
                if path is not None:
                    jobs.append(_Job(int(molecule), path))
            if not jobs:
                return
            self.world.put_back += len(jobs)
            self._drive_apart(jobs)

    def _drive_apart(self, jobs: list[_Job]) -> list[_Job]:
        """Drive the jobs in as few batches as keep the ways of each batch apart: molecules that are free to move in any order
        may still meet if they move at the same time. Returns the jobs that what an earlier batch left behind has stopped."""
        stopped = []
        while jobs:
            batch, later = [], []
            for job in jobs:
                if not all(self._apart(job.path, other.path) for other in batch):
                    later.append(job)
                elif blockers(job.path, self._others(job.molecule), self.w, self.physics.contact).any():
                    stopped.append(job)
                else:
                    batch.append(job)
            self._drive(batch)
            jobs = later
        return stopped

    def _apart(self, first: np.ndarray, second: np.ndarray) -> bool:
        """Whether two paths come nowhere nearer than the clearance."""
        arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(second, axis=0).T))])
        ticks = np.append(np.arange(0.0, arc[-1], 0.2), arc[-1])
        samples = np.stack([np.interp(ticks, arc, second[:, k]) for k in (0, 1)], axis=1)
        return not blockers(first, samples, self.w, self.w).any()

    def _new_layers(self) -> list[list[_Job]] | None:
        """The layers of a new plan from where the molecules are now, in this runner's numbers."""
        world = self.world
        ids = np.nonzero(world.alive)[0]
        here, goals = to_position(world.sites[ids], self.physics.a0), to_position(self.goals, self.physics.a0)
        _, within_reach = linear_sum_assignment(np.hypot(*(here[:, None] - goals[None]).transpose(2, 0, 1)))
        plan = self.replan(here, goals[np.sort(within_reach)])
        if plan is None:
            return None
        layers = check_plan(plan, self.physics.a0)
        if len(plan.starts) != len(ids) or (snap(plan.starts, self.physics.a0) != world.sites[ids]).any():
            raise ValueError(f"the new plan must start from the {len(ids)} molecules that are there, in their order")
        self._planned = world.sites.copy()
        return [[_Job(int(ids[job.molecule]), job.path) for job in layer] for layer in layers]

    def _gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """Surplus molecules, those that sit on no target and are meant for none; and empty targets."""
        world = self.world
        at = (self.goals[:, None] == world.sites[None]).all(axis=2) & world.alive
        bound = (self._planned[:, None] == self.goals[None]).all(axis=2).any(axis=1)
        return np.nonzero(world.alive & ~at.any(axis=0) & ~bound)[0], np.nonzero(~at.any(axis=1))[0]

    def _fill_gaps(self) -> None:
        """Bring surplus molecules to empty targets, as near ones as possible, where there is a way."""
        world = self.world
        for _ in range(self.repair_rounds):
            spare, empty = self._gaps()
            if not len(spare) or not len(empty):
                return
            goals = to_position(self.goals[empty], self.physics.a0)
            gap = goals[:, None] - to_position(world.sites[spare], self.physics.a0)[None]
            filled = False
            for goal, choice in zip(*linear_sum_assignment(np.hypot(gap[..., 0], gap[..., 1]))):
                molecule = int(spare[choice])
                path = self._route(molecule, goals[goal])
                if path is None:
                    continue
                filled = True
                self._drive([_Job(molecule, path)])
                world.replaced += bool((world.sites[molecule] == self.goals[empty[goal]]).all() and world.alive[molecule])
            self._put_back()
            if not filled:
                return

    def _frame(self) -> None:
        self.world.frames.append(Frame(self._steps, self.world.sites.copy(), self.world.alive.copy()))

    # Pulses

    def _scan(self) -> np.ndarray:
        """Reported positions (M, 2) of all molecules, nm."""
        return scan(self.world.sites[None], self._streams.uniform(self._scan_row, 2 * len(self._planned)), self.physics)[0]

    def _drive(self, jobs: list[_Job]) -> None:
        """Pulse at the jobs' molecules in turn until each is on the site at its path's end, has broken, or had enough pulses."""
        if not jobs:
            return
        world = self.world
        ids = np.array([job.molecule for job in jobs])
        guide = Guide(Polylines([job.path for job in jobs]))
        goal = snap(guide.paths.ends, self.physics.a0)
        self._planned[ids] = goal
        reported = self._scan()
        for _ in range(self.max_pulses):
            guide.look(reported[ids])
            present = np.repeat(world.alive[None], len(ids), axis=0)
            present[np.arange(len(ids)), ids] = False
            others = np.broadcast_to(reported, (len(ids), *reported.shape))
            nearest = nearest_other(reported[ids], others, present)
            actions = check_actions(self.policy(guide.observation(world.orientation[ids], nearest)), len(ids))
            aim = guide.aim(actions)
            for group in self._groups(aim.tip):
                # A molecule that an earlier pulse broke is not there to be addressed.
                group = group[world.alive[ids[group]]]
                if len(group):
                    self._pulse(ids[group], aim.tip[group], aim.bias[group])
            reported = self._scan()
            guide.record(aim.tip, reported[ids])
            on = world.alive[ids] & (world.sites[ids] != goal).any(axis=1)
            if not on.all():
                on = np.nonzero(on)[0]
                if not len(on):
                    return
                ids, goal, guide = ids[on], goal[on], guide.subset(on)
        world.timeouts += len(ids)

    @property
    def _span(self) -> float:
        """nm from the tip within which molecules can be after a pulse that acted on them."""
        return self.physics.reach + self.physics.sub_steps * self.physics.a0

    def _groups(self, tip: np.ndarray) -> list[np.ndarray]:
        """Rows of `tip` (A, 2) in groups of pulses that touch disjoint sets of molecules, which do not meet either."""
        apart = 2 * self._span + self.physics.contact + 10 * self.physics.tip_offset
        near = np.hypot(*(tip[:, None] - tip[None]).transpose(2, 0, 1)) < apart
        group = np.zeros(len(tip), dtype=np.int64)
        for row in range(1, len(tip)):
            taken = set(group[:row][near[row, :row]].tolist())
            while int(group[row]) in taken:
                group[row] += 1
        return [np.nonzero(group == number)[0] for number in range(int(group.max()) + 1)]

    def _pulse(self, ids: np.ndarray, tip: np.ndarray, bias: np.ndarray) -> None:
        """One pulse at each of the molecules `ids`, far from each other."""
        world, physics = self.world, self.physics
        true_tip = tip + self._offset
        place = to_position(world.sites, physics.a0)
        near = np.hypot(*(place[None] - true_tip[:, None]).transpose(2, 0, 1)) < self._span + physics.contact
        near &= world.alive
        near[np.arange(len(ids)), ids] = False
        width = int(near.sum(axis=1).max())
        order = np.argsort(~near, axis=1, kind="stable")[:, :width]
        who = np.concatenate([ids[:, None], order], axis=1)  # the addressed molecule, then its neighbours
        there = np.concatenate([np.ones((len(ids), 1), dtype=bool), np.take_along_axis(near, order, axis=1)], axis=1)
        u = self._streams.uniform(ids, who.shape[1] * physics.draws).reshape(*who.shape, physics.draws)
        before = world.sites[who]
        after = pulse(before, world.orientation[who], there, true_tip, bias, u, physics)
        changed = ((after.sites != before).any(axis=2) | (after.alive != there))[:, 1:].sum(axis=1)
        touched = who[there]
        world.sites[touched] = after.sites[there]
        world.orientation[touched] = after.orientation[there]
        world.alive[touched] = after.alive[there]
        world.contacts += int(after.contacts.sum())
        draws = self._streams.uniform(self._tip_row, 3 * len(ids)).reshape(len(ids), 3)
        for draw in draws:
            self._offset = change_tip(self._offset, draw[None], physics)
        columns = [
            np.full(len(ids), self.run_id),
            self._steps + np.arange(len(ids)),
            ids,
            *tip.T,
            bias,
            *before[:, 0].T,
            *after.sites[:, 0].T,
            changed,
        ]
        self._log.append(np.stack(columns, axis=1).astype(np.float64))
        self._steps += len(ids)


def check_plan(plan: Plan, a0: float) -> list[list[_Job]]:
    """The plan's layers as lists of jobs in their order. Raises ValueError for a plan that does not fit together."""
    starts, targets = np.asarray(plan.starts, dtype=np.float64), np.asarray(plan.targets, dtype=np.float64)
    for name, points in (("starts", starts), ("targets", targets)):
        if points.ndim != 2 or points.shape[1] != 2 or not len(points):
            raise ValueError(f"the plan's {name} must have shape (n, 2), got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError(f"the plan's {name} must be finite")
        if len(np.unique(snap(points, a0), axis=0)) != len(points):
            raise ValueError(f"two of the plan's {name} snap to the same lattice site")
    count, n_moves = len(starts), len(plan.moves)
    assignment = np.asarray(plan.assignment)
    if assignment.shape != (count,):
        raise ValueError(f"the plan assigns {assignment.shape} molecules but has {count} starts: it is for another number")
    order, layer = np.asarray(plan.schedule.order), np.asarray(plan.schedule.layer)
    if not np.array_equal(np.sort(order), np.arange(n_moves)) or layer.shape != (n_moves,) or layer.min(initial=0) < 0:
        raise ValueError(f"the plan's schedule must order its {n_moves} moves, each once, and give each a layer >= 0")
    here = snap(starts, a0)
    layers: list[list[_Job]] = [[] for _ in range(int(layer.max(initial=-1)) + 1)]
    for number in sorted(order.tolist(), key=lambda k: (layer[k], np.nonzero(order == k)[0][0])):
        move = plan.moves[number]
        if not 0 <= move.molecule < count:
            raise ValueError(f"move {number} names molecule {move.molecule}; the plan has {count}")
        path = check_path(move.path, f"the path of move {number}")
        if (snap(path[0], a0) != here[move.molecule]).any():
            raise ValueError(f"the path of move {number} does not start where molecule {move.molecule} is then")
        here[move.molecule] = snap(path[-1], a0)
        layers[int(layer[number])].append(_Job(int(move.molecule), path))
    for molecule, target in enumerate(assignment.tolist()):
        if not -1 <= target < len(targets):
            raise ValueError(f"molecule {molecule} is assigned to target {target}; there are {len(targets)}")
        if target >= 0 and (here[molecule] != snap(targets[target], a0)).any():
            raise ValueError(f"the plan's moves do not bring molecule {molecule} to its target {target}")
    return layers
