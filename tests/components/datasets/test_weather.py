"""Weather: only tables are unpickled, gaps and scales by hand, windows by brute force, the packaged file where it is there."""

import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.datasets.weather import CHANNELS, FILE, clean, load_weather, read_table, standardise, window_starts

DATA = Path(__file__).resolve().parents[3] / "data" / "weather"


def store(folder, thing):
    with lzma.open(folder / FILE, "wb") as stream:
        pickle.dump(thing, stream)
    return folder


def test_code_in_the_file_is_not_run(tmp_path):
    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(ValueError, match="which no table needs"):
        read_table(store(tmp_path, Bad()) / FILE)
    assert not (tmp_path / "made").exists()


def test_other_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_weather(tmp_path)
    (tmp_path / FILE).write_bytes(b"not xz")
    with pytest.raises(ValueError, match="not a compressed table"):
        load_weather(tmp_path)
    with pytest.raises(ValueError, match="holds dict"):
        read_table(store(tmp_path, {}) / FILE)


def test_tables_with_other_content_are_named(tmp_path, monkeypatch):
    table = pd.DataFrame({"origin": ["JFK"] * 3, "time_hour": ["2013-01-01T06:00:00Z"] * 3})
    monkeypatch.setattr("components.datasets.weather.read_table", lambda path: table)
    with pytest.raises(ValueError, match="lacks the columns dewp, humid, pressure"):
        load_weather(tmp_path)
    for position, name in enumerate(CHANNELS):
        table[name] = [position, np.nan, position + 2.0]
    with pytest.raises(ValueError, match="no weather of 'EWR'; there are JFK"):
        load_weather(tmp_path)
    series = load_weather(tmp_path, "JFK")
    assert series.values[1].tolist() == [1, 2, 3, 4, 5, 6]  # half way between neighbours
    table["origin"] = "EWR"
    with pytest.raises(ValueError, match="3 rows, expected 8703"):
        load_weather(tmp_path)


def test_scale_comes_from_the_first_part_alone():
    values = np.array([[0.0, 5], [2, 7], [4, 9], [100, -100]])
    found = standardise(values, 0.75)
    np.testing.assert_allclose(found[:3].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found[:3].std(0), 1)
    assert found[3, 0] == pytest.approx((100 - 2) / np.sqrt(8 / 3))
    assert clean(found).min() == -6 and clean(found).max() == 6 and np.array_equal(clean(found)[:3], found[:3])


@pytest.mark.parametrize(("rows", "length", "first", "last", "step"), [(20, 5, 0, None, 1), (20, 5, 3, 17, 4), (5, 5, 0, 5, 9)])
def test_windows_are_all_that_fit(rows, length, first, last, step):
    end = rows if last is None else last
    wanted = [s for s in range(rows) if s >= first and s + length <= end and (s - first) % step == 0]
    assert window_starts(rows, length, first, last, step).tolist() == wanted


def test_bad_input():
    with pytest.raises(ValueError, match=r"shape \(rows, channels\)"):
        standardise(np.arange(4.0))
    with pytest.raises(ValueError, match="finite"):
        standardise(np.array([[np.nan], [1.0]]))
    with pytest.raises(ValueError, match="channel 1 is constant"):
        standardise(np.array([[0.0, 1], [1, 1], [2, 1]]), 1.0)
    with pytest.raises(ValueError, match="train_share"):
        standardise(np.eye(3), 0.1)
    with pytest.raises(ValueError, match="limit must be positive"):
        clean(np.eye(2), 0)
    with pytest.raises(ValueError, match="no window of 9 rows"):
        window_starts(8, 9)
    with pytest.raises(ValueError, match="step must be at least 1"):
        window_starts(8, 2, step=0)


@pytest.mark.skipif(not DATA.is_dir(), reason="paperflows fetch weather brings it")
def test_the_packaged_series():
    series = load_weather(DATA)
    assert series.values.shape == (8703, 6) and np.isfinite(series.values).all()
    assert (np.diff(series.time) > np.timedelta64(0, "s")).all()
    assert series.values[:, 3].max() == pytest.approx(1048.36, abs=0.01)
    assert standardise(series.values)[:, 3].max() == pytest.approx(72, abs=1.5)
