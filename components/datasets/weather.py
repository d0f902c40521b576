"""Hourly weather at Newark airport, 2013: six channels, the gaps filled, standardised on the first part of the year.

Datasheet. Source: the table `weather` of the R package nycflights13 (CC0), airport records of the ASOS network as kept by
Iowa State University. Rows: 8703 hours of 2013 at EWR (57 of the year's 8760 hours are missing and stay missing). Channels:
temp and dewp (degrees Fahrenheit), humid (percent), wind_speed (miles per hour), pressure (millibars), visib (miles).
Known fault: one wind speed of 1048 miles per hour on 12 February, a sensor error of about 72 standard deviations; `clean` limits
every channel to six. Single missing values are interpolated linearly in row order.

The packaged file is a pickled table; only the few constructors that a table needs are admitted when it is read.
"""

from __future__ import annotations

import lzma
import pickle
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

CHANNELS = ("temp", "dewp", "humid", "wind_speed", "pressure", "visib")
ROWS = 8703
FILE = "weather.pkl.xz"

_ADMITTED = {
    ("builtins", "slice"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}


class _TablesOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"the file wants {module}.{name}, which no table needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


class Weather(NamedTuple):
    """A multivariate series."""

    time: np.ndarray  # (N,) datetime64[s], UTC
    values: np.ndarray  # (N, 6) float64, in the channels' units, no gaps


def read_table(path: str | Path) -> pd.DataFrame:
    """The packaged table as it is. ValueError where the file is not a compressed table, FileNotFoundError where there is none."""
    try:
        with lzma.open(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # written by earlier numpy and pandas
            table = _TablesOnly(stream).load()
    except (lzma.LZMAError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path} is not a compressed table: {error}") from error
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"{path} holds {type(table).__name__}, a table is wanted")
    return table


def load_weather(folder: str | Path, origin: str = "EWR") -> Weather:
    """The series of one airport ("EWR", "JFK", "LGA"), gaps in values filled linearly.

    Raises FileNotFoundError where the folder lacks the file; ValueError for an unknown airport, missing columns, or a Newark
    series of another length than 8703."""
    table = read_table(Path(folder) / FILE)
    missing = {"origin", "time_hour", *CHANNELS} - set(table.columns)
    if missing:
        raise ValueError(f"the weather table lacks the columns {', '.join(sorted(missing))}")
    rows = table[table["origin"] == origin]
    if rows.empty:
        raise ValueError(f"no weather of {origin!r}; there are {', '.join(sorted(set(table['origin'])))}")
    if origin == "EWR" and len(rows) != ROWS:
        raise ValueError(f"the weather of EWR has {len(rows)} rows, expected {ROWS}")
    values = rows[list(CHANNELS)].astype(np.float64).interpolate(limit_direction="both").to_numpy()
    time = pd.to_datetime(rows["time_hour"], utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    return Weather(time, values)


def standardise(values: np.ndarray, train_share: float = 0.7) -> np.ndarray:
    """Each column minus its mean over the first `train_share` of the rows, divided by its standard deviation there.

    `values` (N, C) finite. Raises ValueError for another shape, values that are not finite, a share outside (0, 1], or a column
    that is constant in that part."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(f"values must be a finite array of shape (rows, channels), got shape {values.shape}")
    if not 0 < train_share <= 1 or int(len(values) * train_share) < 2:
        raise ValueError(f"train_share must leave at least two of {len(values)} rows and be at most 1, got {train_share}")
    part = values[: int(len(values) * train_share)]
    deviation = part.std(axis=0)
    if (deviation == 0).any():
        raise ValueError(f"channel {int(np.argmin(deviation))} is constant over the first {len(part)} rows")
    return (values - part.mean(axis=0)) / deviation


def clean(standardised: np.ndarray, limit: float = 6.0) -> np.ndarray:
    """Values limited to +-`limit` standard deviations: what is beyond is a fault of a sensor. ValueError unless limit > 0."""
    if not limit > 0:
        raise ValueError(f"limit must be positive, got {limit}")
    return np.clip(standardised, -limit, limit)


def window_starts(rows: int, length: int, first: int = 0, last: int | None = None, step: int = 1) -> np.ndarray:
    """First rows of all windows of `length` rows that lie within rows [first, last), every `step` rows; int64.

    Raises ValueError where no window fits, or for a step below 1."""
    last = rows if last is None else last
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    if not 0 <= first or last > rows or last - first < length or length < 1:
        raise ValueError(f"no window of {length} rows fits into rows {first} to {last} of {rows}")
    return np.arange(first, last - length + 1, step, dtype=np.int64)
