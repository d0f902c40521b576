"""Simple rules and the constraint solver against brute force; the verifiers against planted breaches."""

import numpy as np
import pytest

from components.scheduling.baselines import RULES, cpsat, greedy, topological
from components.scheduling.problem import Infeasible, Schedule, ScheduleProblem, Unknown
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import ScheduleError, check_geometry, check_schedule, geometry_violations, schedule_violations
from tests.components.scheduling.cases import START, TARGET, brute_force, problem_of, random_problem


def test_rules_give_orders_as_far_as_they_go():
    rng = np.random.default_rng(17)
    for trial in range(30):
        problem = random_problem(rng, 7)
        for run in [greedy(problem, rule, rng, inwardness=np.arange(7)) for rule in RULES] + [topological(problem)]:
            done = run.order.tolist()
            assert len(set(done)) == run.placed
            order = np.array([*done, *(job for job in range(7) if job not in done)])
            # Jobs left undone stand at the end, exempt from what blocks them.
            texts = schedule_violations(problem, Schedule(order, np.argsort(order), run.choice, run.cost))
            assert [text for text in texts if "blocked" in text] == [], trial
            if run.complete:
                assert texts == []
                assert isinstance(SatScheduler(problem).solve(), Schedule)


def test_a_rule_stops_only_where_no_job_can_run():
    rng = np.random.default_rng(23)
    for _ in range(30):
        problem = random_problem(rng, 7, density=0.3)
        run = greedy(problem, "shortest")
        left = [job for job in range(7) if job not in run.order.tolist()]
        for job in left:
            # Put next, whatever option it takes, it is blocked or its token is not there.
            order = np.array([*run.order, job, *(other for other in left if other != job)])
            for option in range(len(problem.options[job])):
                choice = run.choice.copy()
                choice[job] = option
                cost = run.cost + problem.options[job][option].cost
                texts = schedule_violations(problem, Schedule(order, np.argsort(order), choice, cost))
                assert any(text.startswith(f"job {job} ") for text in texts)


def test_the_topological_order_is_found_whenever_cheapest_options_have_one():
    rng = np.random.default_rng(19)
    seen = set()
    for _ in range(80):
        problem = random_problem(rng, 5, density=0.15)
        # A stop between two jobs leaves "before or after" open, which a topological order does not decide.
        if any(place.arrives is not None and place.departs is not None for place in problem.locations):
            continue
        cheapest = [[min(options, key=lambda o: o.cost)] for options in problem.options]
        possible = brute_force(ScheduleProblem(cheapest, problem.locations))[0] is not None
        seen.add(possible)
        assert topological(problem).complete == possible
    assert seen == {True, False}


def test_rules_choose_what_they_say():
    problem = problem_of(3, {0: [(3, [])], 1: [(1, [])], 2: [(2, [])]})
    assert greedy(problem, "shortest").order.tolist() == [1, 2, 0]
    assert greedy(problem, "inner-first", inwardness=np.array([2.0, 3.0, 1.0])).order.tolist() == [2, 0, 1]
    # Jobs 2 and 3 pass over the target of 0, job 2 over that of 1 too: once it has, 1 is in nobody's way.
    jam = problem_of(4, {2: [(1, [(TARGET, 0), (TARGET, 1)])], 3: [(1, [(TARGET, 0)])]})
    assert greedy(jam, "least-blocking").order.tolist() == [2, 1, 3, 0]
    drawn = {tuple(greedy(problem, "random", np.random.default_rng(seed)).order.tolist()) for seed in range(40)}
    assert len(drawn) == 6


def test_cp_sat_by_brute_force():
    rng = np.random.default_rng(29)
    for _ in range(25):
        problem = random_problem(rng, 4)
        cost, layers = brute_force(problem)
        answers = cpsat(problem), cpsat(problem, "cost"), cpsat(problem, "layers")
        if cost is None:
            assert all(isinstance(answer, Infeasible) for answer in answers)
            continue
        for answer in answers:
            check_schedule(problem, answer)
        assert (answers[1].cost, answers[2].n_layers) == (cost, layers)


def test_cp_sat_out_of_time_says_what_it_has():
    from components.scheduling.planted import planted_problem

    found = cpsat(planted_problem(200), "cost", time_limit=1.0)
    assert isinstance(found, Unknown)
    assert found.best is None or (check_schedule(planted_problem(200), found.best) is None and found.bound <= found.best.cost)


def test_the_verifier_sees_layers_whose_jobs_depend_on_each_other():
    problem = problem_of(2, {0: [(1, [(START, 1)])]})
    order, zeros = np.array([1, 0]), np.zeros(2, dtype=int)
    assert schedule_violations(problem, Schedule(order, np.array([1, 0]), zeros, 1)) == []
    # In one layer with job 1 first: in this order it works, in the other it does not.
    assert schedule_violations(problem, Schedule(order, zeros, zeros, 1)) == [
        "job 0 is blocked: location 1 is occupied when it runs first of its layer"
    ]
    entering = problem_of(2, {0: [(1, [(TARGET, 1)])]})
    assert schedule_violations(entering, Schedule(order[::-1], zeros, zeros, 1)) == [
        "job 0 is blocked: location 3 is occupied when it runs last of its layer"
    ]
    wrong = schedule_violations(problem, Schedule(order[::-1], np.array([1, 0]), zeros, 1))
    assert "the order does not follow the layers" in wrong
    assert schedule_violations(problem, Schedule(zeros, zeros, zeros, 1)) == ["the order must hold each of the jobs 0..1 once"]
    assert schedule_violations(problem, Schedule(order, order, np.array([0, 3]), 1)) == ["job 1 has no option 3"]
    assert "order, layer and choice" in schedule_violations(problem, Schedule(order, order, zeros[:1], 1))[0]
    with pytest.raises(ScheduleError, match="cost 1, the schedule says 7"):
        check_schedule(problem, Schedule(order, np.array([1, 0]), zeros, 7))


STARTS = np.array([[0.0, 0.0], [5.0, 0.0]])
TARGETS = np.array([[10.0, 0.0], [5.0, 3.0]])
STRAIGHT = [np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([[5.0, 0.0], [5.0, 3.0]])]


def test_geometry_sees_who_is_where_when():
    check_geometry(STARTS, TARGETS, STRAIGHT, [1, 0], w=1.2, c=0.9)
    [text] = geometry_violations(STARTS, TARGETS, STRAIGHT, [0, 1], w=1.2, c=0.9)
    assert text == "move 0: molecule 0 comes within 0.000 nm of molecule 1"
    with pytest.raises(ScheduleError, match="move 0: molecule 0 comes within"):
        check_geometry(STARTS, TARGETS, STRAIGHT, [0, 1], w=1.2, c=0.9)


@pytest.mark.parametrize(
    ("x", "y", "blocked"),
    [
        (5.0, 1.19, True),  # beside the inner part: w
        (5.0, 1.21, False),
        (0.5, 1.1, False),  # beside an end: c
        (0.5, 0.89, True),
        (10.95, 0.0, False),  # beyond the end, by c
        (10.85, 0.0, True),
    ],
)
def test_geometry_uses_the_clearance_inside_and_contact_at_the_ends(x, y, blocked):
    starts = np.array([[0.0, 0.0], [x, y]])
    found = geometry_violations(starts, [[10.0, 0.0]], STRAIGHT[:1], [0], w=1.2, c=0.9, step=0.01)
    assert bool(found) == blocked


def test_geometry_sees_paths_that_do_not_fit():
    bent = [np.array([[0.5, 0.0], [9.0, 0.0]]), STRAIGHT[1]]
    texts = geometry_violations(STARTS, TARGETS, bent, [1, 0], w=1.2, c=0.9)
    assert texts == ["move 0 starts 0.500 nm from molecule 0", "molecule 0 ends 1.000 nm from target 0"]
    # Two legs of one molecule, and the targets exchanged.
    legs = [np.array([[0.0, 0.0], [0.0, 5.0]]), np.array([[0.0, 5.0], [5.0, 3.0]]), np.array([[5.0, 0.0], [10.0, 0.0]])]
    check_geometry(STARTS, TARGETS, legs, [2, 0, 1], 1.2, 0.9, molecules=[0, 0, 1], assignment=[1, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"starts": [[0.0, np.nan], [5.0, 0.0]]}, "starts must be finite"),
        ({"targets": [0.0, 1.0]}, "targets must be finite numbers of shape"),
        ({"step": 0.0}, "step must be a positive length"),
        ({"order": [0, 0]}, "order must hold each of the moves 0..1 once"),
        ({"molecules": [0, 7]}, "molecules must name one of 0..1"),
        ({"assignment": [0]}, "assignment must have 2 entries"),
    ],
)
def test_geometry_refuses_what_it_cannot_check(changes, words):
    arguments = {"starts": STARTS, "targets": TARGETS, "paths": STRAIGHT, "order": [1, 0], "w": 1.2, "c": 0.9}
    with pytest.raises(ValueError, match=words):
        check_geometry(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: greedy(problem_of(2, {}), "luck"), "unknown rule 'luck'"),
        (lambda: greedy(problem_of(2, {}), "inner-first"), "needs inwardness"),
        (lambda: cpsat(problem_of(2, {}), "beauty"), "objective must be"),
        (lambda: cpsat(problem_of(2, {}), time_limit=-1), "positive number of seconds"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
