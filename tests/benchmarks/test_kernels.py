"""The kernels' benchmark: every kernel is in it, its numbers are what they are called, and a wrong kernel stops it."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import kernels, timing

FOLDER = Path(kernels.__file__).resolve().parents[1] / "kernels"


def test_every_kernel_is_timed_or_excused():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    timed = {module for module, _ in kernels.REGISTRY.values()}
    assert timed | set(kernels.NOT_TIMED) == files and not timed & set(kernels.NOT_TIMED)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    # One call each: what is tested are the counts and the file, not the clock.
    patch.setattr(kernels, "milliseconds", lambda functions, device: {n: 2.0 for n, f in functions.items() if f() is not f})
    path = tmp_path_factory.mktemp("json") / "kernels.json"
    threads = torch.get_num_threads()
    kernels.main(["--device", "cpu", "--quick", "--no-results", "--json", str(path)])
    torch.set_num_threads(threads)
    patch.undo()
    return json.loads(path.read_text())


def test_the_file(found):
    assert {row["kernel"] for row in found["cases"]} == set(kernels.REGISTRY)
    limits = found["ceilings"]
    assert limits["operations per second"] == 2 * 256**3 / 2e-3 and limits["bytes per second"] == 2 * 4 * 2**16 / 2e-3
    for row in found["cases"]:
        assert row["milliseconds"] == 2.0 and row["rivals"] and row["bytes"] > 0
        assert row["share of copy"] == pytest.approx(row["bytes"] / 2e-3 / limits["bytes per second"])
        assert row["share of product"] == pytest.approx(row["operations"] / 2e-3 / limits["operations per second"])
        assert all(rival["times faster"] == 1.0 for rival in row["rivals"].values())
    assert len(kernels.table(found)) == len(found["cases"])


def test_operations_by_hand(found):
    rows = {row["size"]: row for row in found["cases"] if row["kernel"] == "sliding window attention"}
    pairs = sum(min(t + 1, 32) for t in range(256))
    forward = rows["T = 256, W = 32, 4/2 heads of 64, forward"]
    assert forward["operations"] == 4 * pairs * 4 * 64
    # q, k, v in, the result out, a float32 statistic and an index number per row and head.
    assert forward["bytes"] == 4 * 256 * (2 * 4 * 64 + 2 * 2 * 64) + 256 * (4 * 4 + 4)
    assert rows["T = 256, W = 32, 4/2 heads of 64, with backward"]["operations"] == (4 + 10) * pairs * 4 * 64


def test_a_wrong_kernel_stops_it(monkeypatch):
    monkeypatch.setattr(kernels, "sliding_window_attention", lambda q, k, v, window: v.repeat_interleave(2, 2))
    with pytest.raises(AssertionError, match="sliding_window_attention is off by"):
        next(kernels.windowed(kernels.Bench("cpu", quick=True)))
    with pytest.raises(AssertionError, match="is off by nan"):
        kernels.agree("it", torch.tensor([float("nan")]), torch.zeros(1), 1.0)


def test_unknown_modules_are_named(capsys):
    with pytest.raises(SystemExit):
        kernels.main(["--only", "flash"])
    assert "flash is none of" in capsys.readouterr().err


def test_functions_take_turns():
    order = []
    times = timing.cpu_milliseconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0.0)
    assert order == ["a", "b"] * 4 and set(times) == {"a", "b"} and min(times.values()) >= 0
