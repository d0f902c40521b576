"""Estimators, features, greedy lists and sparsity: by hand, by brute force, by scikit-learn's own checks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from components.trees.binarise import QuantileBinarizer, pairs_of, screen
from components.trees.falling_tree import FallingRuleListClassifier, FallingTreeClassifier
from components.trees.greedy import greedy_falling_list
from components.trees.metrics import top_sparsity
from components.trees.solver import FallingTreeSolver
from components.trees.tree import branchings, depth, is_falling, leaf_count, leaves, route


@parametrize_with_checks([FallingTreeClassifier(depth=2), FallingRuleListClassifier(depth=2)])
def test_scikit_learn(estimator, check):
    check(estimator)


def risky(n=400, p=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, p)) < 0.5
    y = rng.random(n) < np.where(X[:, 2], 0.85, np.where(X[:, 0] & X[:, 1], 0.5, 0.15))
    return X, y


def test_estimator_is_the_solver():
    X, y = risky()
    model = FallingTreeClassifier(depth=3, branching=1, epsilon=0.02, min_leaf=10).fit(X, y)
    solver = FallingTreeSolver(X, y, 3, 1, min_leaf=10)
    assert model.objective_ == solver.optimum()
    trees = [tree for _, tree in solver.enumerate(solver.threshold(0.02))]
    assert list(model.members()) == trees and model.n_members_ == len(trees) > 1
    assert model.tree_ == trees[0]
    risk = model.predict_proba(X)[:, 1]
    np.testing.assert_allclose(risk, route(trees[0], X).risk)
    np.testing.assert_array_equal(model.predict(X), model.classes_[(risk > 0.5).astype(int)])
    np.testing.assert_array_equal(model.conditions_used(X), route(trees[0], X).depth)
    assert "risk" in model.export_text([f"x{i}" for i in range(5)])


def test_lists_have_no_branchings():
    X, y = risky()
    model = FallingRuleListClassifier(depth=3, epsilon=0.05, min_leaf=10).fit(X, y)
    assert all(branchings(tree) == 0 and is_falling(tree) for tree in model.members())
    assert "branching" not in model.get_params() and clone(model).get_params()["epsilon"] == 0.05


def test_choosing_from_the_set():
    X, y = risky()
    model = FallingTreeClassifier(depth=3, epsilon=0.05, min_leaf=10).fit(X, y)
    trees = list(model.members())

    def sparsity(tree):
        routed = route(tree, X)
        return top_sparsity(routed.risk, routed.depth)

    assert sparsity(model.select("top_sparsity").tree_) == min(map(sparsity, trees))
    assert leaf_count(model.select("leaves").tree_) == min(map(leaf_count, trees))
    auc = [roc_auc_score(y, route(tree, X).risk) for tree in trees]
    assert roc_auc_score(y, route(model.select("auc").tree_, X).risk) == pytest.approx(max(auc))
    assert depth(model.select(depth).tree_) == min(map(depth, trees))
    assert model.select("cost").tree_ == trees[0] and model.select("leaves", within=1).tree_ == trees[0]
    ranges = model.importance_range()
    assert ranges.shape == (5, 3) and (ranges[:, 0] <= ranges[:, 1]).all() and (ranges[:, 1] <= ranges[:, 2]).all()
    assert ranges[2, 0] >= 1  # every near-optimal tree asks for the strong feature
    with pytest.raises(ValueError, match="by must be a function or one of"):
        model.select("beauty")
    with pytest.raises(ValueError, match="give epsilon"):
        next(FallingTreeClassifier(depth=2).fit(X, y).members())
    with pytest.raises(NotFittedError):
        FallingTreeClassifier().predict(X)
    with pytest.raises(ValueError, match="0 and 1 alone, as the features did"):
        model.predict(X + 1.5)


def test_columns_of_numbers_and_categories():
    frame = pd.DataFrame(
        {"age": [20, 30, 40, np.nan, 60, 70], "kind": ["a", "b", "a", None, "b", "a"], "same": 1, "flag": [True, False] * 3}
    )
    binarizer = QuantileBinarizer(n_thresholds=8, min_share=0.0).fit(frame)
    names = list(binarizer.get_feature_names_out())
    held = dict(zip(names, binarizer.transform(frame).T.tolist(), strict=True))
    assert held["age >= 40"] == [False, False, True, False, True, True]
    assert held["age = (missing)"] == [False, False, False, True, False, False]
    assert held["kind = a"] == [True, False, True, False, False, True]
    assert "kind = (missing)" not in held and not any(name.startswith("same") for name in names)  # a copy; a constant
    new = pd.DataFrame({"age": [45.0], "kind": ["c"], "same": [1], "flag": [False]})
    assert dict(zip(names, binarizer.transform(new)[0], strict=True))["kind = a"] == np.False_
    with pytest.raises(ValueError, match="X lacks the columns kind"):
        binarizer.transform(frame.drop(columns="kind"))
    with pytest.raises(ValueError, match="no column divides the rows"):
        QuantileBinarizer().fit(frame[["same"]])
    with pytest.raises(ValueError, match="n_thresholds and max_categories"):
        QuantileBinarizer(n_thresholds=0).fit(frame)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_columns_are_different_splits(seed, thresholds):
    rng = np.random.default_rng(seed)
    values = np.column_stack([rng.integers(0, 9, 80), rng.random(80), rng.integers(0, 2, 80)])
    columns = QuantileBinarizer(thresholds, min_share=0.05).fit(values).transform(values)
    share = columns.mean(0)
    assert ((share >= 0.05) & (share <= 0.95)).all()
    keys = {tuple(c if c[0] else ~c) for c in columns.T}
    assert len(keys) == columns.shape[1]


def test_screening_is_by_chi_square():
    from scipy.stats import chi2_contingency

    X, y = risky(seed=3)
    statistic = [chi2_contingency(pd.crosstab(column, y), correction=False).statistic for column in X.T]
    assert screen(X, y, 2).tolist() == sorted(np.argsort(statistic)[-2:].tolist())
    assert screen(X, y, 9).tolist() == [0, 1, 2, 3, 4]
    wide, names = pairs_of(X, list("abcde"))
    assert wide.shape[1] == 5 + 10 and names[5] == "a and b"
    np.testing.assert_array_equal(wide[:, 5], X[:, 0] & X[:, 1])
    with pytest.raises(ValueError, match="most must be at least 1"):
        screen(X, y, 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_greedy_lists_fall_and_start_with_the_highest_risk(seed, steps):
    X, y = risky(200, 4, seed)
    tree = greedy_falling_list(X, y, steps, min_leaf=5)
    assert is_falling(tree) and branchings(tree) == 0 and depth(tree) <= steps
    assert all(leaf.n >= 5 for leaf, _ in leaves(tree))
    if depth(tree):
        best = max(y[side].mean() for column in X.T for side in (column, ~column) if min(side.sum(), (~side).sum()) >= 5)
        assert max(leaf.risk for leaf, at in leaves(tree) if at == 1) == pytest.approx(best)
    solver = FallingTreeSolver(X, y, max(steps, 1), 0, lam=0.0, min_leaf=5)
    assert solver.optimum() <= np.mean((y - route(tree, X).risk) ** 2) + 1e-9


def test_sparsity_keeps_ties():
    risk, conditions = np.array([0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]), np.array([1, 2, 3, 9, 9, 9, 9, 9, 9, 9])
    assert top_sparsity(risk, conditions, 0.1) == 2.0 == top_sparsity(risk[::-1], conditions[::-1], 0.1)
    assert top_sparsity(risk, conditions, 1.0) == conditions.mean()
    for bad in (((risk, conditions[1:]), "one length"), ((risk[:0], risk[:0]), "not empty")):
        with pytest.raises(ValueError, match=bad[1]):
            top_sparsity(*bad[0])
    with pytest.raises(ValueError, match="share must lie in"):
        top_sparsity(risk, conditions, 0.0)
    with pytest.raises(ValueError, match="depth and min_leaf must be at least 1"):
        greedy_falling_list(np.eye(2, dtype=bool), np.array([True, False]), 0)
