"""Every method on every split; the optima of all budgets; the sets of near-optimal falling trees; and how far bounds shrink the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from components.trees.binarise import pairs_of
from components.trees.greedy import greedy_falling_list
from components.trees.metrics import top_sparsity
from components.trees.solver import ALL_BOUNDS, FallingTreeSolver
from components.trees.tree import Tree, branchings, depth, leaf_count, route, to_dict
from flows.gravitree.arms import FALLING_BOUNDS, LADDER
from tasks import track
from tasks.fanout import fanout
from tasks.params import StageParams


class Params(StageParams):
    depth: int = Field(4, ge=1, description="splits on a path")
    branching: list[int] = Field([0, 1, 2], min_length=1, description="budgets of branchings whose optima are compared")
    chosen_branching: int = Field(1, ge=0, description="branchings of the falling tree that is compared with others")
    lam: float = Field(0.001, ge=0, description="price of a leaf")
    loss: Literal["brier", "zero_one"] = Field("brier", description="loss")
    min_leaf_share: float = Field(0.01, gt=0, lt=0.5, description="least share of the training rows in a leaf")
    epsilon: float = Field(0.01, ge=0, description="how much worse than the optimum members of the set may be")
    tree_limit: int = Field(20_000, ge=1, description="cheapest members that are kept")
    judged: int = Field(3000, ge=1, description="cheapest members that are judged one by one")
    list_depths: list[int] = Field([4, 6], min_length=1, description="depths of rule lists to choose from")
    search_depths: tuple[int, int] = Field(
        (5, 4), description="depth of the searches that bounds are compared on: lists, one branching"
    )
    search: bool = Field(True, description="compare bounds, depths and budgets")
    order: Literal["path", "depth"] = Field("path", description="what falling means")


class Job(NamedTuple):
    p: Params
    data: Path
    dataset: str
    split: int


class Rows(NamedTuple):
    """Training and test rows of a split, bool."""

    X: np.ndarray
    y: np.ndarray
    test_X: np.ndarray
    test_y: np.ndarray


def rows_of(job: Job) -> Rows:
    with np.load(job.data / f"{job.dataset}-{job.split}.npz", allow_pickle=False) as stored:
        X, y, test = stored["X"].astype(bool), stored["y"].astype(bool), stored["test"]
    return Rows(X[~test], y[~test], X[test], y[test])


def solver_of(p: Params, X: np.ndarray, y: np.ndarray, **changes: Any) -> FallingTreeSolver:
    least = max(1, round(p.min_leaf_share * len(y)))
    options = {
        "depth": p.depth,
        "branching": p.chosen_branching,
        "lam": p.lam,
        "loss": p.loss,
        "min_leaf": least,
        "order": p.order,
    }
    return FallingTreeSolver(X, y, **options | changes)


def optimal(solver: FallingTreeSolver) -> Tree:
    return next(solver.enumerate(solver.optimum(), 1))[1]


def judged(risk: np.ndarray, y: np.ndarray, base: float, conditions: np.ndarray | None, leaves: int | None) -> dict[str, float]:
    """Quality on test rows; conditions and leaves of what has them."""
    found = {
        "auc": roc_auc_score(y, risk),
        "brier": brier_score_loss(y, risk),
        "balanced accuracy": balanced_accuracy_score(y, risk >= base),
    }
    if conditions is not None:
        found |= {
            "top sparsity": top_sparsity(risk, conditions),
            "conditions": float(conditions.mean()),
            "leaves": float(leaves),
        }
    return found


def judged_tree(tree: Tree, r: Rows) -> dict[str, float]:
    routed = route(tree, r.test_X)
    return judged(routed.risk, r.test_y, float(r.y.mean()), routed.depth, leaf_count(tree))


def judged_model(model: Any, r: Rows) -> dict[str, float]:
    """A scikit-learn model, fitted here; CART's conditions are those on its paths."""
    model.fit(r.X, r.y)
    risk = model.predict_proba(r.test_X)[:, 1]
    conditions = leaves = None
    if isinstance(model, DecisionTreeClassifier):
        conditions = np.asarray(model.decision_path(r.test_X).sum(1)).ravel() - 1
        leaves = model.get_n_leaves()
    return judged(risk, r.test_y, float(r.y.mean()), conditions, leaves)


def best_list(p: Params, r: Rows, seed: int) -> tuple[Tree, Rows, dict[str, Any]]:
    """The optimal rule list whose depth and features a quarter of the training rows chose, fitted on all of them."""
    fitted, held = train_test_split(np.arange(len(r.y)), test_size=0.25, random_state=seed, stratify=r.y)
    names = [str(i) for i in range(r.X.shape[1])]
    paired = pairs_of(r.X[fitted], names)[1][len(names) :]
    both = [tuple(int(x) for x in name.split(" and ")) for name in paired]

    def features(X: np.ndarray, with_pairs: bool) -> np.ndarray:
        return np.column_stack([X, *(X[:, i] & X[:, j] for i, j in both)]) if with_pairs and both else X

    choices = [(deep, False) for deep in p.list_depths] + [(min(p.list_depths), True)]
    scores = []
    for deep, with_pairs in choices:
        X = features(r.X, with_pairs)
        tree = optimal(solver_of(p, X[fitted], r.y[fitted], depth=deep, branching=0))
        scores.append(roc_auc_score(r.y[held], route(tree, X[held]).risk))
    deep, with_pairs = choices[int(np.argmax(scores))]
    wide = Rows(features(r.X, with_pairs), r.y, features(r.test_X, with_pairs), r.test_y)
    tree = optimal(solver_of(p, wide.X, wide.y, depth=deep, branching=0))
    return tree, wide, {"depth": deep, "pairs": with_pairs}


def compared(job: Job, r: Rows) -> tuple[dict[str, dict[str, float]], dict[str, Any], pd.DataFrame]:
    """Facts of every method, trees to draw, and the judged members of the set."""
    p = job.p
    least = max(1, round(p.min_leaf_share * len(r.y)))
    tree, wide, choice = best_list(p, r, job.split)
    facts = {"rule list": judged_tree(tree, wide)}
    drawn: dict[str, Any] = {"rule list choice": choice}
    trees = {
        "rule list, same depth": optimal(solver_of(p, r.X, r.y, branching=0)),
        "greedy list": greedy_falling_list(r.X, r.y, max(p.list_depths), least),
        "ordinary": optimal(solver_of(p, r.X, r.y, branching=None, order=None)),
    }
    solver = solver_of(p, r.X, r.y)
    theta = solver.threshold(p.epsilon)
    members = []
    sparsest: tuple[float, Tree] | None = None
    for place, (cost, member) in enumerate(solver.enumerate(theta, min(p.judged, p.tree_limit))):
        if place == 0:
            trees["falling"] = member
        inner = route(member, r.X)
        outer = route(member, r.test_X)
        sparsity = top_sparsity(inner.risk, inner.depth)
        members.append(
            {"cost": cost, "leaves": leaf_count(member), "depth": depth(member), "branchings": branchings(member), "train top sparsity": sparsity,
             "top sparsity": top_sparsity(outer.risk, outer.depth), "auc": roc_auc_score(r.test_y, outer.risk)}
        )  # fmt: skip
        if sparsest is None or sparsity < sparsest[0] - 1e-12:
            sparsest = sparsity, member
    trees["sparsest falling"] = sparsest[1]
    facts |= {name: judged_tree(made, r) for name, made in trees.items()}
    facts["falling"]["members"] = float(solver.count(theta))
    facts["falling"]["objective"] = solver.optimum()
    facts |= {
        "CART": judged_model(DecisionTreeClassifier(max_depth=p.depth, min_samples_leaf=least, random_state=0), r),
        "CART, 7 leaves": judged_model(DecisionTreeClassifier(max_leaf_nodes=7, min_samples_leaf=least, random_state=0), r),
        "logistic": judged_model(LogisticRegression(max_iter=1000), r),
        "boosting": judged_model(
            HistGradientBoostingClassifier(max_iter=100, max_depth=3, learning_rate=0.05, random_state=0), r
        ),
    }
    drawn |= {name: to_dict(made) for name, made in trees.items()}
    return facts, drawn, pd.DataFrame(members)


def searched(job: Job, r: Rows) -> list[dict[str, Any]]:
    """Optima of all budgets and depths; subproblems under each set of bounds."""
    p, rows = job.p, []
    for deep in range(2, p.depth + 1):
        for budget in p.branching:
            solver = solver_of(p, r.X, r.y, depth=deep, branching=budget)
            risk = route(optimal(solver), r.test_X).risk
            rows.append(
                {
                    "what": "optimum",
                    "depth": deep,
                    "branching": budget,
                    "value": solver.optimum(),
                    "auc": roc_auc_score(r.test_y, risk),
                }
            )
    for budget, deep in zip((0, 1), p.search_depths, strict=True):
        for words, bounds in (*LADDER, ("falling bounds", FALLING_BOUNDS)):
            solver = solver_of(p, r.X, r.y, depth=deep, branching=budget, bounds=set(bounds) & ALL_BOUNDS)
            value = solver.optimum()
            rows.append(
                {
                    "what": words,
                    "depth": deep,
                    "branching": budget,
                    "value": value,
                    "subproblems": float(solver.stats.subproblems),
                }
            )
    return rows


def run_job(job: Job) -> dict[str, Any]:
    r = rows_of(job)
    facts, drawn, members = compared(job, r)
    return {"facts": facts, "drawn": drawn, "members": members, "search": searched(job, r) if job.p.search else []}


def train(p: Params, data: Path, out: Path) -> None:
    """Writes facts.parquet, members.parquet, search.parquet, trees.json and parameters.json."""
    places = sorted(json.loads((data / "columns.json").read_text(encoding="utf-8")))
    jobs = [Job(p, data, name.rsplit("-", 1)[0], int(name.rsplit("-", 1)[1])) for name in places]
    facts, members, search, trees = [], [], [], {}

    def keep(job: Job, found: dict[str, Any]) -> None:
        at = {"dataset": job.dataset, "split": job.split}
        facts.extend(at | {"method": method} | values for method, values in found["facts"].items())
        members.append(found["members"].assign(**at))
        search.extend(at | row for row in found["search"])
        trees[f"{job.dataset}-{job.split}"] = found["drawn"]
        for method, values in found["facts"].items():
            track.run(
                f"{job.dataset} {method} split {job.split}",
                params=at | {"method": method},
                metrics={k: float(v) for k, v in values.items()},
            )

    fanout(run_job, jobs, label="splits", threads=p.threads, seed=p.seed, on_result=keep)
    pd.DataFrame(facts).to_parquet(out / "facts.parquet", index=False)
    pd.concat(members, ignore_index=True).to_parquet(out / "members.parquet", index=False)
    columns = ["dataset", "split", "what", "depth", "branching", "value", "auc", "subproblems"]
    pd.DataFrame(search, columns=columns).to_parquet(out / "search.parquet", index=False)
    for name, content in (("trees", trees), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
