"""Exact optima under sufficiency: gold values, closed forms, linear programmes on random instances, symmetries."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from benchmarks.sufficiency import looped_optimum
from components.fairness.decision_rules import band_rule, group_rates, mixture_rule, rate_gap
from components.fairness.feasible_region import NoSufficientClassifier, feasible_region
from components.fairness.group_baselines import expected_loss
from components.fairness.group_scores import GroupScores
from components.fairness.sufficiency import decision_loss, separation_deviation, solve_sufficient

TWO = [GroupScores([0.8, 0.2], [0.5, 0.5], 1), GroupScores([0.7, 0.1], [0.5, 0.5], 1)]
THREE = [GroupScores([0.9, 0.5, 0.1], [0.3, 0.4, 0.3], 0.6), GroupScores([0.8, 0.4, 0.05], [0.25, 0.35, 0.4], 0.4)]


def random_groups(rng, most=4, levels=8):
    groups = []
    for _ in range(int(rng.integers(2, most + 1))):
        m = int(rng.integers(2, levels + 1))
        groups.append(GroupScores(rng.random(m), rng.dirichlet(np.ones(m)), rng.uniform(0.2, 2)))
    return groups


@st.composite
def problems(draw, most=3, levels=5):
    """Groups whose regions meet more often than not: scores that reach low and high."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = []
    for _ in range(draw(st.integers(2, most))):
        m = draw(st.integers(2, levels))
        scores = np.concatenate([[rng.uniform(0.7, 1), rng.uniform(0, 0.3)], rng.random(m - 2)])
        groups.append(GroupScores(scores, rng.dirichlet(2 * np.ones(m)), rng.uniform(0.2, 2)))
    return groups


def solved(groups, **options):
    try:
        return solve_sufficient(groups, **options)
    except NoSufficientClassifier:
        return None


def programme(groups, p, q, cost_fp=1.0, cost_fn=1.0):
    """The least loss with PPV p and FOR q in every group, over all rules, by scipy; None where there is none.

    PPV p: sum pi r (s - p) = 0. FOR q: sum pi (1 - r)(s - q) = 0. Both are linear in r."""
    weights = np.array([g.weight for g in groups])
    weights = weights / weights.sum()
    sizes = [g.scores.size for g in groups]
    starts = np.cumsum([0, *sizes])
    cost, rows, right, constant = [], np.zeros((2 * len(groups), starts[-1])), [], 0.0
    for a, (w, g) in enumerate(zip(weights, groups, strict=True)):
        cost.append(w * g.pmf * (cost_fp * (1 - g.scores) - cost_fn * g.scores))
        constant += w * cost_fn * g.base_rate
        rows[2 * a, starts[a] : starts[a + 1]] = g.pmf * (g.scores - p)
        rows[2 * a + 1, starts[a] : starts[a + 1]] = g.pmf * (g.scores - q)
        right += [0.0, float(g.pmf @ (g.scores - q))]
    found = linprog(np.concatenate(cost), A_eq=rows, b_eq=right, bounds=(0, 1), method="highs")
    return found.fun + constant if found.success else None


def test_two_scores_in_closed_form():
    found = solve_sufficient(TWO)
    assert (found.p, found.q, found.value) == pytest.approx((0.7, 0.2, 0.25))
    first, second = found.rules()
    np.testing.assert_allclose(first, [1, 0.2], atol=1e-12)
    np.testing.assert_allclose(second, [0.8, 0], atol=1e-12)


def test_three_scores_by_gold_values():
    for objective, value in (("loss", 0.2471100316183975), ("separation", 0.4144263290862820)):
        found = solve_sufficient(THREE, objective=objective)
        assert (found.p, found.q) == pytest.approx((0.6950937170641689, 0.1882396162691636), abs=1e-9)
        assert found.value == pytest.approx(value, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 1.0)]))
def test_the_optimum_is_that_of_the_linear_programme(groups, costs):
    """At the optimum's (p, q) the programme has the same loss, and no pair of a grid, vertices included, has less."""
    found = solved(groups, cost_fp=costs[0], cost_fn=costs[1])
    assume(found is not None)
    assert expected_loss(groups, found.rules(), *costs) == pytest.approx(found.value, abs=1e-9)
    if not found.degenerate:
        exact = programme(groups, found.p, found.q, *costs)
        assert exact is None or exact == pytest.approx(found.value, abs=1e-9)
    region = found.region
    for p in np.linspace(region.p_low, region.p_star, 12)[1:]:
        for q in np.linspace(float(region.curve(p)), region.q_top, 6)[:-1]:
            if p - q > 1e-6 and (other := programme(groups, p, q, *costs)) is not None:
                assert other >= found.value - 1e-9


@settings(max_examples=40, deadline=None)
@given(problems())
def test_what_is_feasible_is_what_the_linear_programme_finds(groups):
    try:
        region = feasible_region(groups)
    except NoSufficientClassifier:
        region = None
    rng = np.random.default_rng(0)
    rates = [g.base_rate for g in groups]
    for _ in range(15):
        p, q = rng.uniform(max(rates), 1), rng.uniform(0, min(rates))
        inside = region is not None and region.p_low < p < region.p_star and region.curve(p) <= q
        margin = (
            1.0
            if region is None
            else min(abs(p - region.p_star), abs(q - float(region.curve(np.clip(p, region.p_low, region.p_high)))))
        )
        if margin > 1e-6:
            assert (programme(groups, p, q) is not None) == inside


def test_least_false_omission_rates_by_bisection_of_programmes():
    rng = np.random.default_rng(1)
    for _ in range(20):
        group = random_groups(rng, 2)[0]
        p = rng.uniform(group.base_rate + 1e-3, group.scores[0] - 1e-3) if group.scores[0] - group.base_rate > 0.01 else None
        if p is None:
            continue
        low, high = 0.0, group.base_rate - 1e-9
        for _ in range(40):
            middle = (low + high) / 2
            rows = np.array([group.pmf * (group.scores - p), group.pmf * (group.scores - middle)])
            right = [0.0, float(group.pmf @ (group.scores - middle))]
            feasible = linprog(np.zeros(group.scores.size), A_eq=rows, b_eq=right, bounds=(0, 1), method="highs").success
            low, high = (low, middle) if feasible else (middle, high)
        assert float(group.q_min(p)) == pytest.approx(high, abs=1e-6)
        assert group.p_max(float(group.q_min(p))) == pytest.approx(p, abs=1e-7) or group.q_min(p) <= group.scores[-1] + 1e-12


@settings(max_examples=60, deadline=None)
@given(problems(4, 8), st.sampled_from(["loss", "separation", "separation_max"]), st.floats(0.3, 3))
def test_no_point_of_the_boundary_or_of_the_inside_is_better(groups, objective, cost):
    found = solved(groups, cost_fp=cost, objective=objective)
    assume(found is not None)
    value = decision_loss(groups, cost, 1.0) if objective == "loss" else separation_deviation(groups, objective != "separation")
    p = np.linspace(found.region.p_low, found.region.p_star, 400)
    low = np.minimum(found.region.curve(p), found.region.q_top)
    for share in (0.0, 0.01, 0.3, 1.0):
        q = low + share * (found.region.q_top - low)
        apart = p - q > 1e-9
        assert (value(p[apart], q[apart]) >= found.value - 1e-11).all()


@settings(max_examples=60, deadline=None)
@given(problems(4, 8))
def test_rates_of_both_styles_are_the_same_and_sufficient(groups):
    found = solved(groups)
    assume(found is not None and not found.degenerate)
    tables = [group_rates(groups, found.rules(style)) for style in ("mixture", "band")]
    for table in tables:
        np.testing.assert_allclose(table["ppv"], found.p, atol=1e-9)
        np.testing.assert_allclose(table["for"], found.q, atol=1e-9)
        np.testing.assert_allclose(table["alpha"], found.alpha, atol=1e-9)
    for rule in found.rules("band"):
        assert ((rule > 1e-12) & (rule < 1 - 1e-12)).sum() <= 2
    assert found.active  # at least one group is at its curve, or the corner of the region is the best
    deviation = separation_deviation(groups)(np.array([found.p]), np.array([found.q]))[0]
    assert deviation == pytest.approx(rate_gap(tables[0]["tpr"]) + rate_gap(tables[0]["fpr"]), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(problems(), st.floats(0.3, 3), st.floats(0.1, 9))
def test_symmetries(groups, cost, factor):
    found = solved(groups, cost_fp=cost)
    assume(found is not None)
    again = solve_sufficient(groups[::-1], cost_fp=cost)
    assert again.value == pytest.approx(found.value, abs=1e-10)
    scaled = solve_sufficient(groups, cost_fp=factor * cost, cost_fn=factor)
    assert scaled.value == pytest.approx(factor * found.value, rel=1e-9)
    split = [GroupScores([*g.scores, g.scores[0]], [g.pmf[0] / 2, *g.pmf[1:], g.pmf[0] / 2], g.weight) for g in groups]
    assert solve_sufficient(split, cost_fp=cost).value == pytest.approx(found.value, abs=1e-10)
    flipped = [GroupScores(1 - g.scores, g.pmf, g.weight) for g in groups]
    mirror = solve_sufficient(flipped, cost_fp=1.0, cost_fn=cost)
    assert mirror.value == pytest.approx(found.value, abs=1e-9)
    light = [*groups, GroupScores(*_jittered(groups[0]), 1e-12)]
    if (more := solved(light, cost_fp=cost)) is not None:
        assert more.value >= found.value - 1e-9  # one more group only takes pairs away


def _jittered(group):
    return np.clip(group.scores * 0.9 + 0.02, 0, 1), group.pmf


def test_copies_of_one_group_cost_nothing():
    group = THREE[0]
    found = solve_sufficient([group, GroupScores(group.scores, group.pmf, 3.0)])
    threshold = [(group.scores >= 0.5).astype(float)] * 2
    assert found.value == pytest.approx(expected_loss([group, group], threshold, 1, 1), abs=1e-12)


def test_separation_holds_too_for_equal_base_rates_alone():
    same = [GroupScores([0.9, 0.1], [0.5, 0.5], 1), GroupScores([0.8, 0.2], [0.5, 0.5], 1)]
    assert solve_sufficient(same, objective="separation").value == pytest.approx(0, abs=1e-12)
    assert solve_sufficient(TWO, objective="separation").value > 0.01


def test_an_objective_of_ones_own():
    named = solve_sufficient(THREE)
    given = solve_sufficient(THREE, objective=decision_loss(THREE, 1.0, 1.0))
    assert given.value == pytest.approx(named.value, abs=1e-8)
    inner = solve_sufficient(THREE, objective=lambda p, q: (p - 0.68) ** 2 + (q - 0.27) ** 2)
    assert (inner.p, inner.q, inner.value) == pytest.approx((0.68, 0.27, 0.0), abs=1e-5)
    with pytest.raises(ValueError, match="must give a finite number"):
        solve_sufficient(THREE, objective=lambda p, q: p * np.nan)


def test_edges_where_a_rate_is_undefined():
    """The first group selected whole: with its FOR dropped the second group can have a lower one."""
    groups = [GroupScores([0.9, 0.6], [0.5, 0.5], 1), GroupScores([0.95, 0.05], [0.5, 0.5], 1)]
    closed, allowed = (solved(groups, cost_fp=0.1, degenerate=way) for way in ("closure", "allow"))
    assert (closed is None and allowed is None) or allowed.value <= closed.value + 1e-12
    for seed in range(200):
        made = random_groups(np.random.default_rng(seed), 3, 4)
        first, second = solved(made, cost_fp=0.3), solved(made, cost_fp=0.3, degenerate="allow")
        if first is not None and second is not None and second.value < first.value - 1e-9:
            assert second.degenerate
            table = group_rates(made, second.rules())
            assert rate_gap(table["ppv"]) < 1e-9 and rate_gap(table["for"]) < 1e-9  # where they are defined
            break
    else:
        pytest.fail("no random problem had a better degenerate decision")


def test_rules_by_hand():
    group = GroupScores([0.9, 0.5, 0.1], [0.3, 0.4, 0.3], 1)
    np.testing.assert_allclose(mixture_rule(group, 0.5, float(group.upper(0.5))), [1, 0.5, 0], atol=1e-12)
    np.testing.assert_allclose(mixture_rule(group, 0.5, 0.5 * group.base_rate), [0.5] * 3, atol=1e-12)
    band = band_rule(group, 0.5, 0.25)
    assert group.pmf @ band == pytest.approx(0.5) and (group.pmf * group.scores) @ band == pytest.approx(0.25)


def test_nothing_feasible_is_said_with_the_bounds():
    apart = [GroupScores([0.4, 0.1], [0.5, 0.5], 1), GroupScores([0.95, 0.5], [0.5, 0.5], 1)]
    with pytest.raises(NoSufficientClassifier, match=r"no PPV is possible.*p_low = 0.725.*p_high = 0.4.*q_top = 0.25"):
        solve_sufficient(apart)
    with pytest.raises(NoSufficientClassifier, match="no FOR is possible"):
        solve_sufficient([GroupScores([0.9, 0.6], [0.5, 0.5], 1), GroupScores([0.8, 0.1], [0.5, 0.5], 1)])
    alike = [GroupScores([0.3], [1.0], 1), GroupScores([0.3], [1.0], 1)]
    with pytest.raises(NoSufficientClassifier, match="the decision would say nothing"):
        solve_sufficient(alike)


def test_bad_input_is_named():
    for error, words, call in (
        (ValueError, r"probabilities in \[0, 1\]", lambda: GroupScores([1.2], [1.0], 1)),
        (ValueError, "without NaN", lambda: GroupScores([np.nan], [1.0], 1)),
        (ValueError, "sum to 1", lambda: GroupScores([0.2, 0.4], [0.5, 0.6], 1)),
        (ValueError, "weight must be a positive", lambda: GroupScores([0.2], [1.0], 0)),
        (ValueError, "one length", lambda: GroupScores([], [], 1)),
        (ValueError, "at least two are needed", lambda: solve_sufficient(TWO[:1])),
        (TypeError, "sequence of GroupScores", lambda: solve_sufficient([TWO[0], "x"])),
        (ValueError, "cost_fp must be a positive", lambda: solve_sufficient(TWO, cost_fp=0.0)),
        (ValueError, "objective must be", lambda: solve_sufficient(TWO, objective="accuracy")),
        (ValueError, "degenerate must be", lambda: solve_sufficient(TWO, degenerate="never")),
        (ValueError, "style must be", lambda: solve_sufficient(TWO).rules("coin")),
        (ValueError, "is at least the least score", lambda: TWO[0].p_max(0.1)),
    ):
        with pytest.raises(error, match=words):
            call()
    certain = [GroupScores([1.0], [1.0], 1), GroupScores([1.0], [1.0], 1)]
    with pytest.raises(ValueError, match="a base rate is 0 or 1"):
        separation_deviation(certain)


def test_order_of_groups_and_pairs_of_them():
    """Adding groups one by one never lowers the loss."""
    rng = np.random.default_rng(5)
    groups = [
        GroupScores([rng.uniform(0.8, 1), *rng.random(3), rng.uniform(0, 0.2)], rng.dirichlet(3 * np.ones(5)), 1.0)
        for _ in range(4)
    ]
    for size in (2, 3):
        for subset in itertools.combinations(groups, size):
            for extra in groups:
                if extra not in subset:
                    a, b = feasible_region(subset), solved([*subset, extra])
                    assert b is None or (b.region.p_low >= a.p_low - 1e-12 and b.region.p_star <= a.p_star + 1e-12)


@settings(max_examples=60, deadline=None)
@given(problems(4, 8), st.floats(0.3, 3))
def test_a_list_of_candidates_in_loops_finds_the_same(groups, cost):
    found = solved(groups, cost_fp=cost)
    assume(found is not None)
    assert looped_optimum(groups, cost) == pytest.approx(found.value, abs=1e-10)
