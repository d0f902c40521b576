"""Group-calibrated scores from raw ones: cells of each group's raw scores, each with the mean outcome of its people.

A cell's score is the share of Y = 1 among the calibration people in it, so that calibration is exact on them; on other people it
holds up to sampling error. Nothing is smoothed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.utils.validation import check_is_fitted

from components.fairness.group_scores import GroupScores


def check_people(scores: ArrayLike, groups: ArrayLike, y: ArrayLike | None = None) -> tuple[np.ndarray, ...]:
    """Raw scores (n,) as float64, groups (n,), and outcomes as int64 where given.

    Raises ValueError for other shapes, no people, scores that are not finite, or outcomes other than 0 and 1."""
    scores, groups = np.asarray(scores, dtype=np.float64), np.asarray(groups)
    if scores.ndim != 1 or groups.shape != scores.shape or not scores.size:
        raise ValueError(f"scores and groups must be sequences of one length, not empty, got {scores.shape} and {groups.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    if y is None:
        return scores, groups
    y = np.asarray(y)
    if y.shape != scores.shape or not np.isin(y, (0, 1)).all():
        raise ValueError(f"y must hold an outcome 0 or 1 for each of {scores.size} people, got shape {y.shape}")
    return scores, groups, y.astype(np.int64)


class GroupBinCalibrator(BaseEstimator):
    """Cells and their outcomes, group by group.

    Parameters
    ----------
    n_bins : cells of method "quantile", at least 2; default 20.
    min_count : cells with fewer calibration people are joined with a neighbour, at least 1; default 20.
    method : "quantile" (default), cells of about equal size; "identity", a cell for each raw score; "isotonic", the steps of an
        isotonic regression.

    Attributes
    ----------
    groups_ : sorted group labels.   edges_ : {label: (cells - 1,) raw scores where a cell begins}.
    levels_ : {label: (cells,) calibrated score of each cell}.   counts_ : {label: (cells,) calibration people}.
    """

    def __init__(
        self, n_bins: int = 20, min_count: int = 20, method: Literal["quantile", "identity", "isotonic"] = "quantile"
    ) -> None:
        self.n_bins = n_bins
        self.min_count = min_count
        self.method = method

    def fit(self, scores: ArrayLike, y: ArrayLike, groups: ArrayLike) -> GroupBinCalibrator:
        """scores (n,) raw, y (n,) 0 or 1, groups (n,) labels. Raises ValueError for other input, or fewer than two groups."""
        if not isinstance(self.n_bins, int) or self.n_bins < 2 or not isinstance(self.min_count, int) or self.min_count < 1:
            raise ValueError(f"n_bins must be at least 2 and min_count at least 1, got {self.n_bins!r} and {self.min_count!r}")
        if self.method not in ("quantile", "identity", "isotonic"):
            raise ValueError(f"method must be 'quantile', 'identity' or 'isotonic', got {self.method!r}")
        scores, groups, y = check_people(scores, groups, y)
        self.groups_ = np.unique(groups)
        if len(self.groups_) < 2:
            raise ValueError(f"groups must hold at least two labels, got {self.groups_.tolist()}")
        self.edges_, self.levels_, self.counts_ = {}, {}, {}
        for label in self.groups_.tolist():
            chosen = groups == label
            edges, positives, counts = self._cells(scores[chosen], y[chosen])
            self.edges_[label], self.counts_[label] = edges, counts
            self.levels_[label] = positives / counts
        return self

    def _cells(self, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where cells begin, and positives and people in each."""
        values = np.unique(scores)
        if self.method == "identity":
            edges = values[1:]
        elif self.method == "quantile":
            edges = np.unique(np.quantile(scores, np.arange(1, self.n_bins) / self.n_bins, method="inverted_cdf"))
            edges = edges[edges > values[0]]
        else:
            steps = IsotonicRegression(out_of_bounds="clip").fit(scores, y).predict(values)
            edges = values[1:][np.diff(steps) > 0]
        cell = np.searchsorted(edges, scores, side="right")
        counts = np.bincount(cell, minlength=len(edges) + 1).astype(np.float64)
        positives = np.bincount(cell, weights=y, minlength=len(edges) + 1)
        while len(counts) > 1 and counts.min() < self.min_count:
            # The smallest cell goes to its smaller neighbour.
            place = int(counts.argmin())
            right = place == 0 or (place < len(counts) - 1 and counts[place + 1] < counts[place - 1])
            first = place if right else place - 1
            counts[first] += counts[first + 1]
            positives[first] += positives[first + 1]
            counts, positives, edges = (
                np.delete(x, at) for x, at in ((counts, first + 1), (positives, first + 1), (edges, first))
            )
        return edges, positives, counts

    def cells(self, scores: ArrayLike, groups: ArrayLike) -> np.ndarray:
        """(n,) int64, the cell of each person. KeyError for a group that was not seen, NotFittedError before `fit`."""
        check_is_fitted(self)
        scores, groups = check_people(scores, groups)
        found = np.empty(scores.size, dtype=np.int64)
        for label in np.unique(groups).tolist():
            chosen = groups == label
            found[chosen] = np.searchsorted(self._of(label, self.edges_), scores[chosen], side="right")
        return found

    def transform(self, scores: ArrayLike, groups: ArrayLike) -> np.ndarray:
        """(n,) calibrated scores. Errors as for `cells`."""
        cells, groups = self.cells(scores, groups), np.asarray(groups)
        found = np.empty(cells.size)
        for label in np.unique(groups).tolist():
            chosen = groups == label
            found[chosen] = self.levels_[label][cells[chosen]]
        return found

    def group_scores(self) -> list[GroupScores]:
        """The calibration people as groups of calibrated scores, in the order of `groups_`; cells of equal score are one."""
        check_is_fitted(self)
        made = []
        for label in self.groups_.tolist():
            counts = self.counts_[label]
            made.append(GroupScores(self.levels_[label], counts / counts.sum(), counts.sum()))
        return made

    @staticmethod
    def _of(label: Hashable, table: dict) -> np.ndarray:
        if label not in table:
            raise KeyError(f"group {label!r} was not seen in fit; known are {', '.join(map(repr, table))}")
        return table[label]
