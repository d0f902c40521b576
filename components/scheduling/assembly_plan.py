"""A plan of an assembly: paths, their order, what they were chosen from, and its tables on disk."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from components.scheduling.problem import Location, Option, Schedule, ScheduleProblem


@dataclass(frozen=True, eq=False)
class Move:
    """One move: a molecule and its path (m, 2), nm."""

    molecule: int
    path: np.ndarray


@dataclass(frozen=True)
class Repair:
    """What was changed because some moves had no order.

    Attributes:
        kind: "enrich" (new corridors), "swap" (of two targets), "clear" (a surplus molecule moves away), "split" (in two moves).
        molecules: the molecules concerned.
        change: nm by which the straight lines became longer; for "enrich" 0.
    """

    kind: str
    molecules: tuple[int, ...]
    change: float = 0.0


@dataclass(frozen=True, eq=False)
class AssemblyPlan:
    """A plan; two plans are equal if everything that executing them uses is.

    Attributes:
        starts: (M, 2) nm.   targets: (N, 2) nm.
        assignment: (M,) int64, target of each molecule, -1 for a surplus one.
        moves: the moves; a molecule that is on its target already has none, one that was parked on the way has two.
        schedule: order, layers and choice of the moves, cost in pm; `schedule.order[0]` is the move that comes first.
        corridors: for each move all candidates' paths, as the options of `problem`; corridors[k][schedule.choice[k]] is the path.
        problem: the scheduling problem that was solved; None if there was nothing to move.
        sites: (S, 2) nm, the positions of `problem.locations`: starts, targets, parking sites.
        length: total length of the moves, nm.
        lower_bound: nm, the least total straight-line distance; no plan is shorter.
        first_length: nm, the length of the first plan without collision, before minimisation.
        minimised_length: nm, after the first minimisation, before the corridors were refined.
        repairs: what was changed on the way, in order.   swaps: how many of them were exchanges of targets.
        seconds: where the time went: assignment, corridors, sat, total. Neither compared nor saved.
    """

    starts: np.ndarray
    targets: np.ndarray
    assignment: np.ndarray
    moves: tuple[Move, ...]
    schedule: Schedule
    corridors: tuple[tuple[np.ndarray, ...], ...]
    problem: ScheduleProblem | None
    sites: np.ndarray
    length: float
    lower_bound: float
    first_length: float
    minimised_length: float
    repairs: tuple[Repair, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def swaps(self) -> int:
        return sum(repair.kind == "swap" for repair in self.repairs)

    @property
    def n_layers(self) -> int:
        return self.schedule.n_layers if self.moves else 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AssemblyPlan):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            self.problem == other.problem
            and self._lengths() == other._lengths()
            and (self.schedule.cost, self.schedule.optimal) == (other.schedule.cost, other.schedule.optimal)
            and len(mine) == len(theirs)
            and all(np.array_equal(a, b) for a, b in zip(mine, theirs))
        )

    __hash__ = None

    def _lengths(self) -> tuple[float, ...]:
        return self.length, self.lower_bound, self.first_length, self.minimised_length

    def _arrays(self) -> list[np.ndarray]:
        schedule = self.schedule
        fixed = [self.starts, self.targets, self.assignment, self.sites, schedule.order, schedule.layer, schedule.choice]
        return [*fixed, *(path for paths in self.corridors for path in paths), np.array([m.molecule for m in self.moves])]

    def save(self, folder: str | Path) -> None:
        """Write molecules, targets, corridors and schedule as parquet tables and the rest as plan.json into a folder, made if
        need be, over what is there; the same plan gives the same bytes."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        x, y = self.starts.T
        molecules = pd.DataFrame({"mol": np.arange(len(x), dtype=np.int32), "x": x, "y": y, "target": self.assignment})
        targets = pd.DataFrame({"target": np.arange(len(self.targets), dtype=np.int32), "x": self.targets[:, 0]})
        targets["y"] = self.targets[:, 1]
        m, n = len(self.starts), len(self.targets)
        owner = {int(t): i for i, t in enumerate(self.assignment) if t >= 0}
        rows = []
        for k, paths in enumerate(self.corridors):
            options = self.problem.options[k]
            for o, (option, path) in enumerate(zip(options, paths)):
                sites = sorted(option.blocked_by)
                mol = self.moves[k].molecule
                rows.append(
                    {
                        "mol": mol,
                        "move": k,
                        "k": o,
                        "length_pm": option.cost,
                        "pre": np.array([s for s in sites if s < m and s != mol], dtype=np.int32),
                        "post": np.array([owner[s - m] for s in sites if m <= s < m + n], dtype=np.int32),
                        "blocked_by": np.array(sites, dtype=np.int32),
                        "wkt": _to_wkt(path),
                    }
                )
        columns = ["mol", "move", "k", "length_pm", "pre", "post", "blocked_by", "wkt"]
        corridors = pd.DataFrame(rows, columns=columns)
        position = np.empty(len(self.moves), dtype=np.int64)
        position[self.schedule.order] = np.arange(len(self.moves))
        schedule = pd.DataFrame(
            {
                "mol": np.array([move.molecule for move in self.moves], dtype=np.int32),
                "move": np.arange(len(self.moves), dtype=np.int32),
                "layer": self.schedule.layer,
                "position": position,
                "option": self.schedule.choice,
            }
        )
        tables = {"molecules": molecules, "targets": targets, "corridors": corridors, "schedule": schedule}
        for name, table in tables.items():
            table.to_parquet(folder / f"{name}.parquet", index=False)
        rest = {
            "first_length_nm": self.first_length,
            "length_nm": self.length,
            "minimised_length_nm": self.minimised_length,
            "lower_bound_nm": self.lower_bound,
            "cost_pm": self.schedule.cost,
            "optimal": self.schedule.optimal,
            "parking": self.sites[m + n :].tolist(),
            "locations": [] if self.problem is None else [[x.arrives, x.departs] for x in self.problem.locations],
            "repairs": [[repair.kind, list(repair.molecules), repair.change] for repair in self.repairs],
        }
        (folder / "plan.json").write_text(json.dumps(rest, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "AssemblyPlan":
        """Read what `save` wrote. Raises FileNotFoundError for a missing file and ValueError for a damaged one."""
        folder = Path(folder)
        names = ("molecules", "targets", "corridors", "schedule")
        for name in ("plan.json", *(f"{name}.parquet" for name in names)):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder / name} is missing; a saved plan has it")
        try:
            molecules, targets, corridors, schedule = (pd.read_parquet(folder / f"{name}.parquet") for name in names)
            rest = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
            starts, goals = (table[["x", "y"]].to_numpy(dtype=np.float64) for table in (molecules, targets))
            options: list[list[Option]] = [[] for _ in range(len(schedule))]
            paths: list[list[np.ndarray]] = [[] for _ in range(len(schedule))]
            columns = ("move", "length_pm", "blocked_by", "wkt")
            for move, length, blocked_by, wkt in zip(*(corridors[column] for column in columns)):
                options[move].append(Option(int(length), frozenset(int(site) for site in blocked_by)))
                paths[move].append(_from_wkt(wkt))
            choice = schedule["option"].to_numpy(dtype=np.int64)
            return cls(
                starts=starts,
                targets=goals,
                assignment=molecules["target"].to_numpy(dtype=np.int64),
                moves=tuple(Move(int(mol), paths[k][choice[k]]) for k, mol in enumerate(schedule["mol"])),
                schedule=Schedule(
                    order=np.argsort(schedule["position"].to_numpy()).astype(np.int64),
                    layer=schedule["layer"].to_numpy(dtype=np.int64),
                    choice=choice,
                    cost=int(rest["cost_pm"]),
                    optimal=bool(rest["optimal"]),
                ),
                corridors=tuple(tuple(each) for each in paths),
                problem=ScheduleProblem(options, [Location(*pair) for pair in rest["locations"]]) if options else None,
                sites=np.concatenate([starts, goals, np.array(rest["parking"], dtype=np.float64).reshape(-1, 2)]),
                length=rest["length_nm"],
                lower_bound=rest["lower_bound_nm"],
                first_length=rest["first_length_nm"],
                minimised_length=rest["minimised_length_nm"],
                repairs=tuple(Repair(kind, tuple(who), change) for kind, who, change in rest["repairs"]),
            )
        except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"{folder} holds no readable plan: {error!r}") from error


def _to_wkt(path: np.ndarray) -> str:
    return "LINESTRING (" + ", ".join(f"{x!r} {y!r}" for x, y in path.tolist()) + ")"


def _from_wkt(text: str) -> np.ndarray:
    return np.array([[float(value) for value in pair.split()] for pair in text[len("LINESTRING (") : -1].split(",")])
