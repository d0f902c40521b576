"""What a stage may return, read and hold."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tasks.errors import Busy, UserError
from tasks.stage import _temporary_output as temporary_output
from tasks.stage import check_metrics, check_names, flatten, folder_digest, hold, read_metrics, reads
from tests import projects


def cell(**changes):
    return {"mean": 1.0, "ci95": [0.5, 1.5], "n": 2, "values": [0.5, 1.5], **changes}


def test_good_metrics_pass():
    check_metrics({"ridge": {"error": cell()}, "alone": {"error": cell(ci95=None, n=1, values=[1])}}, "here")


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (None, "there are no metrics"),
        ({}, "there are no metrics"),
        ({"ridge": 3}, "'ridge' holds no metrics"),
        ({"ridge": {"error": 3}}, "ridge / error is not a cell"),
        ({"ridge": {"error": {"mean": 1.0}}}, "ridge / error is not a cell"),
        ({"ridge": {"error": cell(sd=1)}}, "ridge / error is not a cell"),
        ({"ridge": {"error": cell(mean=float("nan"))}}, "ridge / error holds something that is no finite number"),
        ({"ridge": {"error": cell(mean="1")}}, "no finite number"),
        ({"ridge": {"error": cell(mean=True)}}, "no finite number"),
        ({"ridge": {"error": cell(values=[1.0, None])}}, "no finite number"),
        ({"ridge": {"error": cell(values=None)}}, "ridge / error is not a cell"),
        ({"ridge": {"error": cell(ci95=[0.5])}}, "ridge / error is not a cell"),
        ({"ridge": {"error": cell(ci95=0.5)}}, "ridge / error is not a cell"),
        ({"ridge": {"error": cell(n=3)}}, "says n = 3 and holds 2 values"),
    ],
)
def test_bad_metrics_are_named(metrics, sentence):
    with pytest.raises(UserError, match=f"flows/tiny/evaluate.py: .*{sentence}"):
        check_metrics(metrics, "flows/tiny/evaluate.py")


def test_a_damaged_metrics_file_is_named(tmp_path):
    path = tmp_path / "metrics.json"
    with pytest.raises(UserError, match=r"metrics\.json is missing: the stage evaluate writes it"):
        read_metrics(path)
    for text in ("{", '{"a": {"b": {}}}', "\udcff"):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(UserError, match=r"metrics\.json"):
            read_metrics(path)


def test_a_stage_reads_what_its_arguments_name():
    def report(p, metrics, evaluate, out): ...

    def data(p, out): ...

    assert reads(report, "report", "file") == ["metrics", "evaluate"]
    assert reads(data, "data", "file") == []


@pytest.mark.parametrize("names", [[], ["p"], ["out"], ["out", "p"], ["data", "out"], ["p", "out", "data"]])
def test_a_stage_takes_parameters_first_and_its_folder_last(names):
    with pytest.raises(UserError, match=r"flows/a/train\.py: a stage's function takes"):
        check_names(names, "train", "flows/a/train.py")


@pytest.mark.parametrize(("stage", "name"), [("data", "data"), ("data", "train"), ("train", "metrics"), ("evaluate", "report")])
def test_a_stage_reads_nothing_later(stage, name):
    with pytest.raises(UserError, match=f"the stage {stage} cannot read '{name}'; it may read"):
        check_names(["p", name, "out"], stage, "file")


def test_nested_parameters_become_flat():
    assert flatten({"a": {"b": {"c": 1}}, "d": [1]}) == {"a.b.c": 1, "d": [1]}


def test_a_folders_digest_follows_names_and_contents(tmp_path):
    def folder(name, **files):
        for path, text in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder_digest(tmp_path / name)

    one = folder("one", **{"a": "1", "deep/b": "2"})
    assert one == folder("two", **{"deep/b": "2", "a": "1"})
    assert one != folder("three", **{"a": "1", "deep/c": "2"})
    assert one != folder("four", **{"a": "1", "deep/b": "3"})
    assert folder("five", **{"a": "12", "b": ""}) != folder("six", **{"a": "1", "b": "2"})


def write_and_fail(target, error):
    with temporary_output(target) as out:
        (out / "half").touch()
        raise error


def test_an_error_that_a_full_disk_caused_says_so(tmp_path, monkeypatch):
    """Numpy says `12 requested and 0 written`, with no errno."""
    error = OSError("12 requested and 0 written")
    with pytest.raises(OSError, match="12 requested"):
        write_and_fail(tmp_path / "train", error)
    monkeypatch.setattr("tasks.stage.shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(
        UserError, match=f"^cannot write to {tmp_path}: No space left on device; nothing was kept of this stage$"
    ):
        write_and_fail(tmp_path / "train", error)
    with pytest.raises(UserError, match=r"^the parameters are wrong$"):
        write_and_fail(tmp_path / "train", UserError("the parameters are wrong"))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    for name in (".train.part.abc", ".data.part.abc"):
        (tmp_path / name).mkdir()
    with temporary_output(tmp_path / "train") as out:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".data.part.abc", out.name])
    assert [path.name for path in tmp_path.iterdir()] == [".data.part.abc"]


HOLDER = (
    "import sys; from pathlib import Path; from tasks.stage import hold\n"
    "with hold(Path(sys.argv[1]), 'the thing', wait=False):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=projects.environment(projects.ROOT),
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_who_holds_a_lock_is_said(tmp_path, holder):
    with (
        pytest.raises(Busy, match=f"^the thing is being run by process {holder.pid}: wait for it, or stop it$"),
        hold(tmp_path / "lock", "the thing", wait=False),
    ):
        raise AssertionError("two hold one lock")


def test_a_waiting_run_says_so_and_goes_on_when_the_holder_is_done(tmp_path, holder):
    said = []
    announced = threading.Event()

    def announce(text):
        said.append(text)
        announced.set()

    def wait():
        with hold(tmp_path / "lock", "the thing", wait=True, announce=announce):
            said.append("held")

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert announced.wait(30)
    assert said == [f"the thing is being run by process {holder.pid}: waiting for it"]
    holder.stdin.close()
    waiter.join(30)
    assert said[1:] == ["held"]


def test_a_killed_holder_holds_nothing(tmp_path, holder):
    holder.kill()
    holder.wait()
    with hold(tmp_path / "lock", "the thing", wait=False):
        pass
    assert not (tmp_path / "lock.holder").exists()


def test_a_lock_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write to .*taken"), hold(tmp_path / "taken" / "lock", "x", wait=False):
        raise AssertionError("held a lock that cannot be")
