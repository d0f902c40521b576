"""Binary features from a table: thresholds of numbers, levels of categories; and those of them that say most about the outcome.

A number becomes columns "x >= t" at quantiles of the training rows, a category a column per frequent level; a gap is a level of its
own. Columns that hold for too few or nearly all rows are left out, and so are copies and complements of earlier ones: they would
split the same rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

GAP = "(missing)"


class Column(NamedTuple):
    """One binary column: `source` at least `value` ("at_least"), or equal to it ("is")."""

    source: Hashable
    kind: str
    value: Any

    @property
    def name(self) -> str:
        if self.kind == "is":
            return f"{self.source} = {self.value}"
        return f"{self.source} >= {self.value:g}"


def _as_frame(X: Any) -> pd.DataFrame:
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
    if frame.ndim != 2 or frame.shape[1] == 0 or len(frame) == 0:
        raise ValueError(f"X must be a table with rows and columns, got shape {frame.shape}")
    return frame


class QuantileBinarizer(TransformerMixin, BaseEstimator):
    """Learns the columns on training rows.

    Parameters
    ----------
    n_thresholds : quantiles of a number that become thresholds, at least 1; default 8. Numbers with fewer values have one at each.
    max_categories : levels of a category with columns of their own, the most frequent; default 10.
    min_share : least share of rows on either side of a column, in [0, 0.5); default 0.01.

    Attributes: columns_ (list of `Column`), feature_names_in_.
    """

    def __init__(self, n_thresholds: int = 8, max_categories: int = 10, min_share: float = 0.01) -> None:
        self.n_thresholds = n_thresholds
        self.max_categories = max_categories
        self.min_share = min_share

    def fit(self, X: Any, y: Any = None) -> QuantileBinarizer:
        """X (n, columns), a data frame or an array of numbers; y is not used. Raises ValueError where no column is left."""
        if self.n_thresholds < 1 or self.max_categories < 1 or not 0 <= self.min_share < 0.5:
            raise ValueError(
                f"n_thresholds and max_categories must be at least 1 and min_share in [0, 0.5), "
                f"got {self.n_thresholds}, {self.max_categories}, {self.min_share}"
            )
        frame = _as_frame(X)
        self.feature_names_in_ = np.array(list(frame.columns), dtype=object)
        candidates = [column for name in frame.columns for column in self._of(frame[name], name)]
        seen: set[bytes] = set()
        self.columns_: list[Column] = []
        for column in candidates:
            held = _holds(frame, column)
            share = held.mean()
            if not max(self.min_share, 1 / len(held)) <= share <= 1 - max(self.min_share, 1 / len(held)):
                continue
            # A complement splits the same rows.
            key = np.packbits(held if held[0] else ~held).tobytes()
            if key not in seen:
                seen.add(key)
                self.columns_.append(column)
        if not self.columns_:
            raise ValueError("no column divides the rows: every feature is constant, or nearly so")
        return self

    def _of(self, values: pd.Series, name: Hashable) -> list[Column]:
        if pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values):
            levels = values.astype(object).where(values.notna(), GAP).map(str).value_counts(sort=False)
            order = sorted(levels.index, key=lambda level: (-levels[level], level))[: self.max_categories]
            return [Column(name, "is", level) for level in order]
        known = values.dropna().to_numpy(dtype=np.float64)
        found = [] if len(known) == len(values) else [Column(name, "is", GAP)]
        distinct = np.unique(known)
        cuts = (
            np.unique(np.quantile(known, np.arange(1, self.n_thresholds + 1) / (self.n_thresholds + 1), method="inverted_cdf"))
            if known.size
            else distinct
        )
        if len(distinct) <= self.n_thresholds + 1:
            cuts = distinct[1:]
        return [Column(name, "at_least", float(cut)) for cut in cuts if distinct.size and cut > distinct[0]] + found

    def transform(self, X: Any) -> np.ndarray:
        """(n, columns) bool. NotFittedError before `fit`; ValueError where X lacks a column."""
        check_is_fitted(self)
        frame = _as_frame(X)
        missing = [name for name in self.feature_names_in_ if name not in frame.columns]
        if missing:
            raise ValueError(f"X lacks the columns {', '.join(map(str, missing))}")
        return np.column_stack([_holds(frame, column) for column in self.columns_])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        check_is_fitted(self)
        return np.array([column.name for column in self.columns_], dtype=object)


def _holds(frame: pd.DataFrame, column: Column) -> np.ndarray:
    values = frame[column.source]
    if column.kind == "at_least":
        return (values >= column.value).fillna(False).to_numpy(dtype=bool)
    if column.value == GAP:
        return values.isna().to_numpy()
    return (values.astype(object).map(str) == column.value).to_numpy() & values.notna().to_numpy()


def screen(X: np.ndarray, y: np.ndarray, most: int) -> np.ndarray:
    """Positions of the `most` columns of X (n, p) bool with the largest chi-square against y (n,) bool, in their own order.

    Raises ValueError for most < 1."""
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    n, total1 = len(y), float(y.sum())
    held, hits = X.sum(0).astype(float), X[y.astype(bool)].sum(0).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = n * (hits * n - held * total1) ** 2 / (held * (n - held) * total1 * (n - total1))
    best = np.argsort(-np.nan_to_num(score, nan=-1.0), kind="stable")[:most]
    return np.sort(best)


def pairs_of(X: np.ndarray, names: list[str], min_share: float = 0.01) -> tuple[np.ndarray, list[str]]:
    """Conjunctions of two columns that hold for at least `min_share` of the rows, behind the columns themselves."""
    columns, labels = [*X.T], list(names)
    for i in range(X.shape[1]):
        for j in range(i + 1, X.shape[1]):
            both = X[:, i] & X[:, j]
            if min_share <= both.mean() <= 1 - min_share:
                columns.append(both)
                labels.append(f"{names[i]} and {names[j]}")
    return np.column_stack(columns), labels
