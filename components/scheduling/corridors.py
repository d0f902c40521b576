"""Candidate paths of molecules to their targets, and what blocks each of them, kept up to date while targets are swapped.

A corridor runs from one site to another; the sites that block it (`blockers`) do not depend on who uses them. So corridors are
kept by their two ends, and a swap of targets only changes who leaves and who enters the sites: j blocks a candidate of i
before it has moved if its start does (Pre), and once it has moved if its target does (Post). A candidate with some j in both
can never be used; one that is blocked by a superset of another's sites and is not shorter is never needed.

Sources of candidates: the straight segment; where that has a blocker, also shortest paths on a hexagonal grid whose edges cost
more near starts and near targets, for several pairs of penalties, pulled tight without being blocked by more sites.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import KDTree

from components.envs.hexagonal import A0, to_position
from components.scheduling.assignment import check_positions
from components.scheduling.clearance import arc_length, blocked, blockers, check_distances, tighten
from components.scheduling.hex_grid import HexGrid
from components.scheduling.problem import Location, Option, ScheduleProblem

__all__ = ["LAMBDAS", "Candidate", "CorridorPlanner", "blockers"]

LAMBDAS = ((2.0, 2.0), (8.0, 1.0), (1.0, 8.0), (30.0, 30.0))
PENALISE = ("nodes", "edges")
STATIC_PENALTY = 100.0
ENRICH_PENALTY = 12.0
MARGIN = 3.0
"""nm of free surface around the outermost sites that detours may use where no box is given."""
LINE_PENALTY = 1.0
"""nm by which a parking site looks further away for each straight way that it would block."""
SAME_PLACE = 1e-9
"""nm: a molecule this near to its target is on it."""


@dataclass(frozen=True, eq=False)
class _Corridor:
    """A path between two sites; `mask` has bit s set for each site s that blocks it, `pm` is its length in whole pm."""

    path: np.ndarray
    pm: int
    mask: int


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way of a molecule to the end of one of its moves.

    Attributes:
        path: (m, 2) nm.
        length: nm.
        length_pm: the same, rounded to whole pm.
        blocked_by: sites that must be empty, as indices into `CorridorPlanner.sites`.
        pre: molecules that must have left their start before.
        post: molecules that must not have entered their target yet.
    """

    path: np.ndarray
    length: float
    length_pm: int
    blocked_by: frozenset[int]
    pre: frozenset[int]
    post: frozenset[int]


class CorridorPlanner:
    """Candidates of all moves for the present assignment of targets.

    Args:
        starts: (M, 2) nm.
        targets: (N, 2) nm, N <= M.
        w, c: clearance and contact distance, see `blockers`.
        grid: spacing of the grid for detours, nm.
        lambdas: pairs (penalty of a start, penalty of a target) for the edges of the grid near one, see `penalise`; empty: straight
            segments only.
        assignment: (M,) target of each molecule, -1 for one that stays; by default molecule i goes to target i.
        penalise: what makes a grid edge dearer. "nodes": the starts and targets within w of its two nodes, the mean of the two;
            "edges": those within w of any of it, also of its middle alone. Corridors by "edges" are blocked by fewer sites.
        box: side of the square about the origin that starts, targets, detours and parking sites must lie in; None: no bound.

    A molecule that is on its target already has no move. Raises ValueError for bad positions, distances, penalties or
    assignments, and for sites outside the box.
    """

    def __init__(
        self,
        starts: ArrayLike,
        targets: ArrayLike,
        w: float = 1.2,
        c: float = 0.9,
        grid: float = 0.867,
        lambdas: Sequence[Sequence[float]] = LAMBDAS,
        assignment: ArrayLike | None = None,
        box: float | None = None,
        penalise: str = "nodes",
    ) -> None:
        if penalise not in PENALISE:
            raise ValueError(f"penalise must be one of {', '.join(PENALISE)}, got {penalise!r}")
        self.penalise = penalise
        check_distances(w, c)
        starts, targets = check_positions(starts, "start", c), check_positions(targets, "target", c)
        self.n_molecules, self.n_targets = len(starts), len(targets)
        if self.n_targets > self.n_molecules:
            raise ValueError(f"there are {self.n_targets} targets but only {self.n_molecules} molecules")
        if box is not None and not 0 < box < math.inf:
            raise ValueError(f"the box must have a positive, finite side in nm, got {box}")
        self.lambdas = tuple(tuple(float(value) for value in pair) for pair in lambdas)
        if any(len(pair) != 2 or not all(0 <= value < math.inf for value in pair) for pair in self.lambdas):
            raise ValueError(f"lambdas must be pairs of penalties >= 0, got {lambdas}")
        self.w, self.c, self.box = float(w), float(c), box
        if box is not None:
            for what, points in (("start", starts), ("target", targets)):
                outside = np.flatnonzero((np.abs(points) > box / 2).any(axis=1))
                if outside.size:
                    place = tuple(points[outside[0]].round(4).tolist())
                    raise ValueError(
                        f"{what} {outside[0]} at {place} nm lies outside the box of side {box} nm about the origin"
                    )
        self.sites = np.concatenate([starts, targets])
        goal = np.where(np.arange(self.n_molecules) < self.n_targets, np.arange(self.n_molecules), -1)
        if assignment is not None:
            goal = np.asarray(assignment)
            used = np.sort(goal[goal >= 0]) if goal.shape == (self.n_molecules,) else np.zeros(0)
            if goal.dtype.kind not in "iu" or not np.array_equal(used, np.arange(self.n_targets)):
                raise ValueError(
                    f"assignment must give each of the {self.n_molecules} molecules a target, or -1, "
                    f"and each of the {self.n_targets} targets one molecule"
                )
        # The sites of each molecule in the order in which it visits them.
        self._route = [(m,) if g < 0 else (m, self.n_molecules + int(g)) for m, g in enumerate(goal)]
        centre = self.sites.mean(axis=0)
        self._grid = HexGrid(centre, float(np.hypot(*(self.sites - centre).T).max()) + MARGIN, grid, box)
        self._close: dict[int, np.ndarray] = {}
        self._near: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._pool: dict[tuple[int, int], list[_Corridor]] = {}
        self._detoured: set[tuple[int, int]] = set()
        self._weigh()
        self._relabel()
        for m in range(self.n_molecules):
            self._generate(m)

    # Who goes where

    def target(self, molecule: int) -> int:
        """The molecule's target, -1 if it has none."""
        last = self._route[self._molecule(molecule)][-1] - self.n_molecules
        return last if 0 <= last < self.n_targets else -1

    def molecule_of(self, target: int) -> int:
        """The molecule that goes to `target`."""
        return self._owner[self.n_molecules + target]

    def route(self, molecule: int) -> tuple[int, ...]:
        """The sites that the molecule visits, as indices into `sites`, its start first."""
        return self._route[self._molecule(molecule)]

    @property
    def jobs(self) -> tuple[tuple[int, int], ...]:
        """(molecule, leg) of each move; leg 0 leaves the start. A molecule moved twice has two legs."""
        return self._jobs

    def swap(self, i: int, j: int) -> None:
        """Molecules i and j exchange where they go; one of them may be a surplus molecule, which then takes the other's place."""
        if self._molecule(i) == self._molecule(j):
            raise ValueError(f"a molecule cannot swap with itself, got {i} twice")
        a, b = self._route[i], self._route[j]
        self._route[i], self._route[j] = (i, *b[1:]), (j, *a[1:])
        self._weigh()
        self._relabel()
        self._generate(i)
        self._generate(j)

    def park(self, molecule: int) -> bool:
        """Let the molecule visit the best free site (`free_site`) first: a surplus one for good, another one on its way.

        Returns whether there was one. Raises ValueError if the molecule has a parking site already or does not move.
        """
        route = self._route[self._molecule(molecule)]
        if len(route) > 2 or (len(route) == 2 and route[1] >= self.n_molecules + self.n_targets):
            raise ValueError(f"molecule {molecule} has a parking site already")
        place = self.free_site(molecule)
        if place is None:
            return False
        self.sites = np.concatenate([self.sites, place[None]])
        new = len(self.sites) - 1
        # Corridors found before do not know the new site yet.
        bit = 1 << new
        for pool in self._pool.values():
            pool[:] = [
                _Corridor(x.path, x.pm, x.mask | bit if blocked(x.path, place[None], self.w, self.c)[0] else x.mask)
                for x in pool
            ]
        self._route[molecule] = (molecule, new, *route[1:])
        self._weigh()
        self._relabel()
        self._generate(molecule)
        return True

    def free_site(self, molecule: int) -> np.ndarray | None:
        """The best parking site for a molecule, a whole number of lattice steps from its start; None if the box has none.

        Sites lie w or more from every start, target and other parking site. Of those the nearest is best; each straight way of
        another molecule that it would block counts as `LINE_PENALTY` more."""
        start = self.sites[self._molecule(molecule)]
        furthest = float(np.hypot(*(self.sites - start).T).max()) + 2 * self.w
        tree, radius = KDTree(self.sites), 4 * self.w
        ways = np.array([self._route[m][leg : leg + 2] for m, leg in self._jobs if m != molecule], dtype=np.int64).reshape(
            -1, 2
        )
        begin, along = self.sites[ways[:, 0]], self.sites[ways[:, 1]] - self.sites[ways[:, 0]]
        while True:
            reach = math.ceil(radius / A0 / (math.sqrt(3) / 2))
            axis = np.arange(-reach, reach + 1)
            steps = to_position(np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2))
            free = (np.hypot(*steps.T) <= radius) & (tree.query(start + steps)[0] >= self.w)
            if self.box is not None:
                free &= (np.abs(start + steps) <= self.box / 2).all(axis=1)
            steps = steps[free]
            offset = (start + steps)[:, None] - begin
            share = np.clip((offset * along).sum(axis=-1) / np.maximum((along**2).sum(axis=-1), 1e-12), 0, 1)
            in_the_way = (np.hypot(*np.moveaxis(offset - share[..., None] * along, -1, 0)) < self.w).sum(axis=1)
            cost = np.round(np.hypot(*steps.T) + LINE_PENALTY * in_the_way, 9)
            # Of equally good sites the first in the order of direction.
            order = np.lexsort((np.round(np.arctan2(steps[:, 1], steps[:, 0]), 9), cost))
            if len(order) and (cost[order[0]] <= radius or radius > furthest):
                return start + steps[order[0]]
            if radius > furthest:
                return None
            radius *= 2

    # Candidates

    def candidates(self, molecule: int, leg: int = 0) -> tuple[Candidate, ...]:
        """The usable, undominated candidates of a move, shortest first; empty if every known path is always blocked."""
        key = self._leg(molecule, leg)
        if key not in self._usable:
            self._usable[key] = tuple(
                self._candidate(molecule, leg, x) for x in self._corridors(molecule, leg) if not self._always(molecule, x.mask)
            )
        return self._usable[key]

    def rejected(self, molecule: int, leg: int = 0) -> tuple[frozenset[int], ...]:
        """For each known path of a move that cannot be used, the molecules that block it at all times."""
        self._leg(molecule, leg)
        found = (self._always(molecule, x.mask) for x in self._corridors(molecule, leg))
        return tuple(frozenset(always) for always in found if always)

    def enrich(self, ids: Iterable[int], around: Iterable[int]) -> int:
        """New candidates for the molecules `ids` that keep away from the starts and targets of the molecules `around`.

        Returns how many usable candidates were added (dominated ones are not)."""
        ids, around = [self._molecule(m) for m in ids], [self._molecule(m) for m in around]
        before = [x for m in ids for leg in self._legs(m) for x in self._corridors(m, leg)]
        known = {id(x) for x in before}
        for m in ids:
            extra = np.zeros(self._grid.n_edges)
            for other in around:
                if other != m:
                    for site in self._route[other]:
                        self._charge(extra, site, ENRICH_PENALTY)
            for leg in self._legs(m):
                self._detour(m, leg, extra)
        self._usable.clear()
        return sum(
            id(x) not in known and not self._always(m, x.mask)
            for m in ids
            for leg in self._legs(m)
            for x in self._corridors(m, leg)
        )

    def pass_by(self, molecule: int, leg: int, occupied: Iterable[int]) -> bool:
        """One more candidate for a move: a shortest way past the given sites alone, as if all others were empty.

        Returns whether it is usable and not dominated by those known."""
        self._leg(molecule, leg)
        key = self._route[molecule][leg], self._route[molecule][leg + 1]
        obstacles = sorted(set(occupied) - set(key))
        penalty = np.zeros(self._grid.n_edges)
        for site in obstacles:
            penalty[self._close_to(site)] += STATIC_PENALTY
        path = self._grid.path(self.sites[key[0]], self.sites[key[1]], np.maximum(penalty, 0.0))
        if path is None:
            return False
        before = list(self._pool[key])
        self._add(key, tighten(np.ascontiguousarray(path), self.sites[obstacles], self.w, self.c))
        added = [x for x in self._pool[key] if not any(x is y for y in before)]
        self._usable.pop((molecule, leg), None)
        return bool(added) and not self._always(molecule, added[0].mask)

    def problem(self) -> ScheduleProblem:
        """The moves, their candidates and the sites as a scheduling problem; costs are lengths in pm.

        Job k is `jobs[k]`, option o of it `candidates(*jobs[k])[o]`, location s the site `sites[s]`."""
        index = {job: k for k, job in enumerate(self._jobs)}
        arrives: list[int | None] = [None] * len(self.sites)
        departs: list[int | None] = [None] * len(self.sites)
        for (m, leg), k in index.items():
            departs[self._route[m][leg]] = k
            arrives[self._route[m][leg + 1]] = k
        options = [[Option(x.length_pm, x.blocked_by) for x in self.candidates(m, leg)] for m, leg in self._jobs]
        return ScheduleProblem(options, [Location(a, d) for a, d in zip(arrives, departs)])

    # Inside

    def _molecule(self, molecule: int) -> int:
        if not 0 <= molecule < self.n_molecules:
            raise ValueError(f"there is no molecule {molecule}; the molecules are 0..{self.n_molecules - 1}")
        return int(molecule)

    def _legs(self, molecule: int) -> range:
        route = self._route[molecule]
        if len(route) == 2 and np.hypot(*(self.sites[route[0]] - self.sites[route[1]])) < SAME_PLACE:
            return range(0)
        return range(len(route) - 1)

    def _leg(self, molecule: int, leg: int) -> tuple[int, int]:
        if leg not in self._legs(self._molecule(molecule)):
            raise ValueError(f"molecule {molecule} has {len(self._legs(molecule))} moves; there is no move {leg}")
        return int(molecule), int(leg)

    def _relabel(self) -> None:
        """Recompute what depends on who goes where."""
        self._owner = {site: m for m, route in enumerate(self._route) for site in route}
        self._routes = [sum(1 << site for site in route) for route in self._route]
        self._jobs = tuple((m, leg) for m in range(self.n_molecules) for leg in self._legs(m))
        self._usable: dict[tuple[int, int], tuple[Candidate, ...]] = {}

    def _corridors(self, molecule: int, leg: int) -> list[_Corridor]:
        route = self._route[molecule]
        return self._pool[route[leg], route[leg + 1]]

    def _always(self, molecule: int, mask: int) -> set[int]:
        """Molecules all of whose sites are in `mask`: wherever they are, they block."""
        found, rest = set(), mask
        while rest:
            bit = rest & -rest
            owner = self._owner[bit.bit_length() - 1]
            route = self._routes[owner]
            if owner != molecule and route & mask == route:
                found.add(owner)
            rest &= ~(bit | route)
        return found

    def _candidate(self, molecule: int, leg: int, corridor: _Corridor) -> Candidate:
        route, n = self._route[molecule], self.n_molecules
        # A molecule does not block itself, but its second move has to wait for the first.
        sites = {site for site in _bits(corridor.mask) if site not in route}
        if leg > 0:
            sites.add(route[leg - 1])
        return Candidate(
            path=corridor.path,
            length=float(arc_length(corridor.path)[-1]),
            length_pm=corridor.pm,
            blocked_by=frozenset(sites),
            pre=frozenset(site for site in sites if site < n and site != molecule),
            post=frozenset(self._owner[site] for site in sites if n <= site < n + self.n_targets),
        )

    def _generate(self, molecule: int) -> None:
        """Candidates of a molecule's moves, unless they are known: the straight segment and, if that is blocked, detours."""
        for leg in self._legs(molecule):
            key = self._route[molecule][leg], self._route[molecule][leg + 1]
            if key not in self._pool:
                self._pool[key] = []
                self._add(key, self.sites[list(key)])
            if self._pool[key][0].mask and key not in self._detoured:
                self._detoured.add(key)
                self._detour(molecule, leg, None)

    def _detour(self, molecule: int, leg: int, extra: np.ndarray | None) -> None:
        key = self._route[molecule][leg], self._route[molecule][leg + 1]
        for weights, all_sites in zip(self.lambdas, self._penalties):
            penalty = all_sites.copy() if extra is None else all_sites + extra
            for site in self._route[molecule]:
                self._charge(penalty, site, -weights[self._kind(site)])
            path = self._grid.path(self.sites[key[0]], self.sites[key[1]], np.maximum(penalty, 0.0))
            if path is not None:
                self._add(key, tighten(np.ascontiguousarray(path), self._others(key), self.w, self.c))

    def _others(self, key: tuple[int, int]) -> np.ndarray:
        keep = np.ones(len(self.sites), dtype=bool)
        keep[list(key)] = False
        return self.sites[keep]

    def _add(self, key: tuple[int, int], path: np.ndarray) -> None:
        """Put a path into the pool of its ends unless a known one is as good; drop what it makes superfluous."""
        path = np.ascontiguousarray(path)
        mask = sum(1 << int(site) for site in np.flatnonzero(blocked(path, self.sites, self.w, self.c)) if site not in key)
        pm, pool = round(1000 * float(arc_length(path)[-1])), self._pool[key]
        if any(x.pm <= pm and x.mask & ~mask == 0 for x in pool):
            return
        pool[:] = sorted(
            [x for x in pool if not (pm <= x.pm and mask & ~x.mask == 0)] + [_Corridor(path, pm, mask)], key=_order
        )

    def _close_to(self, site: int) -> np.ndarray:
        """Grid edges with any part within w of a site."""
        if site not in self._close:
            self._close[site] = self._grid.edges_near(self.sites[site], self.w)
        return self._close[site]

    def _around(self, site: int) -> tuple[np.ndarray, np.ndarray]:
        """Grid edges that a site makes dearer, and how much of its penalty each gets."""
        if site not in self._near:
            if self.penalise == "edges":
                self._near[site] = self._close_to(site), np.ones(len(self._close_to(site)))
            else:
                self._near[site] = self._grid.edges_from(self.sites[site], self.w)
        return self._near[site]

    def _charge(self, penalty: np.ndarray, site: int, amount: float) -> None:
        edges, share = self._around(site)
        penalty[edges] += amount * share

    def _kind(self, site: int) -> int:
        """0: a start, 1: a target or parking site, 2: an obstacle that never moves."""
        if site >= self.n_molecules:
            return 1
        return 2 if len(self._route[site]) == 1 else 0

    def _weigh(self) -> None:
        """The penalty of each grid edge for each pair of lambdas, with all sites counted."""
        counts = np.zeros((3, self._grid.n_edges))
        for site in range(len(self.sites)):
            self._charge(counts[self._kind(site)], site, 1.0)
        self._penalties = [s * counts[0] + g * counts[1] + STATIC_PENALTY * counts[2] for s, g in self.lambdas]


def _order(corridor: _Corridor) -> tuple[int, int]:
    return corridor.pm, corridor.mask


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        bit = mask & -mask
        found.append(bit.bit_length() - 1)
        mask &= ~bit
    return found
