"""Falling trees as scikit-learn estimators: the optimal one, and all that are nearly as good to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from components.trees.binarise import QuantileBinarizer
from components.trees.metrics import top_sparsity
from components.trees.rashomon import Members
from components.trees.solver import FallingTreeSolver
from components.trees.tree import Tree, leaf_count, route, split_counts, to_text

Choice = Literal["cost", "top_sparsity", "auc", "leaves"] | Callable[[Tree], float]


class FallingTreeClassifier(ClassifierMixin, BaseEstimator):
    """The optimal falling tree, and with `epsilon` the set of all with at most (1 + epsilon) times its objective.

    Parameters
    ----------
    depth, branching, lam, loss, omega, order : as for `FallingTreeSolver`; defaults 3, 1, 0.001, "brier", 1, "path".
    min_leaf : rows of a leaf, a number of them or a share of all; default 0.01.
    epsilon : of the Rashomon set; None (default) keeps the optimum alone.
    tree_limit : the set's cheapest trees that are kept; default 20,000.
    n_thresholds : features that are not 0 and 1 become thresholds at so many quantiles; default 4.
    max_subproblems : beyond them SearchBudgetExceeded.

    Attributes
    ----------
    classes_ : the two labels, the second is what risks are about.   tree_ : the chosen tree.   objective_ : R*.
    binarizer_ : None where the features were binary.   rashomon_set_ : `Members`, None without epsilon.   n_members_ : their number
    before `tree_limit`.

    Source: "Rashomon Sets of Falling Trees" (GraviTree).
    """

    def __init__(
        self,
        depth: int = 3,
        branching: int | None = 1,
        lam: float = 0.001,
        loss: Literal["brier", "zero_one"] = "brier",
        omega: float = 1.0,
        min_leaf: float = 0.01,
        order: Literal["path", "depth"] | None = "path",
        epsilon: float | None = None,
        tree_limit: int = 20_000,
        n_thresholds: int = 4,
        max_subproblems: int = 20_000_000,
    ) -> None:
        self.depth = depth
        self.branching = branching
        self.lam = lam
        self.loss = loss
        self.omega = omega
        self.min_leaf = min_leaf
        self.order = order
        self.epsilon = epsilon
        self.tree_limit = tree_limit
        self.n_thresholds = n_thresholds
        self.max_subproblems = max_subproblems

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> FallingTreeClassifier:
        """X (n, p) of 0 and 1, or of numbers; y (n,) with two labels. Raises ValueError for other input, and what the solver raises."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is multiclass: {len(self.classes_)} labels."
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold two classes, but has only one class: {self.classes_.tolist()}")
        binary = bool(np.isin(X, (0, 1)).all())
        self.binarizer_ = None if binary else QuantileBinarizer(self.n_thresholds, min_share=0.0).fit(X)
        held = self._binary(X)
        rows = max(1, round(self.min_leaf * len(y))) if 0 < self.min_leaf < 1 else self.min_leaf
        self._solver = FallingTreeSolver(
            held,
            labels == 1,
            self.depth,
            self.branching,
            self.lam,
            self.loss,
            self.omega,
            rows if isinstance(rows, (int, np.integer)) else int(rows) if float(rows).is_integer() else rows,
            self.order,
            max_subproblems=self.max_subproblems,
        )
        self.objective_ = self._solver.optimum()
        self._X, self._y = held, labels == 1
        self.rashomon_set_: Members | None = None
        theta = self.objective_ if self.epsilon is None else self._solver.threshold(self.epsilon)
        found = self._solver.rashomon(theta, 1 if self.epsilon is None else self.tree_limit)
        self.tree_ = found.table.tree(int(found.node[0]))
        if self.epsilon is not None:
            self.rashomon_set_ = found
            self.n_members_ = self._solver.count(theta)
        return self

    def _binary(self, X: np.ndarray) -> np.ndarray:
        return X.astype(bool) if self.binarizer_ is None else self.binarizer_.transform(X)

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        if self.binarizer_ is None and not np.isin(X, (0, 1)).all():
            raise ValueError("X must hold 0 and 1 alone, as the features did in fit")
        return self._binary(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, 2), the risk of each row's leaf in the second column."""
        held = self._checked(X)
        risk = route(self.tree_, held).risk
        return np.column_stack([1 - risk, risk])

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the label of larger expected value: the second where omega risk > 1 - risk."""
        risk = self.predict_proba(X)[:, 1]
        return self.classes_[(self.omega * risk > 1 - risk).astype(int)]

    def conditions_used(self, X: Any) -> np.ndarray:
        """(n,) number of conditions on each row's path."""
        held = self._checked(X)
        return route(self.tree_, held).depth

    def members(self) -> Iterator[Tree]:
        """The trees of the set, cheapest first. ValueError without `epsilon`."""
        check_is_fitted(self)
        if self.rashomon_set_ is None:
            raise ValueError("there is no set of trees: give epsilon, how much worse than the optimum they may be")
        for node in self.rashomon_set_.node.tolist():
            yield self.rashomon_set_.table.tree(node)

    def select(self, by: Choice = "top_sparsity", within: int | None = None) -> FallingTreeClassifier:
        """Make the best member `tree_`, judged on the training rows; the cheapest of equal ones. Returns the estimator.

        by : "top_sparsity" (fewest conditions for the tenth at the highest risk), "auc", "leaves", "cost", or a function of a tree
        that is smallest for the best.   within : only the so many cheapest.
        Raises ValueError without a set, or for another name."""
        scores: dict[str, Callable[[Tree], float]] = {
            "cost": lambda tree: 0.0,
            "top_sparsity": lambda tree: top_sparsity(*route(tree, self._X)[:2]),
            "auc": lambda tree: -roc_auc_score(self._y, route(tree, self._X).risk),
            "leaves": leaf_count,
        }
        if not callable(by) and by not in scores:
            raise ValueError(f"by must be a function or one of {', '.join(scores)}, got {by!r}")
        score = by if callable(by) else scores[by]
        best = None
        for place, tree in enumerate(self.members()):
            if within is not None and place >= within:
                break
            value = score(tree)
            if best is None or value < best[0] - 1e-12:
                best = value, tree
        self.tree_ = best[1]
        return self

    def importance_range(self) -> np.ndarray:
        """(features, 3): least, mean and largest number of splits on each feature over the set."""
        counts = np.array([split_counts(tree, self._X.shape[1]) for tree in self.members()])
        return np.column_stack([counts.min(0), counts.mean(0), counts.max(0)])

    def export_text(self, feature_names: list[str] | None = None) -> str:
        """The tree as an if / else chain, the riskier side first."""
        check_is_fitted(self)
        if feature_names is None and self.binarizer_ is not None:
            feature_names = list(self.binarizer_.get_feature_names_out())
        return to_text(self.tree_, feature_names)


class FallingRuleListClassifier(FallingTreeClassifier):
    """The optimal falling rule list: a falling tree without branchings. Parameters as for `FallingTreeClassifier`, but `branching`.

    Source: Chen and Rudin, "An Optimization Approach to Learning Falling Rule Lists"."""

    def __init__(
        self,
        depth: int = 4,
        lam: float = 0.001,
        loss: Literal["brier", "zero_one"] = "brier",
        omega: float = 1.0,
        min_leaf: float = 0.01,
        epsilon: float | None = None,
        tree_limit: int = 20_000,
        n_thresholds: int = 4,
        max_subproblems: int = 20_000_000,
    ) -> None:
        super().__init__(depth, 0, lam, loss, omega, min_leaf, "path", epsilon, tree_limit, n_thresholds, max_subproblems)
