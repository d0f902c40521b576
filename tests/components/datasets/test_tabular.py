"""The four tables: known counts and rates of the packaged files, filters on small files by hand, changed files refused."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.datasets import tabular
from components.datasets.tabular import DATASHEETS, Datasheet, adult, compas, fico, german

DATA = Path(__file__).resolve().parents[3] / "data"


@pytest.fixture(scope="module")
def packaged():
    for name in ("compas", "german", "adult", "fico"):
        assert (DATA / name).is_dir(), f"run `paperflows fetch {name}`"
    return DATA


# --- the packaged files ---------------------------------------------------------------------------------------------


def test_compas_has_the_published_counts(packaged):
    rows = compas(packaged / "compas")
    assert len(rows) == 6172 and rows["two_year_recid"].sum() == 2809 and not rows.isna().any().any()
    # ProPublica's notebook: 3175 black and 2103 white defendants; 4997 men, 1175 women.
    assert rows["race"].value_counts()[["African-American", "Caucasian", "Hispanic"]].tolist() == [3175, 2103, 509]
    assert rows["sex"].value_counts().tolist() == [4997, 1175]
    assert set(rows["decile_score"]) == set(range(1, 11)) and set(rows["c_charge_degree"]) == {"F", "M"}
    assert not {"name", "first", "last", "dob"} & set(rows.columns)


def test_german_has_the_published_counts(packaged):
    rows = german(packaged / "german")
    assert len(rows) == 1000 and rows["good"].sum() == 700
    assert rows["over_25"].sum() == 810 and rows["male"].sum() == 690 and rows["age"].between(19, 75).all()
    gap = rows.groupby("over_25")["good"].mean()
    assert gap[True] - gap[False] == pytest.approx(0.149, abs=5e-4)


def test_adult_has_the_published_counts(packaged):
    rows = adult(packaged / "adult")
    assert rows["part"].value_counts().to_dict() == {"train": 30162, "test": 15060}
    assert rows["over_50k"].sum() == 11208 and not rows.isna().any().any()
    training = rows[rows["part"] == "train"]
    assert training["over_50k"].mean() == pytest.approx(0.249, abs=5e-4)
    assert (training["sex"] == "Male").mean() == pytest.approx(0.676, abs=5e-4)


def test_fico_is_a_population(packaged):
    found = fico(packaged / "fico")
    assert found.pmf.shape == found.repaid.shape == (198, 4) and found.groups == ("white", "Black", "Hispanic", "Asian")
    np.testing.assert_allclose(found.pmf.sum(axis=0), 1, rtol=1e-12)
    assert (found.pmf >= 0).all() and (np.diff(found.levels) > 0).all() and found.sizes.sum() == 174047
    line = (packaged / "fico" / tabular.FICO_CDF).read_text().splitlines()[101].split(",")  # level 50, per cent at or below
    assert float(line[0]) == 50
    np.testing.assert_allclose(100 * found.pmf[found.levels <= 50].sum(axis=0), np.float64(line[1:]), atol=1e-9)
    base = (found.pmf * found.repaid).sum(axis=0)
    assert base[3] > base[0] > base[2] > base[1]  # Asian, white, Hispanic, Black
    assert found.sizes @ base / found.sizes.sum() == pytest.approx(0.70, abs=0.01)


def test_datasheets_are_json_and_agree_with_the_tables(packaged):
    assert json.loads(json.dumps({name: asdict(sheet) for name, sheet in DATASHEETS.items()})).keys() == DATASHEETS.keys()
    for name in ("compas", "german", "adult"):
        sheet = DATASHEETS[name]
        assert sum(sheet.groups.values()) == sheet.rows == len(getattr(tabular, name)(packaged / name))


# --- small files by hand --------------------------------------------------------------------------------------------


def sheet_of(monkeypatch, name, rows, groups):
    monkeypatch.setitem(DATASHEETS, name, Datasheet(rows, "", "", groups, "", "", ""))


def compas_table():
    columns = {column: ["0"] * 8 for column in tabular.COMPAS_COLUMNS}
    table = pd.DataFrame(columns | {"score_text": "Low", "c_charge_degree": "F", "race": "A", "decile_score": range(8)})
    table["days_b_screening_arrest"] = ["-30", "30", "31", "-31", "", "0", "0", "0"]
    table.loc[5, "is_recid"] = "-1"
    table.loc[6, "c_charge_degree"] = "O"
    table.loc[7, "score_text"] = "N/A"
    return table


def test_compas_filter_by_hand(tmp_path, monkeypatch):
    table = compas_table()
    table.to_csv(tmp_path / tabular.COMPAS_FILE, index=False)
    sheet_of(monkeypatch, "compas", 2, {"A": 2})
    assert compas(tmp_path)["decile_score"].tolist() == [0, 1]
    sheet_of(monkeypatch, "compas", 3, {"A": 3})
    with pytest.raises(ValueError, match="must give 3 rows .* found 2 rows"):
        compas(tmp_path)
    table.drop(columns="race").to_csv(tmp_path / tabular.COMPAS_FILE, index=False)
    with pytest.raises(ValueError, match="lacks the columns race"):
        compas(tmp_path)


def test_german_codes_by_hand(tmp_path, monkeypatch):
    line = "A11 6 A34 A43 1169 A65 A75 4 {} A101 4 A121 {} A143 A152 2 A173 1 A192 A201 {}\n"
    path = tmp_path / tabular.GERMAN_FILE
    path.write_text(line.format("A93", 26, 1) + line.format("A92", 25, 2))
    sheet_of(monkeypatch, "german", 2, {"age > 25": 1, "age <= 25": 1})
    rows = german(tmp_path)
    assert rows[["good", "male", "over_25"]].to_numpy().tolist() == [[1, True, True], [0, False, False]]
    path.write_text(line.format("A93", 26, 3))
    with pytest.raises(ValueError, match="credit 1 or 2"):
        german(tmp_path)
    path.write_text("A11 6\n")
    with pytest.raises(ValueError, match="2 columns, expected 21"):
        german(tmp_path)


def test_adult_gaps_and_outcomes_by_hand(tmp_path, monkeypatch):
    line = "39, {}, 77516, Bachelors, 13, Never-married, Sales, Husband, White, Male, 0, 0, 40, Cuba, {}\n"
    (tmp_path / "adult.data").write_text(line.format("Private", "<=50K") + line.format("?", ">50K"))
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + line.format("Private", ">50K."))
    sheet_of(monkeypatch, "adult", 2, {"Male": 2})
    rows = adult(tmp_path)
    assert rows[["over_50k", "part"]].to_numpy().tolist() == [[0, "train"], [1, "test"]]
    (tmp_path / "adult.data").write_text(line.format("Private", "50K"))
    with pytest.raises(ValueError, match="incomes <=50K or >50K"):
        adult(tmp_path)
    (tmp_path / "adult.data").write_text("1, 2\n")
    with pytest.raises(ValueError, match="2 columns, expected 15"):
        adult(tmp_path)


def test_fico_steps_by_hand(tmp_path, monkeypatch):
    header = "Score,Non- Hispanic white,Black,Hispanic,Asian\n"
    (tmp_path / tabular.FICO_CDF).write_text(header + "0,10,0,50,20\n1,10,50,50,60\n2,100,100,100,100\n")
    (tmp_path / tabular.FICO_BAD).write_text(header + "0,90,80,70,60\n1,50,50,50,50\n2,0,10,20,30\n")
    (tmp_path / tabular.FICO_TOTALS).write_text("Kind,Non- Hispanic white,Black,Hispanic,Asian\nSSA,4,3,2,1\n")
    sheet_of(monkeypatch, "fico", 3, {"white": 4, "Black": 3, "Hispanic": 2, "Asian": 1})
    found = fico(tmp_path)
    np.testing.assert_allclose(found.pmf[:, 0], [0.1, 0, 0.9])
    np.testing.assert_allclose(found.pmf[:, 3], [0.2, 0.4, 0.4])
    np.testing.assert_allclose(found.repaid[0], [0.1, 0.2, 0.3, 0.4])
    (tmp_path / tabular.FICO_BAD).write_text(header + "0,90,80,70,60\n1,50,50,50,50\n2,0,10,20,130\n")
    with pytest.raises(ValueError, match="percentages"):
        fico(tmp_path)
    (tmp_path / tabular.FICO_BAD).write_text(header + "0,90,80,70,60\n")
    with pytest.raises(ValueError, match="same 3 levels"):
        fico(tmp_path)
    (tmp_path / tabular.FICO_CDF).write_text(header + "0,10,0,50,20\n1,9.9,50,50,60\n2,100,100,100,100\n")
    (tmp_path / tabular.FICO_BAD).write_text(header + "0,90,80,70,60\n1,50,50,50,50\n2,0,10,20,30\n")
    with pytest.raises(ValueError, match="one falls"):
        fico(tmp_path)
    sheet_of(monkeypatch, "fico", 3, {"white": 5, "Black": 3, "Hispanic": 2, "Asian": 1})
    with pytest.raises(ValueError, match="must hold the groups"):
        fico(tmp_path)


@pytest.mark.parametrize("load", [compas, german, adult, fico])
def test_a_missing_file_is_named(load, tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load(tmp_path)
