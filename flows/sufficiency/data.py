"""Four sources become groups of calibrated scores: populations, and people with raw scores where there are people."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from components.datasets import tabular
from components.fairness.group_scores import GroupScores
from flows.sufficiency.arms import DATASETS, EXACT
from flows.sufficiency.store import calibrator_for, rows_of
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams


class Params(StageParams):
    datasets: list[str] = Field(list(DATASETS), min_length=1, description="data sets")
    bins: int = Field(20, ge=2, description="cells per group of a learned score")
    min_count: int = Field(20, ge=1, description="cells with fewer people are joined with a neighbour")
    calibrator: Literal["quantile", "isotonic"] = Field("quantile", description="cells of a learned score")
    score_share: float = Field(1 / 3, gt=0, lt=1, description="share of the people that a score is learned on")


def learned_scores(
    table: pd.DataFrame, outcome: str, left_out: list[str], share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities by gradient boosting for the people that it was not learned on, and who they are."""
    order = np.random.default_rng((21, seed)).permutation(len(table))
    learned, others = np.split(order, [round(share * len(table))])
    features = table.drop(columns=[outcome, *left_out])
    text = [name for name in features if features[name].dtype == object or str(features[name].dtype) in ("str", "category")]
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    model = make_pipeline(
        make_column_transformer((encoder, text), remainder="passthrough"), HistGradientBoostingClassifier(random_state=seed)
    )
    model.fit(features.iloc[learned], table[outcome].iloc[learned])
    return model.predict_proba(features.iloc[others])[:, 1], others


def people_of(name: str, assets: dict[str, Path], p: Params) -> pd.DataFrame:
    """group, raw_score, y of a data set that consists of people."""
    if name.startswith("compas"):
        table = tabular.compas(assets["compas"])
        races = ["African-American", "Caucasian", *(["Hispanic"] if name == "compas3" else [])]
        table = table[table["race"].isin(races)]
        raw, outcome = (
            ("v_decile_score", "is_violent_recid") if name == "compas_violent" else ("decile_score", "two_year_recid")
        )
        return pd.DataFrame({"group": table["race"], "raw_score": table[raw].astype(float), "y": table[outcome]}).reset_index(
            drop=True
        )
    if name.startswith("adult"):
        table = tabular.adult(assets["adult"])
        if name == "adult_race":
            table = table[table["race"].isin(["White", "Black"])].reset_index(drop=True)
        scores, others = learned_scores(table, "over_50k", ["fnlwgt", "part"], p.score_share, p.seed)
        groups = table["sex" if name == "adult_sex" else "race"].to_numpy()[others]
        return pd.DataFrame({"group": groups, "raw_score": scores, "y": table["over_50k"].to_numpy()[others]})
    table = tabular.german(assets["german"])
    scores, others = learned_scores(table, "good", ["over_25"], p.score_share, p.seed)
    groups = np.where(table["over_25"], "above 25", "25 or less")[others]
    return pd.DataFrame({"group": groups, "raw_score": scores, "y": table["good"].to_numpy()[others]})


def credit_groups(name: str, assets: dict[str, Path]) -> tuple[list[str], list[GroupScores]]:
    found = tabular.fico(assets["fico"])
    count = 4 if name == "fico4" else 2
    names = sorted(found.groups[:count])
    places = [found.groups.index(group) for group in names]
    return names, [GroupScores(found.repaid[:, i], found.pmf[:, i], float(found.sizes[i])) for i in places]


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes groups.parquet, samples.parquet and datasheet.json."""
    for name in p.datasets:
        if name not in DATASETS:
            raise UserError(f"sufficiency.data.datasets: there is no data set {name!r}; there are {', '.join(DATASETS)}")
    populations, people = [], []
    for name in track.progress(p.datasets, "data sets"):
        if name in EXACT:
            populations.append(rows_of(name, *credit_groups(name, assets)))
            continue
        table = people_of(name, assets, p)
        fitted = calibrator_for(name, p.calibrator, p.bins, p.min_count).fit(table["raw_score"], table["y"], table["group"])
        populations.append(rows_of(name, [str(x) for x in fitted.groups_], fitted.group_scores()))
        people.append(table.assign(dataset=name))
    pd.concat(populations, ignore_index=True).to_parquet(out / "groups.parquet", index=False)
    columns = ["dataset", "group", "raw_score", "y"]
    samples = pd.concat(people, ignore_index=True)[columns] if people else pd.DataFrame(columns=columns)
    samples.to_parquet(out / "samples.parquet", index=False)
    used = sorted({name.split("_")[0].rstrip("0123456789") for name in p.datasets})
    sheet = {
        "sources": {name: asdict(tabular.DATASHEETS[name]) for name in used},
        "groups": {
            name: {group: float(rows["weight"].iloc[0]) for group, rows in table.groupby("group")}
            for name, table in pd.concat(populations).groupby("dataset")
        },
        "parameters": p.model_dump(),
    }
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=2, sort_keys=True) + "\n", encoding="utf-8")
