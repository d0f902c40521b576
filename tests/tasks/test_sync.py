"""The dvc.yaml that follows from a flow package."""

import pytest

from tasks.claims import Claim, mean_above
from tasks.errors import UserError
from tasks.paper import Paper
from tasks.project import Project
from tasks.sync import ledger_pipeline, pipeline, text_of
from tests import projects

STAGES = {
    "data": "from components.planted import graph\ndef data(p, assets, out): ...\n",
    "train": "def train(p, data, out): ...\n",
    "evaluate": "def evaluate(p, data, train, out): ...\n",
    "report": "from flows.tiny import paper\ndef report(p, metrics, evaluate, out): ...\n",
}


@pytest.fixture
def project(tmp_path):
    files = {f"flows/tiny/{name}.py": text for name, text in STAGES.items()}
    files |= {"flows/tiny/__init__.py": "", "components/planted.py": "", "components/unused.py": "", "tasks/ledger.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Project(tmp_path)


@pytest.fixture
def paper():
    claim = Claim(id="C1", statement="s", paper="p", unit="u", quantity=("a", "b"), rule=mean_above(0.0))
    return Paper("tiny", "t", "a", "0", "f", "s", (claim,), assets=("cora",))


def test_every_stage_has_what_it_reads_and_writes(project, paper):
    stages = pipeline(project, paper)["stages"]
    assert {name: stage["deps"] for name, stage in stages.items()} == {
        "data": ["components/planted.py", "data/cora", "flows/tiny/data.py"],
        "train": ["artifacts/tiny/data", "flows/tiny/train.py"],
        "evaluate": ["artifacts/tiny/data", "artifacts/tiny/train", "flows/tiny/evaluate.py"],
        "report": ["artifacts/tiny/evaluate", "flows/tiny/__init__.py", "flows/tiny/report.py", "results/tiny/metrics.json"],
    }
    assert [stages[name]["outs"] for name in ("data", "train", "evaluate")] == [
        ["artifacts/tiny/data"],
        ["artifacts/tiny/train"],
        ["artifacts/tiny/evaluate"],
    ]
    assert stages["evaluate"]["metrics"] == [{"results/tiny/metrics.json": {"cache": False}}]
    assert [next(iter(out)) for out in stages["report"]["outs"]] == [
        "results/tiny/README.md",
        "results/tiny/index.html",
        "results/tiny/claims.json",
    ]
    for name, stage in stages.items():
        assert stage["cmd"] == f"python -m flows tiny {name}"
        assert stage["wdir"] == "../.."
        assert stage["params"] == ["profile", f"tiny.{name}"]


def test_the_ledger_depends_on_every_report(project, paper):
    deps = ledger_pipeline(project, {"tiny": paper, "other": paper})["stages"]["ledger"]["deps"]
    assert {"results/tiny/claims.json", "results/other/claims.json", "tasks/ledger.py"} <= set(deps)


def test_the_text_says_who_wrote_it_and_is_always_the_same(project, paper):
    text = text_of(pipeline(project, paper))
    assert text.startswith("# Written by `paperflows sync`")
    assert text == text_of(pipeline(project, paper))


@pytest.mark.parametrize(
    ("stage", "text", "sentence"),
    [
        ("train", "def trian(p, out): ...\n", r"flows/tiny/train\.py is missing, or defines no function `train`"),
        ("train", "def train(p, evaluate, out): ...\n", r"flows/tiny/train\.py: the stage train cannot read 'evaluate'"),
        ("train", "def train(data, out): ...\n", r"flows/tiny/train\.py: a stage's function takes \(p, \.\.\., out\)"),
        ("evaluate", "def evaluate(p, metrics, out): ...\n", r"the stage evaluate cannot read 'metrics'"),
    ],
)
def test_a_stage_that_cannot_be_is_named(project, paper, stage, text, sentence):
    (project.flow("tiny") / f"{stage}.py").write_text(text)
    with pytest.raises(UserError, match=sentence):
        pipeline(project, paper)


def test_a_missing_stage_is_named(project, paper):
    (project.flow("tiny") / "train.py").unlink()
    with pytest.raises(UserError, match=r"flows/tiny/train\.py is missing"):
        pipeline(project, paper)


def test_sync_mends_what_check_finds(tmp_path):
    folder = projects.make_project(tmp_path / "project")
    assert projects.call(folder, "sync", "--check").returncode == 0
    train = folder / "flows" / "tiny" / "train.py"
    train.write_text(train.read_text() + "\nimport components.stats.signed_rank\n")
    before = (folder / "flows" / "tiny" / "dvc.yaml").read_text()
    checked = projects.call(folder, "sync", "--check")
    assert (checked.returncode, checked.stdout) == (1, "stale flows/tiny/dvc.yaml\n")
    assert (folder / "flows" / "tiny" / "dvc.yaml").read_text() == before
    assert projects.call(folder, "sync").stdout == "wrote flows/tiny/dvc.yaml\n"
    assert "components/stats/signed_rank.py" in (folder / "flows" / "tiny" / "dvc.yaml").read_text()
    assert projects.call(folder, "sync", "--check").returncode == 0
