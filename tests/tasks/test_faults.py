"""What goes wrong where programs run: kills, Ctrl-C, full disks, two at once, servers that are gone or slow.

Every project here is a tiny paper. Its training holds while a file named `hold` lies in the project, with half of its
output written; so a test acts in the middle of a stage without any guess at times."""

import json
import os
import signal
import socket
import time

import pytest
from ruamel.yaml import YAML

from tests import projects
from tests.projects import copy, edit, end_processes, files, until

pytestmark = pytest.mark.platform

FREE = {"PAPERFLOWS_TRACK": "0"}
REPRO = ("-m", "dvc", "repro", "flows/tiny/dvc.yaml")
RUN = ("-m", "tasks", "run", "tiny")
HOLD = """\
    if Path("hold").exists():
        (out / "half").touch()
        Path("began").touch()
        while Path("hold").exists():
            time.sleep(0.02)
        (out / "half").unlink()
    for draw in"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A project of which nothing has been run."""
    folder = projects.make_project(tmp_path_factory.mktemp("fresh") / "project")
    train = folder / "flows" / "tiny" / "train.py"
    edit(train, "    for draw in", HOLD)
    edit(train, "from pathlib import Path\n", "import time\nfrom pathlib import Path\n")
    return folder


@pytest.fixture(scope="module")
def finished(fresh, tmp_path_factory):
    """A project of which everything has been run, by DVC and without tracking."""
    folder = copy(fresh, tmp_path_factory.mktemp("finished") / "project")
    done = projects.dvc(folder, *REPRO[2:], **FREE)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(fresh, tmp_path):
    yield copy(fresh, tmp_path / "project")
    end_processes(tmp_path)


@pytest.fixture
def complete(finished, tmp_path):
    yield copy(finished, tmp_path / "project")
    end_processes(tmp_path)


def outputs(folder, slug="tiny"):
    """Names of what lies in a paper's folder of artifacts, hidden ones too."""
    place = folder / "artifacts" / slug
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def hashes(folder, slug="tiny"):
    lock = folder / "flows" / slug / "dvc.lock"
    if not lock.is_file():
        return {}
    stages = YAML(typ="safe").load(lock)["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def begin_training(folder, words, **env):
    """Start, and wait until the training is in the middle."""
    (folder / "hold").touch()
    running = projects.python(folder, *words, **env)
    until((folder / "began").exists, "the training began", running)
    assert [name for name in outputs(folder) if name.startswith(".train.part.")]
    return running


def let_go(folder):
    (folder / "hold").unlink()


def repro(folder, **env):
    done = projects.dvc(folder, *REPRO[2:], **{**FREE, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def assert_only_data_is_kept(folder):
    assert [name for name in outputs(folder) if not name.startswith(".")] == ["data"]
    assert not (folder / "results" / "tiny").exists()


def assert_whole(folder, like):
    assert outputs(folder) == ["data", "evaluate", "train"]
    assert not list((folder / "results").glob(".*"))
    assert hashes(folder) == hashes(like)


def test_a_killed_dvc_repro_keeps_what_was_finished(project, finished):
    running = begin_training(project, REPRO, **FREE)
    running.signal(signal.SIGKILL)
    running.wait()
    assert_only_data_is_kept(project)
    let_go(project)
    assert "'flows/tiny/dvc.yaml:data' didn't change" in repro(project).stdout
    assert_whole(project, finished)


def test_an_interrupted_dvc_repro_keeps_what_was_finished(project, finished):
    running = begin_training(project, REPRO, **FREE)
    running.signal(signal.SIGINT)
    assert running.wait() != 0
    assert "Traceback" not in running.stderr
    assert outputs(project) == ["data"]
    let_go(project)
    assert "'flows/tiny/dvc.yaml:data' didn't change" in repro(project).stdout
    assert_whole(project, finished)


def test_a_killed_run_is_healed_by_doctor_and_taken_up_by_the_next(project, finished):
    running = begin_training(project, (*RUN, "--no-track"))
    running.signal(signal.SIGKILL)
    running.wait()
    assert_only_data_is_kept(project)
    let_go(project)
    (project / ".dvc" / "tmp" / "rwlock").write_text("")
    locks = project / ".paperflows" / "locks"
    assert (locks / "tiny.train.holder").is_file()
    healed = projects.call(project, "doctor", check=True).stdout
    assert "healed  DVC's table of readers and writers: it is not valid JSON" in healed
    assert "healed  half-written outputs: removed artifacts/tiny/.train.part." in healed
    assert "healed  notes of who holds a lock: removed " in healed
    assert 'healed  Prefect runs that stayed "Running": marked 1 as crashed' in healed
    assert outputs(project) == ["data"]
    assert not list(locks.glob("*.holder"))
    again = projects.call(project, "run", "tiny", "--no-track", check=True)
    assert [line.split()[1:3] for line in again.stdout.splitlines() if line.startswith("tiny")] == [
        ["data", "cached"],
        ["train", "executed"],
        ["evaluate", "executed"],
        ["report", "executed"],
    ]
    assert_whole(project, finished)


def test_an_interrupted_run_ends_with_130_and_the_next_goes_on(project, finished):
    running = begin_training(project, (*RUN, "--no-track"))
    running.signal(signal.SIGINT)
    assert running.wait(60) == 130, running.stderr
    assert "Traceback" not in running.stderr
    assert "interrupted; finished stages are kept" in running.stderr
    assert outputs(project) == ["data"]
    let_go(project)
    assert "'flows/tiny/dvc.yaml:data' didn't change" in repro(project).stdout
    assert_whole(project, finished)


def test_a_second_run_of_a_paper_waits_and_finds_everything_done(project, finished):
    first = begin_training(project, (*RUN, "--no-track"))
    second = projects.python(project, *RUN, "--no-track")
    until(lambda: "waiting for it" in second.stderr, "the second run said that it waits", second)
    assert f"the paper tiny is being run by process {first.process.pid}: waiting for it" in second.stderr
    assert "train     ○ being run" in projects.call(project, "show", "tiny", check=True).stdout
    let_go(project)
    assert (first.wait(), second.wait()) == (0, 0), first.stderr + second.stderr
    assert second.stdout.count("cached") == 4
    assert_whole(project, finished)


def test_a_second_bare_stage_says_who_runs_the_first(complete):
    first = begin_training(complete, ("-m", "flows", "tiny", "train"), **FREE)
    second = projects.stage(complete, "tiny", "train", **FREE)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == (
        f"error: the stage train of tiny is being run by process {first.process.pid}: wait for it, or stop it\n"
    )
    let_go(complete)
    assert first.wait() == 0
    assert outputs(complete) == ["data", "evaluate", "train"]


def test_two_papers_side_by_side_give_what_one_after_the_other_gives(tmp_path):
    folder = projects.make_project(tmp_path / "together", slugs=("alpha", "beta"))
    # Each training goes on only when the other has begun, so they cannot have run one after the other.
    for mine, other in (("alpha", "beta"), ("beta", "alpha")):
        train = folder / "flows" / mine / "train.py"
        meet = (
            f'    Path("began.{mine}").touch()\n    deadline = time.monotonic() + 120\n'
            f'    while not Path("began.{other}").exists():\n        assert time.monotonic() < deadline\n        time.sleep(0.02)\n'
        )
        edit(train, "    for draw in", meet + "    for draw in")
        edit(train, "from pathlib import Path\n", "import time\nfrom pathlib import Path\n")
    apart = copy(folder, tmp_path / "apart")
    projects.call(folder, "run", "alpha", "beta", "-j", "2", "--no-track", check=True)
    for slug in ("alpha", "beta"):
        (apart / f"began.{slug}").touch()
    for slug in ("alpha", "beta"):
        assert projects.dvc(apart, "repro", f"flows/{slug}/dvc.yaml", **FREE).returncode == 0
        assert hashes(folder, slug) == hashes(apart, slug)
        assert len(hashes(folder, slug)) == 8
        assert all(path.split("/")[1] == slug for path in hashes(folder, slug))
        assert projects.call(folder, "list", check=True).stdout.count("●") >= 8
    assert end_processes(tmp_path) == []


def test_a_file_in_the_outputs_place_is_named(project):
    # Permissions would not do: root writes everywhere.
    (project / "artifacts").write_text("a file")
    done = projects.stage(project, "tiny", "data", **FREE)
    assert done.returncode == 2
    assert done.stderr == f"error: cannot write to {project}/artifacts/tiny: Not a directory\n"
    assert (project / "artifacts").read_text() == "a file"


def test_a_full_disk_ends_in_one_sentence_and_keeps_what_was(complete):
    before = files(complete / "artifacts")
    # The kernel's own device that is always full; a small file system of our own would need rights to mount it.
    edit(
        complete / "flows" / "tiny" / "data.py",
        "    for draw in",
        '    (out / "first").write_text("first")\n    Path("/dev/full").write_text("x" * 100000)\n    for draw in',
    )
    done = projects.stage(complete, "tiny", "data", **FREE)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: cannot write to {complete}/artifacts/tiny: No space left on device; nothing was kept of this stage\n",
    )
    assert files(complete / "artifacts") == before
    assert outputs(complete) == ["data", "evaluate", "train"]


def truncate(folder):
    path = folder / "artifacts" / "tiny" / "train" / "ridge 0.npy"
    os.truncate(path, path.stat().st_size // 2)


def test_a_truncated_artifact_is_named_by_a_bare_stage_and_made_whole_by_dvc(complete, finished):
    truncate(complete)
    results = files(complete / "results")
    done = projects.stage(complete, "tiny", "evaluate", **FREE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: artifacts/tiny/train is damaged: it holds 6 files of ")
    assert done.stderr.endswith("; `paperflows run tiny` makes it again\n")
    assert files(complete / "results") == results
    repro(complete)
    assert_whole(complete, finished)
    assert files(complete / "artifacts") == files(finished / "artifacts")


def test_a_truncated_artifact_is_made_whole_by_a_run(complete, finished):
    truncate(complete)
    projects.call(complete, "run", "tiny", "--no-track", check=True)
    assert_whole(complete, finished)
    assert files(complete / "artifacts") == files(finished / "artifacts")


SUM = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"  # of the letter a


@pytest.fixture
def with_asset(project):
    """A paper that reads an asset of one file, which holds the letter a."""
    manifest = project / "tasks" / "assets.py"
    manifest.write_text(
        manifest.read_text() + '\n\nMANIFEST["planted"] = Asset(\n    "planted", "planted", "1.0", "0" * 64, '
        f'(Member("a.txt", "a.txt", "{SUM}"),), "CC0-1.0", "one letter"\n)\n'
    )
    edit(project / "flows" / "tiny" / "__init__.py", "    claims=(", '    assets=("planted",),\n    claims=(')
    data = project / "flows" / "tiny" / "data.py"
    edit(data, "def data(p: Params, out: Path)", "def data(p: Params, assets: dict[str, Path], out: Path)")
    edit(data, "    for draw in", '    assert (assets["planted"] / "a.txt").read_text() == "a"\n    for draw in')
    projects.call(project, "sync", check=True)
    return project


def test_a_missing_asset_is_named_with_the_command_that_brings_it(with_asset):
    for done in (projects.stage(with_asset, "tiny", "data", **FREE), projects.call(with_asset, "run", "tiny", "--no-track")):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: data/planted is missing: run `paperflows fetch planted`\n"
    assert not (with_asset / "artifacts").exists()


def test_an_altered_asset_is_named_with_both_sums(with_asset):
    asset = with_asset / "data" / "planted" / "a.txt"
    asset.parent.mkdir(parents=True)
    asset.write_text("a")
    assert projects.stage(with_asset, "tiny", "data", **FREE).returncode == 0
    before = files(with_asset / "artifacts")
    asset.write_text("b")
    wrong = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"
    sentence = (
        f"error: data/planted/a.txt is altered: its SHA-256 is {wrong}, it should be {SUM}; run `paperflows fetch planted`\n"
    )
    for done in (projects.stage(with_asset, "tiny", "data", **FREE), projects.call(with_asset, "run", "tiny", "--no-track")):
        assert done.returncode == 2
        assert done.stderr == sentence
    assert files(with_asset / "artifacts") == before


def test_an_unreachable_tracking_server_is_said_before_anything_is_computed(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        run = projects.call(project, "run", "tiny", MLFLOW_TRACKING_URI=uri)
        assert time.monotonic() - begin < 10
        bare = projects.stage(project, "tiny", "data", MLFLOW_TRACKING_URI=uri)
        for done in (run, bare):
            assert done.returncode == 2
            assert done.stderr.startswith(f"error: the tracking server {uri} cannot be reached (Connection refused): ")
            assert done.stderr.count("\n") == 1
        assert not (project / "results").exists()
        assert outputs(project) == []
        assert projects.stage(project, "tiny", "data", MLFLOW_TRACKING_URI=uri, **FREE).returncode == 0
    assert outputs(project) == ["data"]


def test_a_prefect_server_that_starts_slowly_is_waited_for(complete):
    # Longer than Prefect's own patience of 20 seconds.
    (complete / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if any('prefect.server.api.server' in word for word in sys.orig_argv):\n"
        "    pathlib.Path('server.delayed').touch()\n    time.sleep(25)\n"
    )
    edit(complete / "params.yaml", "    penalty: 5.0", "    penalty: 6.0")
    done = projects.call(complete, "run", "tiny", "--no-track")
    assert done.returncode == 0, done.stderr
    assert (complete / "server.delayed").exists()
    assert "tiny                     train     executed" in done.stdout


def test_a_failing_report_undoes_nothing_of_the_stages_before_it(project):
    from mlflow import MlflowClient

    report = project / "flows" / "tiny" / "report.py"
    edit(report, "    style()\n", '    raise ValueError("broken on purpose")\n    style()\n')
    failed = projects.dvc(project, *REPRO[2:])
    assert failed.returncode != 0
    assert "broken on purpose" in failed.stderr
    assert set(YAML(typ="safe").load(project / "flows" / "tiny" / "dvc.lock")["stages"]) == {"data", "train", "evaluate"}
    assert outputs(project) == ["data", "evaluate", "train"]
    assert sorted(path.name for path in (project / "results" / "tiny").iterdir()) == ["metrics.json"]
    before = hashes(project)
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")

    def stages():
        runs = client.search_runs([experiment.experiment_id], "tags.stage != ''", max_results=1000)
        return sorted((run.data.tags["stage"], run.info.status) for run in runs if "mlflow.parentRunId" not in run.data.tags)

    finished = [("data", "FINISHED"), ("evaluate", "FINISHED"), ("train", "FINISHED")]
    assert stages() == sorted([*finished, ("report", "FAILED")])
    edit(report, '    raise ValueError("broken on purpose")\n', "")
    mended = projects.dvc(project, *REPRO[2:])
    assert mended.returncode == 0, mended.stderr
    assert mended.stdout.count("didn't change, skipping") == 3
    assert stages() == sorted([*finished, ("report", "FAILED"), ("report", "FINISHED")])
    assert before.items() <= hashes(project).items()
    assert len(json.loads((project / "results" / "tiny" / "claims.json").read_text())) == 2


PARAMS = "params.yaml"


@pytest.mark.parametrize(
    ("old", "new", "stage", "sentence"),
    [
        ("profile: smoke", "profile: fast", "data", "params.yaml, profile: 'fast' is not one of smoke, cpu, paper"),
        (
            "    features: 30",
            "    feetures: 30",
            "data",
            "params.yaml, tiny.data.feetures is not a parameter; known keys: seed, ",
        ),
        ("    features: 30", "    features: many", "data", "params.yaml, tiny.data.features is 'many': "),
        ("    features: 30", "    features: 0", "data", "params.yaml, tiny.data.features is 0: input should be greater than 0"),
        ("    features: 30", "    features: 1.5", "data", "params.yaml, tiny.data.features is 1.5: "),
        ("    penalty: 5.0", "    penalty: .inf", "train", "params.yaml, tiny.train.penalty is inf: "),
        ("    penalty: 5.0", "    threads: 0\n    penalty: 5.0", "train", "params.yaml, tiny.train.threads is 0: "),
        ("    penalty: 5.0", "    penalty: [", "train", "params.yaml, line "),
        ("  train:\n", "  trian:\n", "train", "params.yaml, tiny.trian is no stage: "),
        ("tiny:\n", "tinny:\n", "train", "params.yaml: there is no section `tiny`"),
        ("  evaluate: {}", "  evaluate: 3", "evaluate", "params.yaml, tiny.evaluate: 3 is not a mapping of parameters"),
    ],
)
def test_wrong_parameters_are_named_and_nothing_is_written(complete, old, new, stage, sentence):
    edit(complete / PARAMS, old, new)
    before = files(complete)
    done = projects.stage(complete, "tiny", stage, **FREE)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
    assert files(complete) == before


@pytest.mark.parametrize(
    ("slug", "stage", "sentence"),
    [
        ("tinny", "data", "there is no paper 'tinny': did you mean tiny?"),
        ("tiny", "trian", "there is no stage 'trian': a flow has data, train, evaluate, report"),
        ("../tiny", "data", "there is no paper '../tiny': did you mean tiny?"),
    ],
)
def test_unknown_papers_and_stages_are_named(finished, slug, stage, sentence):
    before = files(finished)
    done = projects.stage(finished, slug, stage, **FREE)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {sentence}\n")
    assert files(finished) == before


def test_a_run_with_a_wrong_parameter_ends_with_two_and_the_sentence_alone(complete):
    edit(complete / PARAMS, "    penalty: 5.0", "    penalty: -5.0")
    outputs_before, lock = files(complete / "artifacts"), hashes(complete)
    done = projects.call(complete, "run", "tiny", "--no-track")
    assert done.returncode == 2
    assert done.stderr == "error: params.yaml, tiny.train.penalty is -5.0: input should be greater than 0\n"
    assert files(complete / "artifacts") == outputs_before
    assert hashes(complete) == lock


def test_an_rwlock_of_dead_processes_is_seen_and_does_not_stop_dvc(complete):
    from tasks.dvc import rwlock_path, rwlock_problem
    from tasks.project import Project

    path = rwlock_path(Project(complete))
    dead = {"pid": 2**22 + 1, "cmd": "dvc repro"}
    path.write_text(json.dumps({"write": {str(complete / "artifacts" / "tiny" / "train"): dead}, "read": {}}))
    assert rwlock_problem(Project(complete)) == f"it names dead processes: {dead['pid']}"
    edit(complete / PARAMS, "    penalty: 5.0", "    penalty: 6.0")
    repro(complete)
