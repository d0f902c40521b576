"""From people to calibrated groups and back to decisions; baselines against brute force, linear programmes and fairlearn."""

import itertools

import numpy as np
import pytest
from fairlearn.postprocessing import ThresholdOptimizer
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError

from components.fairness.calibration import GroupBinCalibrator
from components.fairness.decision_rules import group_rates, rate_gap
from components.fairness.group_baselines import (
    demographic_parity,
    equalised_odds,
    expected_loss,
    matched_thresholds,
    single_threshold,
)
from components.fairness.group_scores import GroupScores
from components.fairness.sufficient_classifier import SufficientClassifier


def people(count=4000, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.where(rng.random(count) < 0.6, "a", "b")
    scores = rng.integers(1, 8, count).astype(float)
    chance = np.where(groups == "a", 0.1 + 0.11 * scores, 0.05 + 0.1 * scores)
    return scores, (rng.random(count) < chance).astype(int), groups


def test_calibration_is_exact_on_its_people():
    scores, y, groups = people()
    for method in ("identity", "quantile", "isotonic"):
        fitted = GroupBinCalibrator(n_bins=4, min_count=30, method=method).fit(scores, y, groups)
        calibrated = fitted.transform(scores, groups)
        for label in "ab":
            for level in np.unique(calibrated[groups == label]):
                chosen = (groups == label) & (calibrated == level)
                assert y[chosen].mean() == pytest.approx(level) and chosen.sum() >= 30
        for group, label in zip(fitted.group_scores(), "ab", strict=True):
            assert group.base_rate == pytest.approx(y[groups == label].mean()) and group.weight == (groups == label).sum()


def test_cells_follow_their_method():
    scores, y, groups = people()
    identity = GroupBinCalibrator(min_count=1, method="identity").fit(scores, y, groups)
    assert len(identity.levels_["a"]) == 7 and identity.edges_["a"].tolist() == [2, 3, 4, 5, 6, 7]
    rare = scores.copy()
    rare[:3], groups[:3] = 99, "a"
    merged = GroupBinCalibrator(min_count=10, method="identity").fit(rare, y, groups)
    assert merged.counts_["a"].min() >= 10 and merged.edges_["a"].max() <= 7
    steps = GroupBinCalibrator(min_count=1, method="isotonic").fit(scores, y, groups)
    assert (np.diff(steps.levels_["a"]) > 0).all()
    fine = np.random.default_rng(1).random(4000)
    quantile = GroupBinCalibrator(n_bins=10).fit(fine, y, groups)
    assert np.ptp(quantile.counts_["a"]) <= 12


def test_decisions_have_the_promised_rates():
    scores, y, groups = people(20_000)
    model = SufficientClassifier(cost_fp=1.2).fit(scores, y, groups)
    accept = model.predict_proba(scores, groups)
    for label in "ab":
        chosen = groups == label
        assert accept[chosen] @ y[chosen] / accept[chosen].sum() == pytest.approx(model.solution_.p, abs=1e-9)
        rejected = 1 - accept[chosen]
        assert rejected @ y[chosen] / rejected.sum() == pytest.approx(model.solution_.q, abs=1e-9)
    rng = np.random.RandomState(0)
    drawn = np.mean([model.predict(scores, groups, rng) for _ in range(50)], axis=0)
    hits = (drawn * y).sum() / drawn.sum()
    error = np.sqrt(hits * (1 - hits) / (50 * drawn.sum()))
    assert abs(hits - model.solution_.p) < 4 * error
    assert set(np.unique(model.predict(scores, groups, 3))) <= {0, 1}
    np.testing.assert_array_equal(model.predict(scores, groups, 3), model.predict(scores, groups, 3))
    assert clone(model).get_params()["cost_fp"] == 1.2


def test_people_that_do_not_fit_are_refused():
    scores, y, groups = people(200)
    model = SufficientClassifier()
    with pytest.raises(NotFittedError):
        model.predict(scores, groups)
    model.fit(scores, y, groups)
    with pytest.raises(KeyError, match="group 'c' was not seen"):
        model.predict(scores, np.full(200, "c"))
    for words, given in (
        ("at least two labels", (scores, y, np.full(200, "a"))),
        ("outcome 0 or 1", (scores, y + 1, groups)),
        ("must be finite", (scores * np.nan, y, groups)),
        ("one length", (scores[1:], y, groups)),
    ):
        with pytest.raises(ValueError, match=words):
            SufficientClassifier().fit(*given)
    for options, words in (({"n_bins": 1}, "n_bins must be at least 2"), ({"method": "platt"}, "method must be")):
        with pytest.raises(ValueError, match=words):
            GroupBinCalibrator(**options).fit(scores, y, groups)


def random_groups(seed):
    rng = np.random.default_rng(seed)
    return [GroupScores(rng.random(4), rng.dirichlet(2 * np.ones(4)), rng.uniform(0.5, 2)) for _ in range(2)]


def all_thresholds(groups, randomised=False):
    cuts = [[(np.arange(g.scores.size) < k).astype(float) for k in range(g.scores.size + 1)] for g in groups]
    return [list(pair) for pair in itertools.product(*cuts)]


@pytest.mark.parametrize("seed", range(10))
def test_baselines_are_the_best_of_their_kind(seed):
    groups, costs = random_groups(seed), (1.3, 0.8)
    least = min(expected_loss(groups, rules, *costs) for rules in all_thresholds(groups))
    assert expected_loss(groups, single_threshold(groups, *costs), *costs) == pytest.approx(least)
    inner = [r for r in all_thresholds(groups) if all(0 < x.sum() < x.size for x in r)]
    for match, names in (("ppv", ("ppv",)), ("both", ("ppv", "for"))):

        def gap(rules, names=names):
            table = group_rates(groups, rules)
            return sum(rate_gap(table[name]) for name in names)

        assert gap(matched_thresholds(groups, *costs, match=match)) <= min(map(gap, inner)) + 0.005 + 1e-12
    parity = demographic_parity(groups, *costs)
    assert rate_gap(group_rates(groups, parity)["alpha"]) < 1e-12
    rates = np.linspace(0, 1, 2001)
    weights = np.array([g.weight for g in groups]) / sum(g.weight for g in groups)
    hits = sum(w * g.upper(rates) for w, g in zip(weights, groups, strict=True))
    scan = (
        costs[1] * sum(w * g.base_rate for w, g in zip(weights, groups, strict=True))
        + costs[0] * (rates - hits)
        - costs[1] * hits
    )
    assert expected_loss(groups, parity, *costs) <= scan.min() + 1e-12
    table = group_rates(groups, equalised_odds(groups, *costs))
    assert rate_gap(table["tpr"]) < 1e-9 and rate_gap(table["fpr"]) < 1e-9


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose score is its input."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        p = np.asarray(X, dtype=float).ravel()
        return np.column_stack([1 - p, p])

    def predict(self, X):
        return (self.predict_proba(X)[:, 1] >= 0.5).astype(int)


def test_equalised_odds_beat_or_equal_fairlearn():
    """fairlearn searches a grid of 1,000 points on the hulls of the ROC curves: the exact programme is at least as good, and close."""
    scores, y, groups = people(3000)
    calibrator = GroupBinCalibrator(min_count=1, method="identity").fit(scores, y, groups)
    calibrated = calibrator.transform(scores, groups)
    held = calibrator.group_scores()
    ours = expected_loss(held, equalised_odds(held), 1, 1)
    peer = ThresholdOptimizer(
        estimator=Given().fit(calibrated[:, None], y),
        constraints="equalized_odds",
        objective="accuracy_score",
        prefit=True,
        predict_method="predict_proba",
    )
    peer.fit(calibrated[:, None], y, sensitive_features=groups)
    accept = peer._pmf_predict(calibrated[:, None], sensitive_features=groups)[:, 1]
    theirs = np.mean(accept * (1 - y) + (1 - accept) * y)
    assert ours <= theirs + 1e-9 and theirs - ours < 2e-3


def test_groups_without_a_choice_are_named():
    one = [GroupScores([0.5], [1.0], 1), GroupScores([0.7, 0.2], [0.5, 0.5], 1)]
    with pytest.raises(ValueError, match="group 0 has one score"):
        matched_thresholds(one)
    with pytest.raises(ValueError, match="match must be"):
        matched_thresholds(random_groups(0), match="tpr")
    with pytest.raises(ValueError, match="people with Y = 1 and Y = 0"):
        equalised_odds([GroupScores([1.0], [1.0], 1), one[1]])
