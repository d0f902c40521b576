"""Corridors: blocking against dense samples of the path, string pulling, the grid's paths, candidates and their labels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from components.scheduling.clearance import arc_length, tighten
from components.scheduling.corridors import CorridorPlanner, blockers
from components.scheduling.hex_grid import HexGrid
from components.scheduling.problem import Location

W, C = 1.2, 0.9
coordinate = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 3))
polyline = st.lists(st.tuples(coordinate, coordinate), min_size=2, max_size=6).map(lambda p: np.array(p, dtype=np.float64))


def samples(path: np.ndarray, step: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """Arc lengths and points every `step` nm."""
    arc = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    s = np.unique(np.concatenate([np.arange(0, arc[-1], step), arc]))
    return s, np.stack([np.interp(s, arc, path[:, 0]), np.interp(s, arc, path[:, 1])], axis=-1)


def sampled_blockers(path, points, w, c, slack=0.0):
    """By definition, on samples; `slack` widens both distances and the inner part."""
    s, along = samples(path)
    distance = np.linalg.norm(along[:, None] - points[None], axis=-1)
    inner = (s > w - slack) & (s < s[-1] - w + slack)
    contact = distance.min(axis=0) < c + slack
    return contact | ((distance[inner].min(axis=0) < w + slack) if inner.any() else False)


@settings(max_examples=30, deadline=None)
@given(path=polyline, seed=st.integers(0, 10**6), c=st.sampled_from([0.0, 0.5, 0.9, 1.2]))
def test_blockers_are_those_of_dense_samples(path, seed, c):
    points = np.random.default_rng(seed).uniform(-5, 5, (60, 2))
    found = blockers(path, points, W, c)
    assert not (sampled_blockers(path, points, W, c) & ~found).any()
    assert not (found & ~sampled_blockers(path, points, W, c, slack=1.5e-3)).any()


def test_ends_are_exempt_from_the_clearance_but_not_from_contact():
    path = [[0, 0], [6, 0]]
    points = [[0, 1.0], [0, 0.8], [3, 1.1], [3, 1.21], [-1.0, 0], [1.0, 1.1], [1.3, 1.19], [6.5, 0.5]]
    np.testing.assert_array_equal(blockers(path, points, W, C), [False, True, True, False, False, True, True, True])
    # No part of a path of 2 w or less is further than w from both ends.
    np.testing.assert_array_equal(blockers([[0, 0], [2.4, 0]], [[1.2, 1.0], [1.2, 0.8]], W, C), [False, True])
    np.testing.assert_array_equal(blockers([[0, 0]], [[0.8, 0], [1.0, 0]], W, C), [True, False])
    assert blockers(path, np.zeros((0, 2)), W, C).shape == (0,)


@settings(max_examples=40, deadline=None)
@given(path=polyline, seed=st.integers(0, 10**6))
def test_a_tightened_path_is_blocked_by_no_further_point_and_not_longer(path, seed):
    points = np.random.default_rng(seed).uniform(-4, 4, (12, 2))
    before = blockers(path, points, W, C)
    tight = tighten(path, points, W, C)
    np.testing.assert_array_equal(tight[[0, -1]], path[[0, -1]])
    assert arc_length(tight)[-1] <= arc_length(path)[-1] + 1e-9
    assert not (blockers(tight, points, W, C) & ~before).any()
    if before.all():
        assert len(tight) == 2


def around_a_disc(distance: float, radius: float) -> float:
    """Length of the shortest way round a disc half-way between points at `distance` from its centre."""
    return 2 * math.sqrt(distance**2 - radius**2) + 2 * radius * math.asin(radius / distance)


def test_a_detour_round_one_obstacle_is_nearly_the_tangent_path():
    planner = CorridorPlanner([[-5, 0], [0, 0.01]], [[5, 0]], W, C, assignment=[0, -1])
    (best, *_) = planner.candidates(0)
    shortest = around_a_disc(5.0, W)
    assert shortest - 0.01 <= best.length <= 1.01 * shortest
    assert not best.blocked_by
    assert planner.rejected(0) == (frozenset({1}),)


def test_edges_near_a_point_are_those_that_it_blocks():
    grid = HexGrid(np.array([0.3, -0.2]), 4.0, 0.867)
    for point in np.random.default_rng(0).uniform(-3, 3, (5, 2)):
        found = set(grid.edges_near(point, W).tolist())
        for node, around in enumerate(grid.neighbours):
            for k, other in enumerate(around):
                if other >= 0:
                    close = blockers(grid.nodes[[node, other]], point[None], W, W)[0]
                    assert close == (12 * node + k in found)


def test_edges_from_a_point_share_it_among_their_nodes():
    grid = HexGrid(np.array([0.3, -0.2]), 4.0, 0.867)
    for point in np.random.default_rng(1).uniform(-3, 3, (5, 2)):
        near = np.linalg.norm(grid.nodes - point, axis=1) < W
        share = (near[:, None] * 0.5 + near[grid.neighbours] * 0.5) * (grid.neighbours >= 0)
        found = np.zeros(grid.n_edges)
        edges, found_share = grid.edges_from(point, W)
        found[edges] = found_share
        np.testing.assert_array_equal(found, share.ravel())


@pytest.mark.parametrize("seed", range(3))
def test_grid_paths_cost_what_dijkstra_says(seed):
    rng = np.random.default_rng(seed)
    grid = HexGrid(np.zeros(2), 8.0, 0.867)
    n = len(grid.nodes)
    step = np.linalg.norm(grid.nodes[grid.neighbours] - grid.nodes[:, None], axis=-1)[grid.neighbours >= 0]
    np.testing.assert_allclose(np.unique(step.round(6)), [0.867, round(0.867 * math.sqrt(3), 6)])
    penalty = np.zeros(grid.n_edges)
    for point in rng.uniform(-5, 5, (15, 2)):
        penalty[grid.edges_near(point, W)] += rng.choice([1.0, 8.0])
    start, goal = rng.uniform(-5, 5, (2, 2))
    node, k = np.nonzero(grid.neighbours >= 0)
    other = grid.neighbours[node, k]
    cost = np.linalg.norm(grid.nodes[node] - grid.nodes[other], axis=-1) * (1 + penalty[12 * node + k])
    ends = []
    for number, place in enumerate((start, goal)):
        distance = np.linalg.norm(grid.nodes - place, axis=-1)
        near = np.flatnonzero(distance <= 1.5 * 0.867)
        ends.append((np.full(len(near), n + number), near, distance[near]))
    rows = np.concatenate([node, ends[0][0], ends[1][1]])
    columns = np.concatenate([other, ends[0][1], ends[1][0]])
    graph = coo_array((np.concatenate([cost, ends[0][2], ends[1][2]]), (rows, columns)), shape=(n + 2, n + 2)).tocsr()
    least = dijkstra(graph, indices=n)[n + 1]

    path = grid.path(start, goal, penalty)
    index = [int(np.linalg.norm(grid.nodes - place, axis=-1).argmin()) for place in path[1:-1]]
    inside = sum(graph[a, b] for a, b in itertools.pairwise(index))
    found = inside + np.hypot(*(path[1] - path[0])) + np.hypot(*(path[-1] - path[-2]))
    # Ties are broken by up to 1e-4 per nm and nm.
    assert least - 1e-9 <= found <= least * 1.002
    np.testing.assert_array_equal(path[[0, -1]], [start, goal])


def instance(seed: int, n: int = 14, surplus: int = 0, side: float = 9.0) -> tuple[np.ndarray, np.ndarray]:
    """Crowded starts and targets, each set 1.3 nm apart."""
    rng = np.random.default_rng(seed)
    sets = []
    for count in (n + surplus, n):
        points: list[np.ndarray] = []
        while len(points) < count:
            place = rng.uniform(-side / 2, side / 2, 2)
            if all(np.hypot(*(place - other)) > 1.3 for other in points):
                points.append(place)
        sets.append(np.array(points))
    return sets[0], sets[1]


@pytest.mark.parametrize("seed", range(4))
def test_pre_and_post_are_those_who_block_before_and_after(seed):
    starts, targets = instance(seed, surplus=2)
    planner = CorridorPlanner(starts, targets, W, C)
    usable = 0
    for i in range(len(targets)):
        for candidate in planner.candidates(i):
            usable += 1
            np.testing.assert_array_equal(candidate.path[[0, -1]], [starts[i], targets[i]])
            assert candidate.length == pytest.approx(np.hypot(*np.diff(candidate.path, axis=0).T).sum())
            assert abs(candidate.length_pm - 1000 * candidate.length) <= 0.5 + 1e-6
            for points, found in ((starts, candidate.pre), (targets, candidate.post)):
                surely = set(np.flatnonzero(sampled_blockers(candidate.path, points, W, C))) - {i}
                perhaps = set(np.flatnonzero(sampled_blockers(candidate.path, points, W, C, slack=2e-3))) - {i}
                assert surely <= found <= perhaps
            assert not candidate.pre & candidate.post
            assert not any(m >= len(targets) for m in candidate.pre), "surplus molecules never leave"
        found = planner.candidates(i)
        for a in found:
            for b in found:
                assert a is b or not (a.length_pm <= b.length_pm and a.blocked_by <= b.blocked_by), "b is dominated"
    assert usable > len(targets)


@pytest.mark.parametrize("seed", range(3))
def test_labels_after_swaps_follow_the_present_assignment(seed):
    starts, targets = instance(seed, surplus=1)
    goal = np.array([*range(14), -1])
    planner = CorridorPlanner(starts, targets, W, C, assignment=goal)
    for i, j in ((0, 5), (3, 14), (5, 9), (0, 3), (0, 3)):
        planner.swap(i, j)
        goal[[i, j]] = goal[[j, i]]
    assert [planner.target(m) for m in range(15)] == list(goal)
    assert planner.jobs == tuple((m, 0) for m in range(15) if goal[m] >= 0)
    owner = np.argsort(goal)[1:]
    for m, leg in planner.jobs:
        for candidate in planner.candidates(m, leg):
            assert candidate.pre == set(np.flatnonzero(blockers(candidate.path, starts, W, C))) - {m}
            assert candidate.post == set(owner[blockers(candidate.path, targets, W, C)]) - {m}
            assert not candidate.pre & candidate.post and not candidate.pre & set(np.flatnonzero(goal < 0))
    # A swap finds what a planner that starts from the final assignment finds.
    fresh = CorridorPlanner(starts, targets, W, C, assignment=goal)
    for job in ((0, 0), (3, 0), (5, 0), (9, 0)):
        if job in fresh.jobs:
            assert {x.length_pm for x in fresh.candidates(*job)} & {x.length_pm for x in planner.candidates(*job)} or not (
                fresh.candidates(*job) or planner.candidates(*job)
            )


def test_a_swap_back_restores_the_candidates():
    starts, targets = instance(7)
    planner = CorridorPlanner(starts, targets, W, C)
    before = planner.problem()
    planner.swap(2, 8)
    assert planner.target(2) == 8 and planner.molecule_of(8) == 2
    assert planner.problem() != before
    planner.swap(8, 2)
    assert planner.problem() == before


def test_enriching_adds_usable_candidates_once():
    total = 0
    for seed in range(4):
        starts, targets = instance(seed, side=14.0)
        planner = CorridorPlanner(starts, targets, W, C)
        for m in range(14):
            for around in ({m}, set().union(*(x.pre | x.post for x in planner.candidates(m)))):
                before = planner.candidates(m)
                added = planner.enrich([m], around)
                assert added <= len(planner.candidates(m)) <= len(before) + added
                assert planner.enrich([m], around) == 0
                assert planner.candidates(m)[: len(before)] == () or planner.candidates(m)[0].length <= before[0].length
                total += added
    assert total > 3


def test_passing_by_given_sites_ignores_the_others():
    starts, targets = [[-5, 0], [0, 0.01], [0, 0.95]], [[5, 0], [0, 6], [0, -6]]
    planner = CorridorPlanner(starts, targets, W, C, lambdas=())
    assert len(planner.candidates(0)) == 1
    assert planner.pass_by(0, 0, [1])
    assert not planner.pass_by(0, 0, [1])
    (straight, detour) = planner.candidates(0)
    assert straight.pre == {1, 2} and 1 not in detour.pre
    assert around_a_disc(5.0, W) - 0.01 <= detour.length <= 1.01 * around_a_disc(5.0, W)


def test_a_free_straight_way_has_no_detours_and_none_are_made_without_penalties():
    planner = CorridorPlanner([[0, 0], [0, 5]], [[4, 0], [4, 5]], W, C)
    for m in range(2):
        (only,) = planner.candidates(m)
        assert len(only.path) == 2 and only.length == pytest.approx(4) and not only.blocked_by
    starts, targets = instance(1)
    straight = CorridorPlanner(starts, targets, W, C, lambdas=())
    assert all(len(x.path) == 2 for m in range(14) for x in straight.candidates(m))


def test_the_problem_names_who_enters_and_leaves_each_site():
    planner = CorridorPlanner([[0, 0], [3, 0], [9, 9]], [[3, 0.1], [6, 0]], W, C, lambdas=(), assignment=[0, 1, -1])
    problem = planner.problem()
    assert problem.locations == (Location(None, 0), Location(None, 1), Location(), Location(0, None), Location(1, None))
    (first,), (second,) = problem.options
    assert first.blocked_by == {1} and first.cost == 3002
    assert second.blocked_by == {3} and second.cost == 3000


def test_a_parked_molecule_moves_twice_in_order():
    planner = CorridorPlanner([[0, 0], [8, 0]], [[4, 0], [8, 4]], W, C)
    assert planner.park(0)
    assert planner.jobs == ((0, 0), (0, 1), (1, 0))
    assert np.hypot(*(planner.sites - planner.sites[4])[:4].T).min() >= W
    assert np.hypot(*planner.sites[4]) < 1.6
    problem = planner.problem()
    assert problem.locations[4] == Location(0, 1) and problem.locations[0] == Location(None, 0)
    assert all(0 in option.blocked_by for option in problem.options[1]), "the second move waits for the first"
    with pytest.raises(ValueError, match="parking site already"):
        planner.park(0)


def test_a_parking_site_blocks_the_corridors_found_before():
    starts, targets = instance(2, n=10)
    planner = CorridorPlanner(starts, targets, W, C)
    for m in (1, 4, 6):
        assert planner.park(m)
    seen = set()
    for m, leg in planner.jobs:
        route = planner.route(m)
        for candidate in planner.candidates(m, leg):
            blocking = set(np.flatnonzero(blockers(candidate.path, planner.sites, W, C))) - set(route)
            assert candidate.blocked_by == blocking | set(route[:leg])
            seen |= blocking
    assert seen & {20, 21, 22}, "some parking site has to be in somebody's way, or this test sees nothing"


def test_a_full_box_has_no_parking_site():
    planner = CorridorPlanner([[-0.5, 0], [0.6, 0]], [[0, 0.4]], 1.2, 0.9, box=2.2)
    assert not planner.park(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": 0.5}, "at least the contact distance"),
        ({"starts": [[0, 0], [0.5, 0]]}, "starts 0 and 1 are 0.5 nm apart"),
        ({"targets": [[2, 2], [2, 2.1]]}, "targets 0 and 1"),
        ({"targets": [[2, 2], [2, 4], [2, 6]]}, "3 targets but only 2 molecules"),
        ({"targets": [[np.nan, 2]]}, "finite"),
        ({"box": 4.0}, "target 1 at .* lies outside the box"),
        ({"box": -1.0}, "box"),
        ({"grid": 0.0}, "spacing"),
        ({"grid": 1e-6}, "coarser"),
        ({"lambdas": [(1, -1)]}, "pairs of penalties"),
        ({"lambdas": [(1, 1, 1)]}, "pairs of penalties"),
        ({"penalise": "corners"}, "penalise must be one of nodes, edges"),
        ({"assignment": [0, 0]}, "assignment must give"),
        ({"assignment": [0, -1]}, "assignment must give"),
        ({"assignment": [0.0, 1.0]}, "assignment must give"),
    ],
)
def test_a_planner_refuses(change, message):
    arguments = {"starts": [[0, 0], [2, 0]], "targets": [[0, 2], [2, 3]], "w": W, "c": C} | change
    with pytest.raises(ValueError, match=message):
        CorridorPlanner(**arguments)


def test_unknown_molecules_moves_and_shapes_are_refused():
    planner = CorridorPlanner([[0, 0], [2, 0]], [[0, 2]], W, C)
    for call in (
        planner.candidates,
        planner.target,
        planner.park,
        lambda m: planner.swap(0, m),
        lambda m: planner.enrich([m], []),
    ):
        with pytest.raises(ValueError, match="no molecule 2"):
            call(2)
    with pytest.raises(ValueError, match="swap with itself"):
        planner.swap(1, 1)
    with pytest.raises(ValueError, match="no move 0"):
        planner.candidates(1)
    with pytest.raises(ValueError, match="a path must have shape"):
        blockers([0, 1], [[0, 0]], W, C)
    with pytest.raises(ValueError, match="points must have shape"):
        blockers([[0, 1]], [0, 0], W, C)
    with pytest.raises(ValueError, match="finite"):
        blockers([[0, np.nan]], [[0, 0]], W, C)
    with pytest.raises(ValueError, match="clearance"):
        blockers([[0, 0]], [[0, 0]], math.inf, C)
