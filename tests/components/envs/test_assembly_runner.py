"""Whole assemblies from hand-made plans: what the log says, what happens when things go wrong."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from components.envs.assembly_runner import AssemblyRunner
from components.envs.guidance import BIASES
from components.envs.hexagonal import snap, to_position
from components.envs.protocols import FixedProtocol
from components.envs.stm import Physics

GENTLE = FixedProtocol(0.4, 2.6)
QUIET = Physics(tip_offset=0.0, tip_change=0.0, scan_noise=0.0)


@dataclass
class Move:
    molecule: int
    path: np.ndarray


@dataclass
class Schedule:
    order: np.ndarray
    layer: np.ndarray


@dataclass
class HandMade:
    starts: np.ndarray
    targets: np.ndarray
    assignment: np.ndarray
    moves: tuple
    schedule: Schedule


def on_lattice(points):
    return to_position(snap(np.asarray(points, float)))


def plan_of(starts, targets, paths=None, layer=None, assignment=None):
    """Molecule i goes to target i, in one move along `paths[i]` (default: straight); the rest stay."""
    starts, targets = on_lattice(starts), on_lattice(targets)
    if assignment is None:
        assignment = [i if i < len(targets) else -1 for i in range(len(starts))]
    going = [i for i, target in enumerate(assignment) if target >= 0 and (starts[i] != targets[target]).any()]
    moves = tuple(
        Move(i, np.stack([starts[i], targets[assignment[i]]]) if paths is None else np.asarray(paths[i], float)) for i in going
    )
    layer = np.zeros(len(moves), int) if layer is None else np.asarray(layer)
    return HandMade(starts, targets, np.array(assignment), moves, Schedule(np.argsort(layer, kind="stable"), layer))


def grid_plan(side=3, shift=5.0):
    """A square moves to the right, its right-hand columns first."""
    places = np.array([(x, y) for x in range(side) for y in range(side)]) * 2.0
    layer = [side - 1 - x for x in range(side) for _ in range(side)]
    return plan_of(places, places + np.array([shift, 0.4]), layer=layer)


def test_a_plan_is_executed_and_logged():
    plan, seen = grid_plan(), []
    result = AssemblyRunner(plan, GENTLE, seed=0, run=7, on_layer=lambda done, of: seen.append((done, of))).run()
    assert result.fidelity == 1.0 and result.alive.all()
    assert (result.lost, result.timeouts, result.stranded, result.postponed) == (0, 0, 0, 0)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert np.array_equal(result.sites, snap(plan.targets))
    log = result.pulses
    assert (log["run"] == 7).all() and np.array_equal(log["step"], np.arange(result.n_pulses))
    assert np.isin(log["V"], BIASES).all()
    assert result.bystanders_moved == 0  # then every molecule's pulses are a chain from its start to its target
    for molecule in range(9):
        mine = {name: column[log["mol"] == molecule] for name, column in log.items()}
        before, after = np.stack([mine["q0"], mine["r0"]], 1), np.stack([mine["q1"], mine["r1"]], 1)
        assert np.array_equal(before[1:], after[:-1])
        assert np.array_equal(before[0], snap(plan.starts)[molecule])
        assert np.array_equal(after[-1], snap(plan.targets)[molecule])
        reach = np.hypot(mine["R_x"] - to_position(before)[:, 0], mine["R_y"] - to_position(before)[:, 1])
        assert abs(reach - 0.4).max() < 0.12
    # Columns in the order of their layers: 2, then 1, then 0.
    first = [log["step"][log["mol"] // 3 == column].min() for column in range(3)]
    last = [log["step"][log["mol"] // 3 == column].max() for column in range(3)]
    assert last[2] < first[1] and last[1] < first[0]
    assert len(result.frames) == 4 and [frame.pulses for frame in result.frames][-1] == result.n_pulses
    assert np.array_equal(result.frames[0].sites, snap(plan.starts))


def test_same_seed_same_run():
    results = [AssemblyRunner(grid_plan(2), GENTLE, seed=seed, run=run).run() for seed, run in ((0, 0), (0, 0), (1, 0), (0, 1))]
    logs = [np.stack([result.pulses[name] for name in ("mol", "R_x", "R_y", "q1", "r1")]) for result in results]
    assert np.array_equal(logs[0], logs[1])
    assert not any(logs[0].shape == log.shape and np.array_equal(logs[0], log) for log in logs[2:])


def test_a_molecule_driven_with_others_far_away_goes_as_it_would_alone():
    starts, targets = [(0, 0), (40, 0), (0, 40)], [(4, 1), (44, -1), (3, 43)]
    together = AssemblyRunner(plan_of(starts, targets), GENTLE, physics=QUIET, orientation=[0, 1, 2]).run()
    alone = AssemblyRunner(plan_of(starts[:1], targets[:1]), GENTLE, physics=QUIET, orientation=[0]).run()
    mine = together.pulses["mol"] == 0
    for name in ("R_x", "R_y", "V", "q0", "r0", "q1", "r1"):
        assert np.array_equal(together.pulses[name][mine], alone.pulses[name])


def test_pulses_that_are_computed_together_are_far_apart():
    runner = AssemblyRunner(grid_plan(), GENTLE)
    tips = np.random.default_rng(0).uniform(0, 60, (40, 2))
    groups = runner._groups(tips)
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    for group in groups:
        gap = np.hypot(*(tips[group][:, None] - tips[group][None]).transpose(2, 0, 1)) + 99 * np.eye(len(group))
        # 1.8 nm of reach and 6 hops of 0.2885 nm on either side, and 0.9 nm of contact between.
        assert gap.min() >= 2 * (1.8 + 6 * 0.2885) + 0.9
    assert len(groups) < 40


def test_the_simulator_not_the_plan_says_what_is_dragged():
    """With a clearance of 0.3 nm a molecule may be led past a bystander 0.75 nm away; the tip drags that along."""
    starts, targets, close = [(0, 0), (2.6, 0.75)], [(5.2, 0)], Physics(contact=0.3)
    moved = [
        AssemblyRunner(plan_of(starts, targets), GENTLE, physics=close, w=0.3, seed=s, repair_rounds=0).run() for s in range(8)
    ]
    assert sum(result.bystanders_moved > 0 for result in moved) >= 6
    # With the proper clearance it goes round.
    kept = [
        AssemblyRunner(plan_of(starts, targets), GENTLE, physics=close, w=1.2, seed=s, repair_rounds=0).run() for s in range(8)
    ]
    assert all(result.detours == 1 and result.fidelity == 1 for result in kept)
    assert sum(result.bystanders_moved for result in kept) < sum(result.bystanders_moved for result in moved) / 3


def test_displaced_molecules_are_put_back():
    physics = replace(QUIET, excitation_range=0.55)  # drags what is at the clearance
    starts = [(0, 0), (1.2, 1.5), (2.6, -1.5), (3.6, 1.6)]
    targets = [(5.2, 0), *starts[1:]]
    results = [
        AssemblyRunner(plan_of(starts, targets), GENTLE, physics=physics, seed=seed, repair_rounds=6).run() for seed in range(5)
    ]
    assert sum(result.put_back for result in results) >= 3
    assert sum(result.bystanders_moved for result in results) > 5
    unrepaired = [
        AssemblyRunner(plan_of(starts, targets), GENTLE, physics=physics, seed=s, repair_rounds=0).run() for s in range(5)
    ]
    assert np.mean([r.fidelity for r in results]) > np.mean([r.fidelity for r in unrepaired])
    for result in (*results, *unrepaired):
        assert result.fidelity == pytest.approx(1 - result.displaced / 4)


RING = [(1.9 * np.cos(a) + 8, 1.9 * np.sin(a)) for a in np.arange(6) * np.pi / 3]


def test_a_move_that_finds_no_way_is_told_to_the_planner():
    """The target is inside a ring that cannot be passed; a new plan opens it."""
    asked = []

    def reopen(starts, targets):
        asked.append((starts.copy(), targets.copy()))
        # The two molecules on the left step aside, then the first goes in, then they come back.
        gate = [int(np.argmin(np.hypot(*(starts - on_lattice(RING)[3]).T)))]
        moves, layer = [], []
        for molecule in gate:
            aside = on_lattice(starts[molecule] + [-2.0, 3.0])
            moves += [Move(molecule, np.stack([starts[molecule], aside])), Move(molecule, np.stack([aside, starts[molecule]]))]
            layer += [0, 2]
        moves.append(Move(0, np.stack([starts[0], targets[np.argmin(np.hypot(*(targets - [8, 0]).T))]])))
        layer.append(1)
        assignment = [int(np.argmin(np.hypot(*(targets - (on_lattice([8, 0]) if m == 0 else starts[m])).T))) for m in range(7)]
        return HandMade(
            starts, targets, np.array(assignment), tuple(moves), Schedule(np.argsort(layer, kind="stable"), np.array(layer))
        )

    starts, targets = [(0, 0), *RING], [(8, 0), *RING]
    stuck = AssemblyRunner(plan_of(starts, targets), GENTLE, seed=0).run()
    assert stuck.stranded == 1 and stuck.fidelity == pytest.approx(6 / 7) and stuck.n_pulses == 0
    assert AssemblyRunner(plan_of(starts, targets), GENTLE, replan=lambda s, t: None).run().stranded == 1
    result = AssemblyRunner(plan_of(starts, targets), GENTLE, seed=0, replan=reopen).run()
    assert len(asked) == result.replans >= 1
    assert np.array_equal(asked[0][0], on_lattice(starts)) and len(asked[0][1]) == 7
    assert result.fidelity == 1.0 and result.stranded == 0


def test_lost_molecules_are_missed_unless_there_is_a_surplus():
    fragile = Physics(dissociation=0.03, dissociation_bias=2.0)
    places = np.array([(0, y) for y in (0, 3, 6, 9, 12, 15)], float)
    lost = AssemblyRunner(plan_of(places, places + np.array([5, 0])), GENTLE, physics=fragile, seed=1).run()
    assert lost.lost > 0 and lost.lost == (~lost.alive).sum()
    assert lost.fidelity == pytest.approx(1 - lost.lost / 6) and lost.replaced == 0
    reservoir = np.array([(x, y) for x in (9, 11.5, 14) for y in (1, 5, 9, 13)], float)
    spare = AssemblyRunner(
        plan_of(np.concatenate([places, reservoir]), places + np.array([5, 0])), GENTLE, physics=fragile, seed=1
    ).run()
    assert spare.replaced > 0 and spare.fidelity > lost.fidelity
    assert spare.occupied.sum() <= spare.alive.sum()


def test_a_molecule_that_does_not_move_is_given_up():
    result = AssemblyRunner(grid_plan(2), GENTLE, physics=Physics(threshold=90.0), max_pulses=5, repair_rounds=0).run()
    assert result.fidelity == 0 and result.timeouts == 4 and result.n_pulses == 20


def test_a_molecule_may_move_twice():
    starts, park, target = on_lattice([(0, 0)]), on_lattice([(0, 4)])[0], on_lattice([(4, 4)])
    moves = (Move(0, np.stack([park, target[0]])), Move(0, np.stack([starts[0], park])))
    plan = HandMade(starts, target, np.array([0]), moves, Schedule(np.array([1, 0]), np.array([1, 0])))
    result = AssemblyRunner(plan, GENTLE).run()
    assert result.fidelity == 1.0 and np.array_equal(result.frames[1].sites[0], snap(park))


NOTHING = Schedule(np.zeros(0, int), np.zeros(0, int))


def test_a_plan_without_moves_is_done():
    result = AssemblyRunner(plan_of([(0, 0), (3, 0)], [(0, 0)]), GENTLE).run()
    assert result.fidelity == 1.0 and result.n_pulses == 0 and len(result.frames) == 1


def test_bad_input():
    good = grid_plan(2)
    with pytest.raises(ValueError, match="each of the plan's 4 molecules"):
        AssemblyRunner(good, GENTLE, orientation=[0, 1, 2])
    with pytest.raises(ValueError, match="contact distance"):
        AssemblyRunner(good, GENTLE, w=0.5)
    with pytest.raises(ValueError, match="max_pulses"):
        AssemblyRunner(good, GENTLE, max_pulses=0)
    for change, words in (
        ({"starts": good.starts * np.nan}, "starts must be finite"),
        ({"starts": good.starts[:, :1]}, "shape"),
        ({"starts": good.starts[:3]}, "another number"),
        ({"assignment": np.arange(5)}, "another number"),
        ({"starts": good.starts * 0}, "same lattice site"),
        ({"starts": good.starts * 0.3, "moves": (), "assignment": np.full(4, -1), "schedule": NOTHING}, "start closer than"),
        ({"assignment": np.array([0, 1, 2, 9])}, "assigned to target 9"),
        ({"assignment": np.array([1, 0, 2, 3])}, "do not bring molecule 0"),
        ({"moves": (*good.moves[:3], Move(7, good.moves[3].path))}, "names molecule 7"),
        ({"moves": (*good.moves[:3], Move(3, good.moves[0].path))}, "does not start where"),
        ({"moves": (*good.moves[:3], Move(3, good.moves[3].path * np.nan))}, "finite"),
        ({"schedule": Schedule(np.array([0, 1, 2, 2]), good.schedule.layer)}, "each once"),
    ):
        with pytest.raises(ValueError, match=words):
            AssemblyRunner(replace(good, **change), GENTLE)
    with pytest.raises(ValueError, match=r"0\.\.44"):
        AssemblyRunner(good, lambda seen: np.full(len(seen), 50)).run()
    runner = AssemblyRunner(good, GENTLE)
    runner.run()
    with pytest.raises(RuntimeError, match="has run"):
        runner.run()
