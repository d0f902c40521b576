"""Tables become binary features: columns learned and screened on the training rows of each split alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field
from sklearn.model_selection import train_test_split

from components.datasets import tabular
from components.trees.binarise import QuantileBinarizer, screen
from flows.gravitree.arms import DATASETS
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams


class Params(StageParams):
    datasets: list[str] = Field(list(DATASETS)[:4], min_length=1, description="data sets")
    splits: int = Field(5, ge=1, description="random splits into training and test rows")
    test_share: float = Field(0.3, gt=0, lt=1, description="share of test rows")
    screen: int = Field(16, ge=1, description="columns that are kept, by chi-square on training rows")
    thresholds: int = Field(8, ge=1, description="quantiles of a number that become thresholds")
    limit: int | None = Field(None, ge=50, description="only so many rows, drawn at random")
    path: str | None = Field(None, description="folder of further *.csv tables whose last column is the outcome, 0 or 1")


def compas_features(table: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """The fifteen conditions that others have used on COMPAS."""
    age, priors = table["age"], table["priors_count"]
    columns = {f"age < {x}": age < x for x in (21, 23, 26, 31, 46)}
    columns |= {f"priors >= {x}": priors >= x for x in (1, 2, 4, 7, 13)}
    columns |= {"male": table["sex"] == "Male", "felony": table["c_charge_degree"] == "F"}
    columns |= {
        f"juvenile {name}": table[f"juv_{key}_count"] > 0
        for name, key in (("felony", "fel"), ("misdemeanour", "misd"), ("other", "other"))
    }
    return np.column_stack(list(columns.values())), list(columns)


def table_of(name: str, assets: dict[str, Path], p: Params) -> tuple[pd.DataFrame, np.ndarray]:
    """Features as they are, and outcomes."""
    if name == "compas":
        table = tabular.compas(assets["compas"])
        return table, table["two_year_recid"].to_numpy()
    if name == "german":
        table = tabular.german(assets["german"])
        return table.drop(columns=["good", "over_25", "male"]), 1 - table["good"].to_numpy()
    if name in DATASETS:
        outcome = {"monica": "dead", "attrition": "left", "credit_data": "bad"}[name]
        table = getattr(tabular, name)(assets[name])
        return table.drop(columns=outcome), table[outcome].to_numpy()
    table = pd.read_csv(Path(p.path or ".") / f"{name}.csv")
    outcome = table.columns[-1]
    if not set(table[outcome]) <= {0, 1}:
        raise UserError(f"gravitree.data: the last column of {name}.csv, {outcome}, must hold 0 and 1")
    return table.drop(columns=outcome), table[outcome].to_numpy()


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes <dataset>-<split>.npz (X, y, test), columns.json and datasheet.json."""
    columns, sheet = {}, {}
    for name in track.progress(p.datasets, "data sets"):
        if name not in DATASETS and not (p.path and (Path(p.path) / f"{name}.csv").is_file()):
            raise UserError(
                f"gravitree.data.datasets: there is no data set {name!r}; there are {', '.join(DATASETS)}, or *.csv files in data.path"
            )
        table, y = table_of(name, assets, p)
        if p.limit is not None and p.limit < len(y):
            rows = np.random.default_rng(51).choice(len(y), p.limit, replace=False)
            table, y = table.iloc[rows].reset_index(drop=True), y[rows]
        for split in range(p.splits):
            train, test = train_test_split(np.arange(len(y)), test_size=p.test_share, random_state=split, stratify=y)
            if name == "compas":
                X, names = compas_features(table)
            else:
                binarizer = QuantileBinarizer(p.thresholds).fit(table.iloc[train])
                X, names = binarizer.transform(table), list(binarizer.get_feature_names_out())
            kept = screen(X[train], y[train] == 1, p.screen)
            columns[f"{name}-{split}"] = [names[i] for i in kept]
            held_out = np.zeros(len(y), dtype=bool)
            held_out[test] = True
            np.savez_compressed(out / f"{name}-{split}.npz", X=X[:, kept].astype(np.uint8), y=y.astype(np.uint8), test=held_out)
        sheet[name] = {"rows": len(y), "share": float(y.mean())}
        if name in tabular.DATASHEETS:
            sheet[name] |= asdict(tabular.DATASHEETS[name])
    for name, content in (("columns", columns), ("datasheet", sheet)):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
