"""The optimal decision under sufficiency as an estimator: raw scores and groups in, randomised decisions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from components.fairness.calibration import GroupBinCalibrator
from components.fairness.sufficiency import solve_sufficient


class SufficientClassifier(BaseEstimator):
    """Post-processing: calibrates raw scores per group, solves, and decides.

    Parameters
    ----------
    cost_fp, cost_fn, objective, degenerate : as for `solve_sufficient`.
    calibrator : a `GroupBinCalibrator`, which is cloned; default one cell for each raw score.
    style : "mixture" (default) or "band", how the rule of a group randomises.

    Attributes
    ----------
    calibrator_, solution_ : the fitted calibrator and the optimum on the calibration people.
    rules_ : {label: {calibrated score: probability of acceptance}}.

    On the calibration people PPV and FOR are the same in all groups exactly (in expectation over the decisions); on others up to
    sampling error. Source: Benger and Ligett, "Fair Decisions from Calibrated Scores".
    """

    def __init__(
        self,
        cost_fp: float = 1.0,
        cost_fn: float = 1.0,
        objective: Literal["loss", "separation", "separation_max"] | Callable[..., Any] = "loss",
        degenerate: Literal["closure", "allow"] = "closure",
        calibrator: GroupBinCalibrator | None = None,
        style: Literal["mixture", "band"] = "mixture",
    ) -> None:
        self.cost_fp = cost_fp
        self.cost_fn = cost_fn
        self.objective = objective
        self.degenerate = degenerate
        self.calibrator = calibrator
        self.style = style

    def fit(self, scores: ArrayLike, y: ArrayLike, groups: ArrayLike) -> SufficientClassifier:
        """scores (n,) raw, y (n,) 0 or 1, groups (n,) labels. Raises what the calibrator and `solve_sufficient` raise."""
        chosen = GroupBinCalibrator(min_count=1, method="identity") if self.calibrator is None else clone(self.calibrator)
        self.calibrator_ = chosen.fit(scores, y, groups)
        held = self.calibrator_.group_scores()
        self.solution_ = solve_sufficient(held, self.cost_fp, self.cost_fn, self.objective, self.degenerate)
        self.rules_ = {
            label: dict(zip(group.scores.tolist(), rule.tolist(), strict=True))
            for label, group, rule in zip(
                self.calibrator_.groups_.tolist(), held, self.solution_.rules(self.style), strict=True
            )
        }
        return self

    def predict_proba(self, scores: ArrayLike, groups: ArrayLike) -> np.ndarray:
        """(n,) probability of acceptance. KeyError for a group that was not seen, NotFittedError before `fit`."""
        check_is_fitted(self)
        calibrated = self.calibrator_.transform(scores, groups)
        pairs = zip(np.asarray(groups).tolist(), calibrated.tolist(), strict=True)
        return np.array([self.rules_[label][score] for label, score in pairs])

    def predict(
        self, scores: ArrayLike, groups: ArrayLike, random_state: int | np.random.RandomState | None = None
    ) -> np.ndarray:
        """(n,) decisions 0 or 1, drawn independently with `predict_proba`."""
        accept = self.predict_proba(scores, groups)
        return (check_random_state(random_state).uniform(size=accept.size) < accept).astype(np.int64)
