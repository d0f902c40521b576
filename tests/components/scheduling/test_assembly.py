"""Whole plans: replayed by the verifier, repaired in every way, invariant, deterministic, saved and read back."""

import dataclasses

import numpy as np
import pytest

from components.scheduling.assembly import AssemblyPlan, AssemblyPlanner, PlanNotFound, problem_of
from components.scheduling.assignment import assign
from components.scheduling.instances import make_instance
from components.scheduling.problem import Location
from components.scheduling.verify import check_geometry, check_schedule

W, C = 1.2, 0.9


def replayed(plan: AssemblyPlan) -> AssemblyPlan:
    """The plan, after the verifier has gone through it."""
    check_schedule(problem_of(plan), plan.schedule)
    paths = [move.path for move in plan.moves]
    molecules = [move.molecule for move in plan.moves]
    check_geometry(plan.starts, plan.targets, paths, plan.schedule.order, W, C, molecules=molecules, assignment=plan.assignment)
    used = plan.assignment[plan.assignment >= 0]
    np.testing.assert_array_equal(np.sort(used), np.arange(len(plan.targets)))
    lengths = [np.hypot(*np.diff(path, axis=0).T).sum() for path in paths]
    assert plan.length == pytest.approx(sum(lengths))
    assert abs(plan.schedule.cost - 1000 * plan.length) <= 0.5 * len(paths) + 1e-6
    assert plan.lower_bound <= plan.length + 1e-9
    # Minima are exact to a pm a move.
    assert plan.length - 1e-3 * len(paths) <= plan.minimised_length <= plan.first_length + 1e-3 * len(paths)
    return plan


# Denser than needed, so that repairs are needed too.
@pytest.mark.parametrize(
    ("shape", "n", "pitch", "box"),
    [
        ("square", 36, 2.0, 18.0),
        ("hex", 60, 1.6, 20.0),
        ("honeycomb", 54, 1.6, 20.0),
        ("rings", 50, 2.0, 26.0),
        ("kagome", 48, 1.6, 20.0),
        ("bitmap(AB)", 31, 1.7, 22.0),
    ],
)
@pytest.mark.parametrize("penalise", ["nodes", "edges"])
def test_every_shape_is_built_without_a_collision(shape, n, pitch, box, penalise):
    instance = make_instance(shape, n, pitch, box, 1.6, seed=1, surplus=0.05)
    plan = replayed(AssemblyPlanner(instance.starts, instance.targets, W, C, box=box, penalise=penalise).plan())
    assert plan.lower_bound == assign(instance.starts, instance.targets).lower_bound
    assert plan.length < 1.3 * plan.lower_bound
    assert plan.schedule.optimal
    assert all(np.abs(move.path).max() <= box / 2 for move in plan.moves)


def test_moves_of_a_layer_may_run_in_any_order():
    instance = make_instance("hex", 48, 1.6, 18.0, 1.6, seed=4)
    plan = replayed(AssemblyPlanner(instance.starts, instance.targets, W, C).plan())
    assert 1 < plan.n_layers < len(plan.moves)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = np.lexsort((rng.random(len(plan.moves)), plan.schedule.layer))
        replayed(dataclasses.replace(plan, schedule=dataclasses.replace(plan.schedule, order=order)))


def test_crowded_starts_need_repairs_and_all_are_logged():
    instance = make_instance("square", 49, 1.6, 16.0, 1.4, seed=2)
    seen = []
    plan = replayed(AssemblyPlanner(instance.starts, instance.targets, W, C, lambdas=[(2, 2)]).plan(seen.append))
    assert tuple(seen) == plan.repairs
    assert plan.swaps == sum(repair.kind == "swap" for repair in seen) > 0
    # Exchanges are all that separates the final straight lines from the bound.
    straight = np.hypot(*(plan.starts - plan.targets[plan.assignment]).T).sum()
    assert straight == pytest.approx(plan.lower_bound + sum(repair.change for repair in seen if repair.kind == "swap"))
    assert set(plan.seconds) == {"assignment", "corridors", "sat", "total"}


def test_refinement_shortens_plans():
    shorter = []
    for seed in range(3):
        instance = make_instance("hex", 60, 1.8, 30.0, 2.0, seed=seed)
        plain, refined = (
            replayed(AssemblyPlanner(instance.starts, instance.targets, W, C, refinements=rounds).plan()) for rounds in (0, 5)
        )
        assert plain.length == pytest.approx(plain.minimised_length) == pytest.approx(refined.minimised_length)
        shorter.append((plain.length - refined.length) / (plain.length - plain.lower_bound))
    # A good part of what plans are longer than their bound.
    assert min(shorter) >= -1e-9 and np.mean(shorter) > 0.1, shorter


def test_a_plan_whose_minimisation_runs_out_of_time_is_one_all_the_same():
    instance = make_instance("square", 49, 1.6, 16.0, 1.4, seed=2)
    hurried, patient = (AssemblyPlanner(instance.starts, instance.targets, W, C, time_limit=t).plan() for t in (1e-9, 600))
    replayed(hurried)
    assert not hurried.schedule.optimal and patient.schedule.optimal
    assert patient.length <= hurried.length


def test_the_same_task_gives_the_same_plan():
    instance = make_instance("honeycomb", 42, 1.6, 18.0, 1.6, seed=3)
    one, two = (AssemblyPlanner(instance.starts, instance.targets, W, C).plan() for _ in range(2))
    assert one == two
    moved = AssemblyPlanner(instance.starts + 0.01, instance.targets, W, C).plan()
    assert one != moved
    assert one != "a plan"


def turned(points: np.ndarray) -> np.ndarray:
    return points @ np.array([[0.5, np.sqrt(3) / 2], [-np.sqrt(3) / 2, 0.5]])


@pytest.mark.parametrize(
    "change", [lambda x: x + np.array([4.1, -7.3]), turned, lambda x: x * np.array([1, -1])], ids=["shift", "turn", "mirror"]
)
def test_the_optimum_does_not_depend_on_the_frame(change):
    # General positions: on a lattice equally short ways round an obstacle would be a matter of rounding.
    rng = np.random.default_rng(11)
    instance = make_instance("square", 30, 2.0, 16.0, 1.8, seed=5)
    starts, targets = (points + rng.uniform(-0.1, 0.1, points.shape) for points in (instance.starts, instance.targets))
    plain = AssemblyPlanner(starts, targets, W, C).plan()
    other = replayed(AssemblyPlanner(change(starts), change(targets), W, C).plan())
    assert plain.length > plain.lower_bound + 0.1
    assert other.lower_bound == pytest.approx(plain.lower_bound)
    assert other.length == pytest.approx(plain.length, abs=1e-3)


def test_a_surplus_molecule_on_a_target_is_cleared_away():
    # The molecule that takes the target is nearer than the one in its way.
    starts = [[-0.5, 0.0], [0.6, 0.0], [3.0, 0.0]]
    plan = replayed(AssemblyPlanner(starts, [[0.0, 0.0]], W, C).plan())
    assert list(plan.assignment) == [0, -1, -1]
    assert [repair.kind for repair in plan.repairs] == ["clear"]
    order = [plan.moves[k].molecule for k in plan.schedule.order]
    assert order == [1, 0]
    assert np.hypot(*plan.moves[1].path[-1]) >= W
    assert plan.length > plan.lower_bound


def test_surplus_molecules_out_of_the_way_stay():
    plan = replayed(AssemblyPlanner([[0, 0], [1.5, 0], [8, 8]], [[5, 0]], W, C).plan())
    assert len(plan.moves) == 1
    assert list(plan.assignment) == [-1, 0, -1]


def test_a_surplus_molecule_in_every_corridor_is_cleared_away():
    # With straight segments only, nothing leads past molecule 1.
    planner = AssemblyPlanner([[0, 0], [3, 0.2]], [[6, 0]], W, C, lambdas=(), assignment=[0, -1])
    plan = replayed(planner.plan())
    assert [repair.kind for repair in plan.repairs] == ["clear"]
    assert list(plan.assignment) == [0, -1]


def exchange() -> tuple[list, list, list]:
    """Two molecules that have to exchange their places."""
    return [[0.0, 0.0], [5.0, 0.0]], [[5.0, 0.3], [0.0, 0.3]], [0, 1]


def test_an_exchange_of_places_ends_in_an_exchange_of_targets():
    starts, targets, assignment = exchange()
    plan = replayed(AssemblyPlanner(starts, targets, W, C, assignment=assignment).plan())
    assert list(plan.assignment) == [1, 0] and plan.swaps == 1
    assert plan.length == pytest.approx(0.6) == plan.lower_bound


def test_without_repairs_a_molecule_goes_by_a_parking_site():
    starts, targets, assignment = exchange()
    plan = replayed(AssemblyPlanner(starts, targets, W, C, assignment=assignment, max_repairs=0).plan())
    assert list(plan.assignment) == assignment and plan.swaps == 0
    assert {repair.kind for repair in plan.repairs} <= {"split", "enrich"}
    moves = [move.molecule for move in plan.moves]
    assert len(moves) > 2
    first = [k for k in plan.schedule.order if plan.moves[k].molecule == 0]
    np.testing.assert_array_equal(plan.moves[first[0]].path[0], starts[0])
    np.testing.assert_array_equal(plan.moves[first[-1]].path[-1], targets[0])
    assert len(plan.sites) > 4


def test_no_way_out_is_said():
    _, _, assignment = exchange()
    with pytest.raises(PlanNotFound, match="molecules 0, 1 block each other"):
        AssemblyPlanner(
            [[-0.5, 0], [0.5, 0]], [[0.5, 0.1], [-0.5, 0.1]], W, C, assignment=assignment, max_repairs=0, box=1.2
        ).plan()
    with pytest.raises(PlanNotFound, match="surplus molecule 1"):
        AssemblyPlanner([[-0.5, 0.0], [0.6, 0.0]], [[0.0, 0.0]], W, C, box=1.4).plan()


def test_molecules_on_their_targets_stay():
    places = [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    plan = AssemblyPlanner(places, places[:2], W, C).plan()
    assert plan.moves == () and plan.length == plan.lower_bound == 0 and plan.n_layers == 0
    with pytest.raises(ValueError, match="nothing to schedule"):
        problem_of(plan)
    plan = replayed(AssemblyPlanner([*places, [6.0, 6.0]], [*places, [2.0, 2.0]], W, C).plan())
    assert [move.molecule for move in plan.moves] == [3]
    assert problem_of(plan).locations[0] == Location()


def test_the_cost_optimum_is_that_of_the_problem():
    """Every schedule of the final problem costs as much or more: checked by enumeration of the choices."""
    from itertools import product

    instance = make_instance("square", 12, 1.6, 9.0, 1.5, seed=6)
    plan = replayed(AssemblyPlanner(instance.starts, instance.targets, W, C).plan())
    problem = problem_of(plan)
    cheapest = sorted(product(*[range(len(options)) for options in problem.options]), key=lambda choice: cost(problem, choice))
    best = next(choice for choice in cheapest if orderable(problem, choice))
    assert cost(problem, best) == plan.schedule.cost


def cost(problem, choice) -> int:
    return sum(problem.options[k][o].cost for k, o in enumerate(choice))


def orderable(problem, choice) -> bool:
    """Whether moves with fixed options have an order: run whatever can run (with one move a molecule that never hurts)."""
    wait = {k: set() for k in range(problem.n_jobs)}
    for k, o in enumerate(choice):
        for site in problem.options[k][o].blocked_by:
            location = problem.locations[site]
            if location.departs is not None:
                wait[k].add(location.departs)
            elif location.arrives is not None:
                wait[location.arrives].add(k)
            else:
                return False
    while wait:
        ready = [k for k, before in wait.items() if not before & wait.keys()]
        if not ready:
            return False
        for k in ready:
            del wait[k]
    return True


def test_a_saved_plan_is_read_back_and_has_the_same_bytes(tmp_path):
    starts, targets, assignment = exchange()
    instance = make_instance("kagome", 36, 1.6, 18.0, 1.6, seed=0, surplus=0.1)
    split = AssemblyPlanner(starts, targets, W, C, assignment=assignment, max_repairs=0).plan()
    still = AssemblyPlanner(starts, starts, W, C).plan()
    whole = AssemblyPlanner(instance.starts, instance.targets, W, C).plan()
    for name, plan in (("split", split), ("still", still), ("whole", whole)):
        plan.save(tmp_path / name)
        read = AssemblyPlan.load(tmp_path / name)
        assert read == plan
        assert read.repairs == plan.repairs and read.swaps == plan.swaps
        read.save(tmp_path / "again")
        for file in sorted((tmp_path / name).iterdir()):
            assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    (tmp_path / "whole" / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="no readable plan"):
        AssemblyPlan.load(tmp_path / "whole")
    (tmp_path / "whole" / "schedule.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"schedule\.parquet is missing"):
        AssemblyPlan.load(tmp_path / "whole")


def test_tables_hold_pre_and_post(tmp_path):
    import pandas as pd

    AssemblyPlanner([[0, 0], [3, 0], [9, 9]], [[3, 0.1], [6, 0]], W, C, lambdas=(), assignment=[0, 1, -1]).plan().save(tmp_path)
    corridors = pd.read_parquet(tmp_path / "corridors.parquet")
    assert corridors["length_pm"].tolist() == [3002, 3000]
    assert [list(x) for x in corridors["pre"]] == [[1], []] and [list(x) for x in corridors["post"]] == [[], [0]]
    assert corridors["wkt"][0] == "LINESTRING (0.0 0.0, 3.0 0.1)"
    schedule = pd.read_parquet(tmp_path / "schedule.parquet")
    assert schedule.to_dict("list") == {"mol": [0, 1], "move": [0, 1], "layer": [1, 0], "position": [1, 0], "option": [0, 0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": 0.8}, "at least the contact distance"),
        ({"starts": [[0, 0], [0.5, 0]]}, "starts 0 and 1"),
        ({"targets": [[4, 0], [4, 0.5]]}, "targets 0 and 1"),
        ({"targets": [[4, 0], [6, 0], [8, 0]]}, "3 targets but only 2 molecules"),
        ({"starts": [[0, 0], [np.inf, 0]]}, "finite"),
        ({"box": 7.0}, "target 0 at .* outside the box"),
        ({"max_repairs": -1}, "max_repairs"),
        ({"solver": "no such solver"}, "no such solver"),
        ({"encoding": "unheard of"}, "unheard of"),
        ({"assignment": [0, 1]}, "assignment must give"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, message):
    arguments = {"starts": [[0, 0], [0, 2]], "targets": [[4, 0]], "w": W, "c": C} | change
    with pytest.raises(ValueError, match=message):
        AssemblyPlanner(**arguments).plan()
