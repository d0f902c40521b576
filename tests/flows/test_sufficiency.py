"""Sufficiency as a flow: rules, parameters, gold values of the populations, held-out rates by hand, same bytes twice."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from components.fairness.feasible_region import NoSufficientClassifier
from components.fairness.group_scores import GroupScores
from flows.sufficiency import paper
from flows.sufficiency.arms import DATASETS, METHODS
from flows.sufficiency.store import groups_of
from tasks.assets import check
from tasks.claims import verdicts
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module
from tests.projects import ROOT

SLUG = "sufficiency"
ASSETS = {name: ROOT / "data" / name for name in paper.assets}
SMALL = {"data": {"datasets": ["compas2", "fico2"]}}


def stage(name):
    return module(SLUG, name)


def params(name, profile, **changes):
    return stages.params(SLUG, name, profile, **changes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The stages twice, and what they returned."""
    for name in ASSETS:
        check(ROOT, name)  # says which command brings it
    folders = [tmp_path_factory.mktemp(SLUG) for _ in range(2)]
    return folders, [stages.run(SLUG, folder, changes=SMALL, assets=ASSETS) for folder in folders]


def test_the_same_bytes_twice(ran):
    (first, second), (one, two) = ran
    assert hashes(first) == hashes(second)
    assert one == two


def test_every_claim_has_its_number(ran):
    _, (metrics, _) = ran
    for claim in paper.claims:
        for method, metric in claim.cells:
            assert metric in metrics[method], (claim.id, method, metric)
    found = {v["id"]: v["verdict"] for v in verdicts(paper.claims, metrics)}
    assert found["C2 optimum"] == found["C2 sufficient"] == found["C4 least"] == "holds"


def test_populations_have_the_known_optima(ran):
    (folder, _), (metrics, _) = ran
    solutions = {(s["dataset"], s["method"]): s for s in json.loads((folder / "train/solutions.json").read_text())}
    compas = solutions["compas2", "sufficient"]
    assert (compas["p"], compas["q"]) == pytest.approx((0.6214219759926131, 0.3121902874132799), abs=1e-9)
    assert compas["value"] == pytest.approx(0.3461650157670687, abs=1e-12)
    assert compas["lam"] == pytest.approx([1, 0.9371680652], abs=1e-9)
    far = solutions["compas2", "separation"]
    assert (far["p"], far["q"], far["value"]) == pytest.approx((0.6110212166599714, 0.2980375009205022, 0.7736908763), abs=1e-9)
    credit = solutions["fico2", "sufficient"]
    assert (credit["p"], credit["q"]) == pytest.approx((0.9115968791500665, 0.2345939722156820), abs=1e-9)
    assert metrics["single threshold"]["compas2 1:1/gap of PPV"]["mean"] == pytest.approx(0.0327, abs=5e-5)
    assert metrics["single threshold"]["compas2 1:1/gap of FOR"]["mean"] == pytest.approx(0.0676, abs=5e-5)
    assert metrics["separation"]["compas2 1:1/accuracy"]["mean"] == pytest.approx(0.6519, abs=5e-5)


def test_populations_are_the_tables(ran):
    (folder, _), _ = ran
    table = pd.read_parquet(folder / "data/groups.parquet")
    groups, names = groups_of(table, "compas2")
    assert names == ["African-American", "Caucasian"] and [g.weight for g in groups] == [3175, 2103]
    samples = pd.read_parquet(folder / "data/samples.parquet")
    for name, group in zip(names, groups, strict=True):
        people = samples[samples["group"] == name]
        assert group.base_rate == pytest.approx(people["y"].mean())
    credit, _ = groups_of(table, "fico2")
    assert sum(g.scores.size for g in credit) > 300


def test_held_out_rates_by_hand():
    counts, positives = [np.array([10.0, 30.0]), np.array([20.0, 20.0])], [np.array([8.0, 6.0]), np.array([10.0, 2.0])]
    found = stage("train").on_others(counts, positives, [np.array([1.0, 0.5]), np.array([1.0, 0.0])], (2.0, 1.0))
    assert found["gap of PPV"] == pytest.approx(11 / 25 - 10 / 20, abs=1e-12) or found["gap of PPV"] == pytest.approx(
        10 / 20 - 11 / 25
    )
    assert found["gap of FOR"] == pytest.approx(3 / 15 - 2 / 20)
    false_positive, false_negative = (14 + 10) / 80, (3 + 2) / 80
    assert found["loss"] == pytest.approx(2 * false_positive + false_negative)
    assert found["accuracy"] == pytest.approx(1 - false_positive - false_negative)


def test_grid_keeps_what_all_groups_can_have():
    evaluate = stage("evaluate")
    groups = [GroupScores([0.8, 0.2], [0.5, 0.5], 1), GroupScores([0.7, 0.1], [0.5, 0.5], 1)]
    pairs = evaluate.run_job(evaluate.Job(groups, evaluate.Grid(p=12, q=8)))
    # Two scores: a rectangle, [largest base rate, least high score] x [largest low score, least base rate].
    assert len(pairs) and (pairs[:, 0] >= 0.5).all() and (pairs[:, 0] <= 0.7 + 1e-9).all()
    assert (pairs[:, 1] >= 0.2 - 1e-9).all() and (pairs[:, 1] <= 0.4).all()
    assert max(evaluate.excesses(groups, pairs, [(1.0, 1.0)])) <= 1e-12
    apart = [GroupScores([0.4, 0.1], [0.5, 0.5], 1), GroupScores([0.95, 0.5], [0.5, 0.5], 1)]
    assert evaluate.excesses(apart, np.array([[0.8, 0.1]]), [(1.0, 1.0)]) == [1.0]  # would have missed a feasible pair
    assert not len(evaluate.run_job(evaluate.Job(apart, evaluate.Grid(p=5, q=5))))


def test_what_is_not_feasible_is_a_row_and_no_decision():
    train = stage("train")
    apart = [GroupScores([0.4, 0.1], [0.5, 0.5], 1), GroupScores([0.95, 0.5], [0.5, 0.5], 1)]
    table = stage("store").rows_of("made", ["a", "b"], apart)
    facts, _, solutions = train.population_rows(train.Params(), table, "made")
    by = {row["method"]: row for row in facts}
    assert not by["sufficient"]["feasible"] and "no PPV is possible" in by["sufficient"]["why"]
    assert by["single threshold"]["feasible"] and not solutions and set(by) == set(METHODS)
    with pytest.raises(NoSufficientClassifier):
        train.decide(apart, "sufficient", (1.0, 1.0), train.Params())


def test_learned_scores_are_for_others_than_they_were_learned_on():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.random(300), "kind": rng.choice(["a", "b"], 300), "secret": rng.random(300)})
    table["y"] = (table["x"] + 0.1 * rng.standard_normal(300) > 0.5).astype(int)
    scores, others = stage("data").learned_scores(table, "y", ["secret"], 1 / 3, 0)
    assert len(others) == 200 == len(set(others)) and scores.shape == (200,)
    assert np.mean((scores > 0.5) == table["y"].to_numpy()[others]) > 0.8


@pytest.mark.parametrize("profile", ["cpu", "smoke", "paper"])
def test_parameters_of_every_profile(profile):
    assert set(params("data", profile).datasets) <= set(DATASETS)
    assert params("train", profile).degenerate == "closure"
    if profile == "paper":
        assert params("data", profile).datasets == list(DATASETS) and params("train", profile).splits == 500


def test_wrong_parameters_are_refused(tmp_path):
    for name, changes in (("train", {"degenerate": "never"}), ("data", {"bins": 1}), ("evaluate", {"close": 0})):
        with pytest.raises((ValidationError, UserError)):
            params(name, "cpu", **changes)
    with pytest.raises(UserError, match="no data set 'lsat'"):
        stage("data").data(params("data", "smoke", datasets=["lsat"]), ASSETS, tmp_path)
    train = stage("train")
    assert train.costs_of(train.Params(cost_ratio=3.0)) == [(3.0, 1.0)]
