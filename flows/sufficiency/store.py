"""Tables between the stages, and people as groups of calibrated scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from components.fairness.calibration import GroupBinCalibrator
from components.fairness.group_scores import GroupScores
from flows.sufficiency.arms import EXACT


def groups_of(table: pd.DataFrame, dataset: str) -> tuple[list[GroupScores], list[str]]:
    """The population of a data set, and the names of its groups."""
    rows = table[table["dataset"] == dataset]
    names = sorted(rows["group"].unique())
    parts = [rows[rows["group"] == name] for name in names]
    return [GroupScores(p["score"].to_numpy(), p["pmf"].to_numpy(), float(p["weight"].iloc[0])) for p in parts], names


def calibrator_for(dataset: str, method: str, bins: int, least: int) -> GroupBinCalibrator:
    """Deciles are cells as they are; learned scores are cut."""
    return GroupBinCalibrator(bins, least, "identity" if dataset.startswith("compas") else method)


def sampled(datasets: Sequence[str]) -> list[str]:
    return [name for name in datasets if name not in EXACT]


def rows_of(dataset: str, names: Sequence[str], groups: Sequence[GroupScores]) -> pd.DataFrame:
    """The table form of a population."""
    parts = [
        pd.DataFrame(
            {
                "dataset": dataset,
                "group": name,
                "level": np.arange(g.scores.size),
                "score": g.scores,
                "pmf": g.pmf,
                "weight": g.weight,
            }
        )
        for name, g in zip(names, groups, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)
