"""Test metrics at the epochs that validation chose, paired differences over splits, and accuracy near the boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from safetensors.torch import load_file
from sklearn.metrics import f1_score, roc_auc_score

from components.graphs.bes import class_centroids
from components.graphs.measures import expected_calibration_error, shift_score
from components.stats import Metrics, paired_difference, summarise
from flows.bes.arms import ABLATIONS, ARMS, METHODS, RIVALS
from flows.bes.store import read_graph, read_parts
from tasks import track
from tasks.params import StageParams

# Differences that the claims and the report need, where both methods were measured on the same splits.
PAIRS = (
    ("BES", "GCN"),
    ("BES", "GCN, 16 hidden"),
    ("BES", "frozen"),
    ("BES", "all"),
    ("BES", "random"),
    ("BES", "supcon"),
    ("frozen", "GCN"),
    *((method, "frozen") for method in ABLATIONS),
    ("BES (label encoders)", "GCN"),
    ("BES (label encoders)", "frozen (label encoders)"),
)


class Params(StageParams):
    neighbours: int = Field(5, ge=1, description="training neighbours of the shift score")
    calibration_bins: int = Field(15, ge=1, description="bins of the expected calibration error")


def classify(p: Params, probabilities: np.ndarray, y: np.ndarray, at_boundary: np.ndarray) -> dict[str, float]:
    """Metrics of one method on the test nodes of one split; accuracies and scores in percent.

    probabilities (n, C), y (n,), at_boundary (n,) bool."""
    predicted = probabilities.argmax(1)
    correct = predicted == y
    normalised = probabilities.astype(np.float64)
    normalised /= normalised.sum(1, keepdims=True)  # float32 rows sum to 1 within 1e-7, which scikit-learn refuses
    found = {
        "accuracy": 100 * correct.mean(),
        "macro_f1": 100 * f1_score(y, predicted, average="macro"),
        "auroc": 100 * roc_auc_score(y, normalised, multi_class="ovr", labels=np.arange(probabilities.shape[1])),
        "ece": 100 * expected_calibration_error(probabilities.max(1), correct, p.calibration_bins),
    }
    if at_boundary.any() and not at_boundary.all():
        found["boundary_accuracy"] = 100 * correct[at_boundary].mean()
        found["interior_accuracy"] = 100 * correct[~at_boundary].mean()
    return found


def nodes(p: Params, data: Path, train: Path) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """One row per data set, split, method and metric; and the predictions of all test nodes."""
    probabilities = pd.read_parquet(train / "probabilities.parquet")
    parts, rows, predictions = read_parts(data), [], []
    grouped = list(probabilities.groupby(["dataset", "seed"], sort=False))
    for (dataset, seed), group in track.progress(grouped, "splits"):
        stored = read_graph(data, dataset, seed)
        part = torch.from_numpy(parts[dataset, seed].astype(np.int64))
        y, reference, test = torch.from_numpy(stored.y), part == 0, (part == 2).numpy()
        checkpoint = load_file(train / "checkpoints" / f"{dataset}-{seed}.safetensors")
        before = shift_score(checkpoint["h"], y, reference, p.neighbours).numpy()
        planted = stored.is_boundary if stored.is_boundary is not None else before > 0.5
        for method, run in group.groupby("method", sort=False):
            index = run["node"].to_numpy()
            matrix = np.stack(run["probabilities"].to_list())
            found = classify(p, matrix, stored.y[index], planted[index])
            after = None
            if method in ARMS:
                z = checkpoint[f"{method}/z"]
                after = shift_score(z, y, reference, p.neighbours).numpy()
                centroids = class_centroids(z[reference], y[reference], matrix.shape[1])
                nearest = torch.cdist(z, centroids).argmin(1)
                found["mean_shift"] = 100 * after[test].mean()
                # Without the decoder: what a map of single nodes can do by itself.
                found["centroid_accuracy"] = 100 * (nearest == y)[torch.from_numpy(test)].double().mean().item()
            rows += [
                {"dataset": dataset, "seed": seed, "method": method, "metric": k, "value": float(v)} for k, v in found.items()
            ]
            predictions.append(
                pd.DataFrame(
                    {
                        "dataset": dataset,
                        "seed": seed,
                        "method": method,
                        "node": index,
                        "pred": matrix.argmax(1),
                        "p_max": matrix.max(1),
                        "correct": matrix.argmax(1) == stored.y[index],
                        "shift_before": before[index],
                        "shift_after": np.full(index.size, np.nan) if after is None else after[index],
                        "hard_before": before[index] > 0.5,
                        "hard_after": pd.array([pd.NA] * index.size if after is None else after[index] > 0.5, dtype="boolean"),
                        "at_boundary": planted[index],
                    }
                )
            )
    return rows, pd.concat(predictions, ignore_index=True)


def links(train: Path) -> list[dict[str, Any]]:
    """Accuracy at probability 0.5 and area under the curve on held-out edges and as many non-edges."""
    file, rows = train / "links.parquet", []
    if not file.exists():  # the parameters asked for no link prediction
        return rows
    for (dataset, seed, method), run in pd.read_parquet(file).groupby(["dataset", "seed", "method"], sort=False):
        found = {
            "link_accuracy": 100 * ((run["probability"] > 0.5) == run["is_edge"]).mean(),
            "link_auc": 100 * roc_auc_score(run["is_edge"], run["probability"]),
        }
        rows += [{"dataset": dataset, "seed": seed, "method": method, "metric": k, "value": float(v)} for k, v in found.items()]
    return rows


def chosen(train: Path) -> list[dict[str, Any]]:
    """Validation accuracy at the chosen epoch, which is what selections and sweeps may look at."""
    rows = []
    for run in pd.read_parquet(train / "runs.parquet").itertuples():
        metric = "validation_accuracy" if run.task == "nodes" else "link_validation_accuracy"
        value = 100 * run.validation_accuracy
        rows.append({"dataset": run.dataset, "seed": run.seed, "method": run.method, "metric": metric, "value": value})
    return rows


def summaries(rows: list[dict[str, Any]]) -> Metrics:
    """Means over splits, and paired differences; the best baseline is the one with the highest mean test accuracy."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        values.setdefault((row["method"], f"{row['dataset']}/{row['metric']}"), {})[row["seed"]] = row["value"]
    metrics: dict[str, dict[str, Any]] = {}
    for (method, metric), by_seed in values.items():
        metrics.setdefault(method, {})[metric] = summarise(list(by_seed.values()))

    def compare(name: str, first: str, second: str, metric: str) -> None:
        a, b = values.get((first, metric), {}), values.get((second, metric), {})
        common = [seed for seed in a if seed in b]
        if common:
            metrics.setdefault(name, {})[metric] = paired_difference([a[s] for s in common], [b[s] for s in common])

    names = {metric for _, metric in values}
    for first, second in PAIRS:
        for metric in sorted(names):
            compare(f"{first} - {second}", first, second, metric)
    for metric in sorted(name for name in names if name.endswith("/accuracy")):
        measured = [method for method in RIVALS if (method, metric) in values]
        if measured:
            # Chosen on the test accuracy itself: this favours the baselines, never the method.
            best = max(measured, key=lambda method: metrics[method][metric]["mean"])
            compare("BES - best baseline", "BES", best, metric)
    return metrics


def evaluate(p: Params, data: Path, train: Path, out: Path) -> Metrics:
    """Writes predictions.parquet and returns the metrics, `<data set>/<metric>` by method."""
    rows, predictions = nodes(p, data, train)
    order = {method: position for position, method in enumerate(METHODS)}
    predictions = predictions.sort_values(
        ["dataset", "seed", "method", "node"], key=lambda c: c.map(order) if c.name == "method" else c
    )
    predictions.to_parquet(out / "predictions.parquet", index=False)
    return summaries(rows + links(train) + chosen(train))
