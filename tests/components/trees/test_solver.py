"""Exact search and the whole set of near-optimal trees, against plain enumeration of all trees and an independent library."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.datasets.tabular import compas
from components.trees.brute_force import all_trees, objective
from components.trees.frontier import SearchBudgetExceeded
from components.trees.solver import ALL_BOUNDS, FallingTreeSolver
from components.trees.tree import (
    Leaf,
    Split,
    branchings,
    depth,
    from_dict,
    is_falling,
    leaf_count,
    leaves,
    route,
    to_dict,
    to_text,
)

COMPAS = Path(__file__).resolve().parents[3] / "data/compas"


def random_problem(seed, n=None, p=3):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 61)) if n is None else n
    X = rng.random((n, p)) < rng.uniform(0.2, 0.8, p)
    y = rng.random(n) < 0.2 + 0.6 * X[:, 0] * rng.random()
    y[:2] = True, False
    return X, y


def admissible(tree, order, branching):
    return is_falling(tree, order) and (branching is None or branchings(tree) <= branching)


@st.composite
def problems(draw):
    seed = draw(st.integers(0, 10**6))
    p, deep = draw(st.sampled_from([(3, 3), (4, 2), (3, 2)]))
    options = {
        "depth": deep,
        "branching": draw(st.sampled_from([0, 1, 2, None])),
        "lam": draw(st.sampled_from([0.0, 0.01, 0.03])),
        "loss": draw(st.sampled_from(["brier", "zero_one"])),
        "omega": draw(st.sampled_from([1.0, 2.0])),
        "min_leaf": draw(st.integers(1, 3)),
        "order": draw(st.sampled_from(["path", "depth", None])),
    }
    return (*random_problem(seed, p=p), options)


def enumerated(X, y, options):
    """All admissible trees with their objectives, by plain recursion."""
    found = {}
    for tree in all_trees(X, y, options["depth"], options["min_leaf"]):
        if admissible(tree, options["order"], options["branching"]):
            found[tree] = objective(tree, X, y, loss=options["loss"], omega=options["omega"], lam=options["lam"])
    return found


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["numba", "python"]))
def test_optimum_and_set_are_those_of_plain_enumeration(problem, backend):
    X, y, options = problem
    every = enumerated(X, y, options)
    best = min(every.values())
    solver = FallingTreeSolver(X, y, backend=backend, **options)
    assert solver.optimum() == pytest.approx(best, abs=1e-9)
    theta = 1.2 * best + 0.01
    wanted = {tree for tree, cost in every.items() if cost <= theta + 1e-12}
    found = list(solver.enumerate(theta))
    assert len(found) == len({tree for _, tree in found})  # no duplicates
    near = {tree for tree, cost in every.items() if abs(cost - theta) < 1e-9}
    assert {tree for _, tree in found} - near == wanted - near
    costs = [cost for cost, _ in found]
    assert costs == sorted(costs)
    for cost, tree in found:
        assert cost == pytest.approx(every[tree], abs=1e-9)
    assert solver.count(theta) == len(found)


@settings(max_examples=25, deadline=None)
@given(problems(), st.data())
def test_bounds_lose_nothing(problem, data):
    """Each subset of the bounds gives the same optimum and set."""
    X, y, options = problem
    whole = FallingTreeSolver(X, y, bounds=ALL_BOUNDS, **options)
    theta = whole.threshold(0.1) + 0.002
    chosen = data.draw(st.sets(st.sampled_from(sorted(ALL_BOUNDS))))
    some = FallingTreeSolver(X, y, bounds=chosen, **options)
    assert some.optimum() == pytest.approx(whole.optimum(), abs=1e-12)
    assert list(some.enumerate(theta)) == list(whole.enumerate(theta))


@settings(max_examples=25, deadline=None)
@given(problems())
def test_both_backends_do_the_same_work(problem):
    X, y, options = problem
    made = [FallingTreeSolver(X, y, backend=backend, **options) for backend in ("numba", "python")]
    theta = made[0].threshold(0.15) + 0.001
    results = [(solver.optimum(), list(solver.enumerate(theta)), solver.frontier()) for solver in made]
    assert results[0] == results[1]
    assert made[0].stats == made[1].stats


def test_bounds_that_are_in_use():
    X, y = random_problem(2)
    assert FallingTreeSolver(X, y, branching=0).bounds == ALL_BOUNDS
    assert FallingTreeSolver(X, y, branching=1).bounds == FallingTreeSolver(X, y, branching=None).bounds < ALL_BOUNDS
    assert FallingTreeSolver(X, y, bounds=()).bounds == frozenset()


def test_frontier_answers_every_cap():
    X, y = random_problem(3, n=60)
    options = {"depth": 2, "branching": None, "lam": 0.01, "loss": "brier", "omega": 1.0, "min_leaf": 1, "order": "path"}
    every = enumerated(X, y, options)
    pairs = FallingTreeSolver(X, y, **options).frontier()
    for cap in np.linspace(0.05, 1, 40):
        below = [
            c for tree, c in every.items() if isinstance(tree, Split) and max(leaf.risk for leaf, _ in leaves(tree)) <= cap
        ]
        ours = [cost for risk, cost in pairs if risk <= cap]
        assert bool(ours) == bool(below)
        if ours:
            assert ours[-1] == pytest.approx(min(below), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(problems())
def test_lists_are_in_trees_and_trees_grow_with_their_budget(problem):
    X, y, options = problem
    optima = [FallingTreeSolver(X, y, **options | {"branching": b}).optimum() for b in (0, 1, 2, None)]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(optima))
    theta = 1.1 * optima[0] + 0.01
    sets = [{tree for _, tree in FallingTreeSolver(X, y, **options | {"branching": b}).enumerate(theta)} for b in (0, 1, None)]
    assert sets[0] <= sets[1] <= sets[2]
    assert sets[0] == {tree for tree in sets[2] if branchings(tree) == 0}


def test_invariances():
    X, y = random_problem(5, n=50)
    options = {"depth": 2, "branching": 1, "lam": 0.01, "min_leaf": 2}
    base = FallingTreeSolver(X, y, **options)
    theta = base.threshold(0.2)
    order = [2, 0, 1]
    again = FallingTreeSolver(X[:, order], y, **options)
    renamed = {rename(tree, order) for _, tree in again.enumerate(theta)}
    assert renamed == {tree for _, tree in base.enumerate(theta)}
    doubled = FallingTreeSolver(np.repeat(X, 2, 0), np.repeat(y, 2), **options | {"min_leaf": 4})
    assert doubled.optimum() == pytest.approx(base.optimum(), abs=1e-9)
    flipped = X.copy()
    flipped[:, 0] = ~flipped[:, 0]
    mirror = FallingTreeSolver(flipped, y, **options)
    assert {mirrored(tree, 0) for _, tree in mirror.enumerate(theta)} == {tree for _, tree in base.enumerate(theta)}


def rename(tree, order):
    return tree if isinstance(tree, Leaf) else Split(order[tree.feature], rename(tree.zero, order), rename(tree.one, order))


def mirrored(tree, feature):
    if isinstance(tree, Leaf):
        return tree
    zero, one = mirrored(tree.zero, feature), mirrored(tree.one, feature)
    return Split(tree.feature, one, zero) if tree.feature == feature else Split(tree.feature, zero, one)


def test_limits():
    X, y = random_problem(7, n=60)
    alone = FallingTreeSolver(X, y, depth=3, lam=10.0)
    assert [tree for _, tree in alone.enumerate(alone.optimum())] == [Leaf(60, int(y.sum()))]
    free = FallingTreeSolver(X, y, depth=3, branching=None, lam=0.0, min_leaf=1, order=None)
    _, group = np.unique(X, axis=0, return_inverse=True)
    ones, all_ = np.bincount(group, weights=y), np.bincount(group)
    assert free.optimum() == pytest.approx(np.sum(ones * (all_ - ones) / all_) / 60, abs=1e-9)


def test_a_planted_list_is_found():
    rng = np.random.default_rng(0)
    X = rng.random((2000, 6)) < 0.5
    y = np.where(X[:, 4], True, np.where(X[:, 1], rng.random(2000) < 0.6, np.where(X[:, 2], rng.random(2000) < 0.3, False)))
    solver = FallingTreeSolver(X, y, depth=3, branching=0, lam=0.002)
    tree = next(solver.enumerate(solver.optimum()))[1]
    assert (tree.feature, tree.zero.feature, tree.zero.zero.feature) == (4, 1, 2) and tree.one.risk == 1
    assert is_falling(tree) and depth(tree) == 3 and leaf_count(tree) == 4


@pytest.fixture(scope="module")
def eight():
    """Eight columns of 800 defendants, as the independent counts were made on."""
    if not COMPAS.is_dir():
        pytest.skip("the asset compas is not there")
    table = compas(COMPAS)
    age, priors = table["age"], table["priors_count"]
    columns = [
        age < 21,
        age < 23,
        age < 26,
        priors >= 1,
        priors >= 2,
        priors >= 4,
        table["sex"] == "Male",
        table["c_charge_degree"] == "F",
    ]
    rows = np.random.default_rng(0).choice(6172, 800, replace=False)
    return np.column_stack(columns)[rows], table["two_year_recid"].to_numpy()[rows] == 1


def both_labels(tree):
    """Label flips: a tree with either label at every leaf costs |n1 - n0| more per flipped leaf."""
    return [abs(2 * leaf.n1 - leaf.n) for leaf, _ in leaves(tree)]


def flipped_count(trees, budget, scale):
    """Trees with both labels allowed at every leaf within the budget, in whole mistakes."""
    total = 0
    for cost, tree in trees:
        room = budget - round(cost * scale)
        ways = {0: 1}
        for extra in both_labels(tree):
            ways_next = dict(ways)
            for used, count in ways.items():
                if used + extra <= room:
                    ways_next[used + extra] = ways_next.get(used + extra, 0) + count
            ways = ways_next
        total += sum(count for used, count in ways.items() if used <= room)
    return total


@pytest.mark.parametrize(
    ("deep", "lam", "epsilon", "structures", "labelled"),
    [(2, 0.01, 0.05, 87, 125), (3, 0.01, 0.05, 516, 638), (3, 0.005, 0.03, 1489, 2057)],
)
def test_ordinary_trees_are_as_many_as_an_independent_library_counts(eight, deep, lam, epsilon, structures, labelled):
    X, y = eight
    solver = FallingTreeSolver(X, y, depth=deep, branching=None, lam=lam, loss="zero_one", min_leaf=1, order=None)
    least = round(800 * solver.optimum())
    assert least == {0.01: 300, 0.005: 285}[lam] and 800 * solver.optimum() == pytest.approx(least)
    budget = round((1 + epsilon) * least)
    trees = list(solver.enumerate((budget + 0.25) / 800))
    assert len(trees) == structures
    assert flipped_count(trees, budget, 800) == labelled


@pytest.mark.parametrize(("deep", "lam", "epsilon"), [(2, 0.02, 0.1), (3, 0.01, 0.02)])
def test_arborenum_counts_the_same(eight, deep, lam, epsilon, capfd):
    """The library itself, asked for all ordinary trees with both labels allowed at every leaf."""
    arborenum = pytest.importorskip("arborenum")
    X, y = eight
    peer = arborenum.ArborEnum()
    exact = {"proxy_mode": "continuous", "lookahead_k": deep - 1, "key_mode": "exact"}
    peer.fit(X.astype(int), y.astype(int), lambda_reg=lam, depth_budget=deep, rashomon_mult=epsilon, **exact)
    solver = FallingTreeSolver(X, y, depth=deep, branching=None, lam=lam, loss="zero_one", min_leaf=1, order=None)
    least = round(800 * solver.optimum())
    assert least == peer.get_min_objective()
    budget = round((1 + epsilon) * least)
    assert flipped_count(solver.enumerate((budget + 0.25) / 800), budget, 800) == peer.count_trees()


def test_trees_as_text_and_dictionaries():
    tree = Split(1, Split(0, Leaf(10, 1), Leaf(5, 2)), Leaf(4, 3))
    assert from_dict(to_dict(tree)) == tree
    text = to_text(tree, ["old", "ill"])
    assert text.splitlines()[0] == "if ill: risk 0.750 (3 of 4)" and "if old: risk 0.400 (2 of 5)" in text
    routed = route(tree, np.array([[0, 1], [1, 0], [0, 0]]))
    assert routed.risk.tolist() == [0.75, 0.4, 0.1] and routed.depth.tolist() == [1, 2, 2]
    assert is_falling(tree) and not is_falling(Split(1, Split(0, Leaf(10, 1), Leaf(5, 5)), Leaf(4, 3)))
    with pytest.raises(ValueError, match="a node has the keys"):
        from_dict({"n": 3})
    with pytest.raises(ValueError, match="splits on column 1"):
        route(tree, np.zeros((2, 1)))


def test_a_search_that_grows_too_large_says_how_far_it_came():
    X, y = random_problem(11, n=60)
    with pytest.raises(SearchBudgetExceeded, match="raise the limit") as caught:
        FallingTreeSolver(X, y, depth=3, branching=None, lam=0.0, min_leaf=1, max_subproblems=3).optimum()
    assert caught.value.incumbent >= caught.value.lower_bound >= 0
    solver = FallingTreeSolver(X, y, depth=3, branching=None, lam=0.0, min_leaf=1, max_nodes=5)
    theta = 2 * solver.optimum() + 0.1
    with pytest.raises(SearchBudgetExceeded):
        solver.rashomon(theta)


def test_bad_input_is_named():
    X, y = random_problem(1)
    for words, change in (
        (r"X must hold 0 and 1 alone, but X\[0, 0\] is 2", {"X": X * 2 + 2}),
        ("at least one feature", {"X": X[:, :0]}),
        ("one label for each", {"y": y[1:]}),
        ("all labels are the same", {"y": np.ones_like(y)}),
        ("depth must be at least 1", {"depth": 0}),
        ("branching must be at least 0", {"branching": -1}),
        ("lam must be 0 or more", {"lam": -1.0}),
        ("omega must be positive", {"omega": 0.0}),
        ("min_leaf must be at least 1", {"min_leaf": 0}),
        ("room for two leaves", {"min_leaf": len(y)}),
        ("loss must be one of", {"loss": "entropy"}),
        ("order must be", {"order": "width"}),
        ("unknown bound 'magic'", {"bounds": {"magic"}}),
        ("backend must be one of", {"backend": "c"}),
    ):
        with pytest.raises(ValueError, match=words):
            FallingTreeSolver(**({"X": X, "y": y} | change))
    solver = FallingTreeSolver(X, y, min_leaf=2)
    with pytest.raises(ValueError, match="theta must be at least the optimum"):
        solver.count(solver.optimum() / 2)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        solver.rashomon(1.0, limit=0)
    with pytest.raises(ValueError, match="epsilon must be 0 or more"):
        solver.threshold(-0.1)
    with pytest.raises(TypeError, match="depth must be a whole number"):
        FallingTreeSolver(X, y, depth=2.5)
