"""Falling trees as a flow: rules, parameters, nothing learned on test rows, counts and comparisons by hand, same bytes twice."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from components.trees.tree import branchings, from_dict, is_falling
from flows.gravitree import paper
from flows.gravitree.arms import METHODS
from tasks.assets import check
from tasks.claims import verdicts
from tasks.errors import UserError
from tests.flows import stages
from tests.flows.stages import hashes, module
from tests.projects import ROOT

SLUG = "gravitree"
ASSETS = {name: ROOT / "data" / name for name in paper.assets}
SMALL = {"data": {"datasets": ["compas", "german"], "splits": 2}, "train": {"judged": 40}}


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
    assert found["C1 interpolation"] == found["C1 lists"] == found["C2 set"] == "holds"


def test_trees_are_of_their_kind(ran):
    (folder, _), _ = ran
    for drawn in json.loads((folder / "train/trees.json").read_text()).values():
        trees = {
            name: from_dict(drawn[name]) for name in ("falling", "sparsest falling", "rule list, same depth", "greedy list")
        }
        assert all(is_falling(tree) for tree in trees.values())
        assert branchings(trees["rule list, same depth"]) == branchings(trees["greedy list"]) == 0
        assert branchings(trees["falling"]) <= 1


def test_columns_are_learned_on_training_rows_alone(ran, tmp_path, monkeypatch):
    """With other values in the test rows the training rows have the same columns."""
    (folder, _), _ = ran
    data = stage("data")
    table, y = data.table_of("german", ASSETS, params("data", "smoke"))
    with np.load(folder / "data/german-0.npz") as stored:
        limited = len(stored["y"])
    assert limited == 400
    p = params("data", "smoke", datasets=["german"], splits=1, limit=None, screen=8)
    data.data(p, ASSETS, tmp_path)
    with np.load(tmp_path / "german-0.npz") as stored:
        X, test = stored["X"], stored["test"]
    changed = table.copy()
    changed.loc[test, "duration"] = 9999
    changed.loc[test, "status"] = "A99"
    monkeypatch.setattr(data, "table_of", lambda name, assets, p: (changed, y))
    other = tmp_path / "other"
    other.mkdir()
    data.data(p, ASSETS, other)
    with np.load(other / "german-0.npz") as stored:
        np.testing.assert_array_equal(stored["X"][~test], X[~test])
    assert json.loads((other / "columns.json").read_text()) == json.loads((tmp_path / "columns.json").read_text())


def test_differences_are_paired_by_split():
    evaluate = stage("evaluate")
    rows = [
        {"dataset": d, "split": s, "method": m, "auc": a}
        for d, s, m, a in (
            ("one", 0, "x", 0.7),
            ("one", 1, "x", 0.8),
            ("one", 0, "y", 0.6),
            ("one", 1, "y", 0.75),
            ("two", 0, "x", 0.5),
            ("two", 0, "y", 0.9),
        )
    ]
    metrics = {}
    evaluate.compare(metrics, pd.DataFrame(rows), "x", "y", "x - y", "auc")
    assert metrics["x - y"]["one/auc"]["values"] == pytest.approx([0.1, 0.05])
    assert metrics["x - y"]["all/auc"]["mean"] == pytest.approx((0.1 + 0.05 - 0.4) / 3)
    assert metrics["x - y"]["all/auc by data set"]["values"] == pytest.approx([0.075, -0.4])


def test_judging_by_hand():
    train = stage("train")
    found = train.judged(np.array([0.9, 0.9, 0.2, 0.2]), np.array([1, 0, 1, 0]), 0.5, np.array([1, 1, 2, 2]), 3)
    assert found["auc"] == 0.5 and found["balanced accuracy"] == 0.5
    assert found["brier"] == pytest.approx((0.01 + 0.81 + 0.64 + 0.04) / 4)
    assert found["top sparsity"] == 1 and found["conditions"] == 1.5 and found["leaves"] == 3


def test_a_search_that_missed_a_tree_would_be_seen(monkeypatch):
    evaluate = stage("evaluate")
    assert all(evaluate.same_sets(seed, 1) for seed in range(3))
    whole = evaluate.FallingTreeSolver.enumerate

    def most(self, theta, limit=None):
        trees = list(whole(self, theta, limit))
        return iter(trees[1:])

    monkeypatch.setattr(evaluate.FallingTreeSolver, "enumerate", most)
    assert not any(evaluate.same_sets(seed, 1) for seed in range(3))


def test_tables_of_ones_own(tmp_path):
    data = stage("data")
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.random(80), "y": rng.integers(0, 2, 80)}).to_csv(tmp_path / "mine.csv", index=False)
    out = tmp_path / "out"
    out.mkdir()
    data.data(params("data", "smoke", datasets=["mine"], path=str(tmp_path)), {}, out)
    with np.load(out / "mine-0.npz") as stored:
        assert stored["X"].shape[0] == 80 and stored["test"].sum() == 24
    pd.DataFrame({"x": [1, 2], "y": [1, 2]}).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(UserError, match="the last column of bad.csv, y, must hold 0 and 1"):
        data.data(params("data", "smoke", datasets=["bad"], path=str(tmp_path)), {}, out)
    with pytest.raises(UserError, match="no data set 'mimic'"):
        data.data(params("data", "smoke", datasets=["mimic"]), {}, out)


@pytest.mark.parametrize("profile", ["cpu", "smoke", "paper"])
def test_parameters_of_every_profile(profile):
    train = params("train", profile)
    assert train.epsilon == 0.01 and train.loss == "brier" and set(METHODS) >= {"falling", "rule list"}
    if profile == "paper":
        assert params("data", profile).screen == 50 and train.depth == 5 and 8 in train.branching


def test_wrong_parameters_are_refused():
    for name, changes in (
        ("train", {"order": "width"}),
        ("train", {"depth": 0}),
        ("data", {"test_share": 1.0}),
        ("evaluate", {"problems": 0}),
    ):
        with pytest.raises((ValidationError, UserError)):
            params(name, "cpu", **changes)
