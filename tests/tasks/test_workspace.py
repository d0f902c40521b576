"""Side workspaces: names, snapshots, and what `--set` may say."""

import os

import pytest

from tasks import workspace
from tasks.dvc import children_told
from tasks.environment import HOME_VARIABLE, ROOT_VARIABLE
from tasks.errors import UserError
from tasks.project import Project
from tasks.workspace import full_keys, make, name_of, snapshot


def test_a_name_says_the_profile_and_tells_settings_apart():
    assert name_of("smoke", {}) == "smoke"
    one = name_of("smoke", {"a.train.lr": 1, "a.train.b": 2})
    assert one == name_of("smoke", {"a.train.b": 2, "a.train.lr": 1})
    assert one.startswith("smoke-")
    assert one != name_of("smoke", {"a.train.lr": 2, "a.train.b": 2})
    assert name_of(None, {"a.train.lr": 1}).startswith("set-")


@pytest.fixture
def project(tmp_path):
    files = {
        "params.yaml": "profile: cpu\na:\n  train:\n    lr: 1\n    smoke: {lr: 2}\n",
        "flows/__init__.py": "",
        "flows/a/__init__.py": "",
        "flows/a/train.py": "one",
        "flows/a/dvc.lock": "theirs",
        "flows/a/__pycache__/x.pyc": "compiled",
        "tasks/b.py": "b",
        "components/c.py": "c",
        "kernels/d.py": "d",
        "results/a/metrics.json": "{}",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(tmp_path / "project")


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_snapshot_is_the_code_and_nothing_else(project, tmp_path):
    snapshot(project.root, tmp_path / "copy")
    assert files_in(tmp_path / "copy") == [
        "components/c.py",
        "flows/__init__.py",
        "flows/a/__init__.py",
        "flows/a/train.py",
        "kernels/d.py",
        "tasks/b.py",
    ]


def test_a_second_snapshot_follows_edits_and_removals(project, tmp_path):
    copy = tmp_path / "copy"
    snapshot(project.root, copy)
    (copy / "flows/a/dvc.lock").write_text("mine")
    untouched = (copy / "tasks/b.py").stat().st_mtime_ns
    (project.root / "flows/a/train.py").write_text("two")
    (project.root / "components/c.py").unlink()
    snapshot(project.root, copy)
    assert (copy / "flows/a/train.py").read_text() == "two"
    assert not (copy / "components/c.py").exists()
    assert (copy / "flows/a/dvc.lock").read_text() == "mine"
    assert (copy / "tasks/b.py").stat().st_mtime_ns == untouched


def test_a_workspace_has_its_own_parameters_and_shares_the_data(project):
    side = make(project, "smoke", {"a.train.lr": 5})
    assert side.root == project.scratch / "work" / name_of("smoke", {"a.train.lr": 5})
    text = side.params.read_text()
    assert "profile: smoke" in text
    assert "lr: 5" in text
    assert "lr: 2" not in text
    assert (side.root / "data").resolve() == project.root / "data"
    assert "dir = ../../../../.dvc/cache" in (side.root / ".dvc" / "config").read_text()
    assert "lr: 2" in project.params.read_text()
    assert make(project, "smoke", {"a.train.lr": 5}) == side


@pytest.mark.parametrize(("profile", "settings"), [("fast", {}), (None, {"b.train.lr": 1}), ("smoke", {"a.train.lr.x": 1})])
def test_a_refused_workspace_is_not_made(project, profile, settings):
    with pytest.raises(UserError):
        make(project, profile, settings)
    assert not list(project.scratch.glob("work/*"))


def test_what_children_are_told_is_undone_at_the_end(project, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, "before")
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    side = Project(project.root / "side", home=project.root)
    seen = {}

    def look():
        with children_told(side.environment()):
            seen.update(os.environ)
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert seen[ROOT_VARIABLE] == str(side.root)
    assert seen[HOME_VARIABLE] == str(project.root)
    assert os.environ[ROOT_VARIABLE] == "before"
    assert HOME_VARIABLE not in os.environ


def test_one_papers_settings_need_not_name_it():
    assert full_keys(["a"], ["train.lr=1", "a.data.n=[1]"]) == {"a.train.lr": 1, "a.data.n": [1]}
    assert full_keys(["a", "b"], ["b.train.lr=1"]) == {"b.train.lr": 1}


@pytest.mark.parametrize(
    ("slugs", "setting", "sentence"),
    [
        (["a", "b"], "train.lr=1", "--set train.lr=1: say which paper, for example a.train.lr=1"),
        (["a"], "trian.lr=1", "--set trian.lr=1: write stage.key=value, for example train.lr="),
        (["a"], "a.train=1", "--set a.train=1: write stage.key=value"),
        (["a"], "train.lr", "--set train.lr: write key=value"),
    ],
)
def test_a_setting_that_names_no_key_is_refused(slugs, setting, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        full_keys(slugs, [setting])


def test_every_package_is_copied():
    assert set(workspace._CODE) == {"flows", "tasks", "components", "kernels"}
