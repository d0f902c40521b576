"""SAT schedules: against every order by brute force, CP-SAT, gold cases, and with and without each device that should not matter."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.scheduling.baselines import cpsat
from components.scheduling.encodings import ENCODINGS
from components.scheduling.planted import planted_problem
from components.scheduling.problem import Infeasible, Location, Option, Schedule, ScheduleProblem, Unknown
from components.scheduling.sat_schedule import SatScheduler
from components.scheduling.verify import check_schedule, schedule_violations
from tests.components.scheduling.cases import START, TARGET, brute_force, problem_of, random_problem

CYCLE = {0: [(1, [(START, 1)])], 1: [(1, [(START, 0)])]}
"""Each of two jobs passes over the other's start."""


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("symmetry", [(), ("S1", "S2", "S3")], ids=["plain", "symmetry"])
def test_every_order_by_brute_force(encoding, symmetry):
    rng = np.random.default_rng(list(ENCODINGS).index(encoding))
    feasible = 0
    for _ in range(50):
        problem = random_problem(rng, int(rng.integers(1, 7)))
        cost, layers = brute_force(problem)
        with SatScheduler(problem, encoding, symmetry=symmetry, seed=1) as scheduler:
            answers = scheduler.solve(), scheduler.minimise_cost(), scheduler.minimise_layers()
            if cost is None:
                assert all(isinstance(answer, Infeasible) for answer in answers)
                continue
            feasible += 1
            for answer in answers:
                check_schedule(problem, answer)
            assert answers[1].cost == cost and answers[1].optimal
            assert answers[2].n_layers == layers and answers[2].optimal
    assert 15 <= feasible <= 49


@pytest.mark.parametrize("seed", range(6))
def test_larger_problems_have_cp_sats_optimum(seed):
    problem = planted_problem(12, blockers=1.5, seed=seed)
    with SatScheduler(problem) as scheduler:
        cost, layers = scheduler.minimise_cost(), scheduler.minimise_layers()
    for mine, objective in ((cost, "cost"), (layers, "layers")):
        peer = cpsat(problem, objective)
        check_schedule(problem, mine)
        check_schedule(problem, peer)
        assert mine.optimal and peer.optimal
        assert (mine.cost if objective == "cost" else mine.n_layers) == (peer.cost if objective == "cost" else peer.n_layers)


def test_gold_two_jobs_that_pass_over_each_others_start():
    scheduler = SatScheduler(problem_of(2, CYCLE))
    assert scheduler.solve() == Infeasible((0, 1))
    core = scheduler.explain()
    assert core.jobs == (0, 1)
    assert core.text() == (
        "job 0 and job 1 block each other:\n"
        "- the only option of job 0 passes over the start of job 1, so it must run after job 1\n"
        "- the only option of job 1 passes over the start of job 0, so it must run after job 0\n"
        "- closed circle: job 0, before job 1, before job 0"
    )
    assert "molecule 1's bed" in core.text("molecule {}".format, lambda index: f"molecule {index}'s bed")
    scheduler.add_options(1, [Option(5)])
    found = scheduler.minimise_cost()
    assert (found.order.tolist(), found.cost, found.choice.tolist()) == ([1, 0], 6, [0, 1])


def test_gold_a_cycle_of_three_and_a_free_job():
    ring = {0: [(1, [(START, 1)])], 1: [(1, [(START, 2)])], 2: [(1, [(START, 0)])]}
    assert SatScheduler(problem_of(4, ring)).explain().jobs == (0, 1, 2)


def test_a_core_names_the_jobs_that_tie_it_together():
    # Job 0 passes over where job 1 starts and over where it ends: job 1 is free to move, yet job 0 is stuck.
    core = SatScheduler(problem_of(2, {0: [(1, [(START, 1), (TARGET, 1)])]})).explain()
    assert core.jobs == (0,)
    assert core.text() == (
        "job 0 can never run:\n- the only option of job 0 passes over the start of job 1, so it must run after job 1; "
        "it passes over the target of job 1, so it must run before job 1\n- closed circle: job 0, before job 1, before job 0"
    )
    # 0 before 1 before 2 before 0, where job 1 itself asks for nothing.
    chain = SatScheduler(problem_of(3, {0: [(1, [(TARGET, 1)])], 2: [(1, [(START, 1), (TARGET, 0)])]})).explain()
    assert chain.jobs == (0, 2)
    assert chain.text().splitlines()[1:] == [
        "- the only option of job 0 passes over the target of job 1, so it must run before job 1",
        "- the only option of job 2 passes over the start of job 1, so it must run after job 1; "
        "it passes over the target of job 0, so it must run before job 0",
        "- closed circle: job 0, before job 1, before job 2, before job 0",
    ]


def test_a_core_of_one_job_names_the_handover_that_closes_the_circle():
    # Job 2 hands its token to job 1; job 0 must run before the one and after the other.
    places = [Location(None, 2), Location(2, 1), Location(1, None), Location(2, None), Location(None, 1)]
    problem = ScheduleProblem([[Option(0, frozenset({3, 4}))], [Option(0)], [Option(0)]], places)
    core = SatScheduler(problem).explain()
    assert core.jobs == (0,)
    assert core.text().splitlines()[1:] == [
        "- the only option of job 0 passes over the target of job 2, so it must run before job 2; "
        "it passes over the start of job 1, so it must run after job 1",
        "- job 2 must run before job 1, which takes its token on",
        "- closed circle: job 0, before job 2, before job 1, before job 0",
    ]


def test_an_obstacle_and_a_job_without_options_are_cores_of_their_own():
    walled = ScheduleProblem([[Option(1, frozenset({0}))], [Option(1)]], [Location()])
    core = SatScheduler(walled).explain()
    assert core.jobs == (0,) and "never free" in core.text()
    core = SatScheduler(ScheduleProblem([[Option(1)], []], [])).explain()
    assert core.jobs == (1,) and core.text().startswith("job 1 has no option")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_chain_has_one_order_and_as_many_layers_as_jobs(encoding):
    n = 7
    scheduler = SatScheduler(problem_of(n, {j: [(1, [(START, j + 1)])] for j in range(n - 1)}), encoding)
    found = scheduler.minimise_layers()
    assert found.order.tolist() == list(range(n))[::-1] and found.n_layers == n
    assert isinstance(scheduler.minimise_layers(upper=n - 1), Infeasible)
    assert scheduler.minimise_layers(upper=n).n_layers == n


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_jobs_that_do_not_meet_share_a_layer(encoding):
    assert SatScheduler(problem_of(6, {}), encoding).minimise_layers().n_layers == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_token_cannot_leave_before_it_came(encoding):
    # Job 1 takes over where job 0 leaves its token; job 2 passes there, and over job 1's target.
    problem = ScheduleProblem(
        [[Option(0, frozenset({2}))], [Option(0)], [Option(0, frozenset({1, 2}))]],
        [Location(None, 0), Location(0, 1), Location(1, None)],
    )
    found = SatScheduler(problem, encoding).solve()
    check_schedule(problem, found)
    assert found.order.tolist() == [2, 0, 1]


@pytest.mark.parametrize("breaker", ["S1", "S2", "S3"])
def test_no_symmetry_breaker_changes_an_optimum(breaker):
    rng, n = np.random.default_rng(7), 6
    for trial in range(20):
        # Copies of a few kinds of job, so that there is something to break.
        kinds = [[int(k) for k in rng.integers(0, 3, 2)] for _ in range(3)]
        blocked = {
            j: [(kinds[j % 3][0], [(START, (3 + j) % n)]), (3, [(TARGET, (j + kinds[j % 3][1] + 1) % n)])] for j in range(n)
        }
        problem = problem_of(n, {j: blocked[j] for j in blocked if kinds[j % 3][1] != j})
        for encoding in ENCODINGS:
            answers = []
            for symmetry in ((), (breaker,)):
                with SatScheduler(problem, encoding, symmetry=symmetry, hint=rng.random(n)) as scheduler:
                    cost, layers = scheduler.minimise_cost(), scheduler.minimise_layers()
                    answers.append((getattr(cost, "cost", None), getattr(layers, "n_layers", None)))
            assert answers[0] == answers[1], (trial, encoding)


def test_interchangeable_jobs_run_by_index():
    # Jobs 0, 2 and 3 must all run after job 1, and are alike.
    problem = problem_of(4, {j: [(1, [(START, 1)])] for j in (0, 2, 3)})
    for encoding in ("lazy", "binary", "transitive"):
        with SatScheduler(problem, encoding, symmetry=("S2",)) as scheduler:
            assert scheduler.stats.clauses > SatScheduler(problem, encoding, symmetry=()).stats.clauses
            assert scheduler.solve().order.tolist()[0] == 1
    # Two jobs that are alike until one of them loses an option: then the order of the index would be wrong.
    forbidding = SatScheduler(problem_of(2, {j: [(1, []), (2, [(START, 1 - j)])] for j in (0, 1)}), symmetry=("S2",))
    forbidding.forbid(0, 0)
    assert forbidding.solve().order.tolist() == [1, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 25), st.sampled_from(sorted(ENCODINGS)))
def test_every_schedule_passes_the_verifier_and_no_mutilated_one_does(seed, n, encoding):
    problem = planted_problem(n, blockers=2.0, seed=seed)
    with SatScheduler(problem, encoding) as scheduler:
        found = scheduler.solve()
    check_schedule(problem, found)
    # A job that an arc ties to another is put on its wrong side.
    job = seed % n
    for index in problem.options[job][found.choice[job]].blocked_by:
        place = problem.locations[index]
        rest = [other for other in found.order.tolist() if other != job]
        at = rest.index(place.departs) if place.departs is not None else rest.index(place.arrives) + 1
        order = np.array([*rest[:at], job, *rest[at:]])
        broken = Schedule(order, np.argsort(order), found.choice, found.cost)
        assert any(f"job {job} is blocked: location {index} " in text for text in schedule_violations(problem, broken))
    assert schedule_violations(problem, Schedule(found.order, found.layer, found.choice, found.cost + 1)) != []


def test_every_core_is_impossible_and_every_part_of_it_possible():
    rng = np.random.default_rng(3)
    seen = 0
    while seen < 25:
        problem = random_problem(rng, 8, density=0.3)
        with SatScheduler(problem) as scheduler:
            if isinstance(scheduler.solve(), Schedule):
                continue
            seen += 1
            core = scheduler.explain().jobs
            assert isinstance(SatScheduler(problem).solve(core), Infeasible)
            for less in itertools.combinations(core, len(core) - 1):
                part = SatScheduler(problem).solve(less)
                assert np.flatnonzero(part.choice >= 0).tolist() == list(less)
                check_schedule(problem, part)


def test_what_a_scheduler_learns_of_a_subset_stays_true():
    rng = np.random.default_rng(5)
    for _ in range(25):
        problem = random_problem(rng, 6)
        with SatScheduler(problem) as used, SatScheduler(problem) as fresh:
            for _ in range(4):
                used.solve(rng.permutation(6)[: rng.integers(0, 6)])
            assert type(used.solve()) is type(fresh.solve())
            again, anew = used.minimise_cost(), fresh.minimise_cost()
            assert getattr(again, "cost", None) == getattr(anew, "cost", None)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_added_options_count_as_if_they_had_been_there(encoding):
    rng = np.random.default_rng(11)
    for _ in range(20):
        whole = random_problem(rng, 5)
        cut = ScheduleProblem([options[:1] for options in whole.options], whole.locations)
        with SatScheduler(cut, encoding) as scheduler, SatScheduler(whole, encoding) as fresh:
            scheduler.solve()
            for job, options in enumerate(whole.options):
                scheduler.add_options(job, options[1:])
            added, anew = scheduler.minimise_cost(), fresh.minimise_cost()
            assert getattr(added, "cost", None) == getattr(anew, "cost", None)
            if isinstance(added, Schedule):
                check_schedule(whole, added)
                layered = scheduler.minimise_layers()
                check_schedule(whole, layered)
                assert layered.n_layers == fresh.minimise_layers().n_layers
                assert isinstance(scheduler.solve(), Schedule)


def test_forbidden_options_are_not_chosen():
    rng = np.random.default_rng(13)
    for _ in range(20):
        problem = random_problem(rng, 5)
        banned = [job for job in range(5) if len(problem.options[job]) > 1]
        rest = ScheduleProblem([options[1:] or options for options in problem.options], problem.locations)
        cost, layers = brute_force(rest)
        with SatScheduler(problem) as scheduler:
            for job in banned:
                scheduler.forbid(job, 0)
            found, layered = scheduler.minimise_cost(), scheduler.minimise_layers()
            if cost is None:
                assert isinstance(found, Infeasible) and isinstance(layered, Infeasible)
                continue
            for answer in (found, layered):
                check_schedule(problem, answer)
                assert all(answer.choice[job] != 0 for job in banned)
            assert (found.cost, layered.n_layers) == (cost, layers)


def test_cost_first_and_then_layers_of_the_options_chosen():
    for seed in range(5):
        problem = planted_problem(10, blockers=1.5, seed=seed)
        with SatScheduler(problem) as scheduler:
            both, cheapest = scheduler.minimise_cost_then_layers(), scheduler.minimise_cost()
        check_schedule(problem, both)
        assert both.cost == cheapest.cost
        fixed = ScheduleProblem([[problem.options[j][k]] for j, k in enumerate(both.choice)], problem.locations)
        assert both.n_layers == cpsat(fixed, "layers").n_layers


def test_a_time_limit_gives_the_best_so_far_and_a_bound():
    problem = planted_problem(200)
    with SatScheduler(problem) as scheduler:
        scheduler.solve()  # compiles what is compiled at its first use
        found = scheduler.minimise_cost(time_limit=1.0)
        assert isinstance(found, Unknown)
        check_schedule(problem, found.best)
        assert 0 < found.bound <= found.best.cost
        layers = scheduler.minimise_layers(time_limit=1.0)
        best = layers if isinstance(layers, Schedule) else layers.best
        check_schedule(problem, best)
        assert isinstance(layers, Schedule) or 1 <= layers.bound <= best.n_layers
        assert isinstance(scheduler.solve(), Schedule)  # an interruption does no harm
    assert isinstance(SatScheduler(problem, "binary").solve(time_limit=1e-4), Unknown)


def test_half_a_time_limit_makes_the_schedule_cheaper():
    problem = planted_problem(300)
    with SatScheduler(problem) as scheduler:
        any_cost, found = scheduler.solve().cost, scheduler.minimise_cost(time_limit=1.5)
    check_schedule(problem, found.best)
    assert found.best.cost < 0.9 * any_cost


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Option(-1), "whole number >= 0"),
        (lambda: Option(1.5), "whole number >= 0"),
        (lambda: ScheduleProblem([], []), "at least one job"),
        (lambda: ScheduleProblem([[Option(1, {0})]], []), "names location 0; there are 0"),
        (lambda: ScheduleProblem([[Option(1)]], [Location(None, 3)]), "names job 3"),
        (lambda: ScheduleProblem([[Option(1, {0})]], [Location(None, 0)]), "that job itself uses"),
        (lambda: ScheduleProblem([[Option(1)]], [Location(0, 0)]), "entered and left by the same job"),
        (lambda: SatScheduler(problem_of(2, {}), "magic"), "unknown encoding 'magic'; there are: lazy"),
        (lambda: SatScheduler(problem_of(2, {}), solver="magic"), "SolverNames are: .*cadical153"),
        (lambda: SatScheduler(problem_of(2, {}), solver="kissat404"), "takes neither assumptions"),
        (lambda: SatScheduler(problem_of(2, {}), symmetry=("S9",)), "symmetry must be some of"),
        (lambda: SatScheduler(problem_of(2, {}), hint=[1.0]), "hint must be 2 finite numbers"),
        (lambda: SatScheduler(problem_of(70, {}), "transitive"), "at most 60 jobs, got 70"),
        (lambda: SatScheduler(problem_of(2, {})).solve([5]), "the jobs are 0..1"),
        (lambda: SatScheduler(problem_of(2, {})).solve(time_limit=0), "positive number of seconds"),
        (lambda: SatScheduler(problem_of(2, {})).add_options(0, [Option(1, {0})]), "that job itself uses"),
        (lambda: SatScheduler(problem_of(2, {})).forbid(0, 4), "has options 0..0, got 4"),
        (lambda: SatScheduler(problem_of(2, {})).minimise_layers(upper=0), "upper must be"),
        (lambda: SatScheduler(problem_of(2, {})).minimise_layers(choice=[0]), "for each of 2 jobs"),
        (lambda: SatScheduler(problem_of(2, {})).explain(), "nothing to explain"),
        (lambda: planted_problem(0), "needs n >= 1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("solver", ["cadical195", "glucose4", "maplechrono", "minisat22", "lingeling"])
def test_other_solvers_will_do(solver):
    for time_limit in (None, 10.0):
        problem = planted_problem(20)
        with SatScheduler(problem, solver=solver) as scheduler:
            check_schedule(problem, scheduler.solve(time_limit=time_limit))
            assert scheduler.minimise_layers(time_limit=time_limit).optimal


def test_what_is_no_problem_is_refused():
    with pytest.raises(TypeError, match="must be a ScheduleProblem, got list"):
        SatScheduler([])
