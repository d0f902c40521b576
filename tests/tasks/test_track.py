"""What stages say of their runs, where nothing listens and where something does."""

import sys

import pytest

from tasks import track


class Parent:
    def __init__(self):
        self.calls = []

    def nested(self, *arguments):
        self.calls.append(arguments)

    def dataset(self, *arguments):
        self.calls.append(arguments)


@pytest.fixture
def parent():
    parent = Parent()
    track.open_for(parent)
    yield parent
    track.open_for(None)


def test_without_a_run_nothing_happens():
    track.run("ridge, 0", params={"seed": 0}, metrics={"error": 1.0}, curves={"error": [1, 2]}, tags={"a": "b"})
    track.dataset("planted", "abc", "here")
    track.step(1, error=2.0)


def test_a_run_reaches_its_parent(parent):
    track.run("ridge, 0", curves={"error": [3.0, 2.0]}, steps=[10, 20])
    track.dataset("planted", "abc", "here")
    assert parent.calls == [("ridge, 0", {}, {}, {"error": [3.0, 2.0]}, [10, 20], {}), ("planted", "abc", "here")]


def test_curves_and_steps_of_different_lengths_are_refused_even_without_a_run():
    with pytest.raises(ValueError, match="curve 'error' of run 'ridge, 0' has 2 values for 3 steps"):
        track.run("ridge, 0", curves={"error": [1, 2]}, steps=[0, 1, 2])


def test_a_listener_hears_every_step():
    heard = []
    track.listen(lambda step, values: heard.append((step, values)))
    try:
        track.step(1, error=2)
    finally:
        track.listen(None)
    track.step(2, error=1)
    assert heard == [(1, {"error": 2.0})]
    assert type(heard[0][1]["error"]) is float


def test_progress_yields_everything_and_ends_with_a_line(capsys):
    assert list(track.progress(iter("abc"), "training", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == "training: 3 of 3\n"


def test_progress_knows_the_length_of_a_list(capsys):
    assert list(track.progress([1, 2], "training")) == [1, 2]
    assert capsys.readouterr().err == "training: 2 of 2\n"
    assert list(track.progress([], "training")) == []


def test_progress_speaks_now_and_then(capsys, monkeypatch):
    times = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(track.time, "monotonic", lambda: next(times))
    assert list(track.progress(iter("abc"), "training")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "training: 2\n"


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(track.progress(range(3), "training")) == [0, 1, 2]
    assert "training" in capsys.readouterr().err
