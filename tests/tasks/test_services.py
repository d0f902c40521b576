"""The real components, used for real: a Prefect server with a schedule, a DVC remote, an MLflow server, a Ray cluster."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.projects import call, dvc, environment, make_project, stage

pytestmark = pytest.mark.platform
STAGES = ["data", "train", "evaluate", "report"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(words: list[str], folder: Path, log: Path, **env: str):
    """A process in a group of its own, ended with all its children at the end."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(folder, **env), stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(condition, what: str, log: Path, seconds: float = 150):
    """The first true value of `condition()`; fails with the log when it does not come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.5)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s:\n{log.read_text()[-3000:]}")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


def post(url: str, body: dict) -> list[dict]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)


def hashes(folder: Path, slug: str = "tiny") -> dict[str, str]:
    """Path -> md5 of every output in a paper's dvc.lock."""
    text = (folder / "flows" / slug / "dvc.lock").read_text()
    return dict(re.findall(r"- path: ((?:artifacts|results)/\S+)\n\s+hash: md5\n\s+md5: (\S+)", text))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A project whose paper has run by `dvc repro` alone, without tracking."""
    folder = make_project(tmp_path_factory.mktemp("finished") / "project")
    done = dvc(folder, "repro", "flows/tiny/dvc.yaml", PAPERFLOWS_TRACK="0")
    assert done.returncode == 0, done.stderr
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "commit", "-qm", "run"], cwd=folder, check=True)
    return folder


def copy_of(project: Path, target: Path) -> Path:
    shutil.copytree(project, target, symlinks=True)
    return target


def test_a_schedule_runs_the_stages_and_leaves_the_claims_then_every_stage_is_cached(tmp_path):
    folder = make_project(tmp_path / "project")
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    env = {"PREFECT_API_URL": api, "PREFECT_RUNNER_POLL_FREQUENCY": "2", "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5"}
    server = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with running(server, folder, tmp_path / "server.log", **env):
        wait_for(lambda: answers(f"{api}/health"), "Prefect's server", tmp_path / "server.log")
        served = [sys.executable, "-m", "tasks", "serve", "tiny", "--every", "8"]
        with running(served, folder, tmp_path / "serve.log", **env):

            def completed(count: int):
                body = {
                    "flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}},
                    "sort": "START_TIME_ASC",
                }
                runs = post(f"{api}/flow_runs/filter", body)
                return runs if len(runs) >= count else None

            runs = wait_for(lambda: completed(2), "a second scheduled run", tmp_path / "serve.log", 240)
        first, second = runs[:2]
        assert (first["state_name"], second["state_name"]) == ("Completed", "Completed"), (tmp_path / "serve.log").read_text()
        assert first["auto_scheduled"]

        def stages_of(run: dict) -> list[tuple[str, str]]:
            body = {"task_runs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
            return [(task["name"], task["state_name"]) for task in post(f"{api}/task_runs/filter", body)]

        assert sorted(stages_of(first)) == sorted((name, "Completed") for name in STAGES)
        assert sorted(stages_of(second)) == sorted((name, "Cached") for name in STAGES)
        [artifact] = post(
            f"{api}/artifacts/filter", {"artifacts": {"key": {"any_": ["tiny-claims"]}, "flow_run_id": {"any_": [first["id"]]}}}
        )
        table = json.loads(artifact["data"])
        claims = json.loads((folder / "results" / "tiny" / "claims.json").read_text())
        assert [(row["id"], row["verdict"]) for row in table] == [(claim["id"], claim["verdict"]) for claim in claims]


def test_a_work_pool_gets_a_deployment_that_its_worker_can_run(tmp_path):
    folder = make_project(tmp_path / "project")
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    env = {"PREFECT_API_URL": api, "PAPERFLOWS_TRACK": "0"}
    prefect = [sys.executable, "-m", "prefect"]
    log = tmp_path / "server.log"
    with running([*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)], folder, log, **env):
        wait_for(lambda: answers(f"{api}/health"), "Prefect's server", log)
        missing = call(folder, "deploy", "nowhere", **env)
        assert (missing.returncode, "there is no work pool 'nowhere'" in missing.stderr) == (2, True)
        subprocess.run(
            [*prefect, "work-pool", "create", "here", "--type", "process"], env=environment(folder, **env), check=True
        )
        assert call(folder, "deploy", "here", "tiny", **env).returncode == 0
        words = ["deployment", "run", "tiny/pooled"]
        subprocess.run([*prefect, *words], env=environment(folder, **env), cwd=tmp_path, check=True)
        worker = [*prefect, "worker", "start", "--pool", "here", "--run-once"]
        # The worker is started elsewhere: the deployment itself knows where the project is.
        done = subprocess.run(
            worker, env=environment(tmp_path, **env), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        [run] = post(f"{api}/flow_runs/filter", {"flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}}})
        assert run["state_name"] == "Completed", done.stdout + done.stderr
    assert (folder / "results" / "tiny" / "claims.json").is_file()


def test_push_clone_pull(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "project")
    remote = tmp_path / "remote"
    for words in (["remote", "add", "-d", "here", str(remote)], ["push"]):
        assert dvc(folder, *words).returncode == 0
    subprocess.run(["git", "commit", "-qam", "remote"], cwd=folder, check=True)
    subprocess.run(["git", "clone", "-q", str(folder), str(tmp_path / "clone")], check=True)
    clone = tmp_path / "clone"
    assert not (clone / "artifacts").exists()
    assert dvc(clone, "pull", "flows/tiny/dvc.yaml").returncode == 0
    assert "up to date" in dvc(clone, "status", "flows/tiny/dvc.yaml").stdout
    for name in STAGES[:3]:
        assert (clone / "artifacts" / "tiny" / name).is_dir()


def test_repro_and_run_leave_the_same_hashes_and_repeat_to_the_byte(finished, tmp_path):
    folder = make_project(tmp_path / "project")
    first = call(folder, "run", "tiny", "--no-track", check=True)
    assert first.stdout.count("executed") == 4
    assert hashes(folder) == hashes(finished)
    assert len(hashes(folder)) == 8  # three folders, metrics, three files and the figures of the report
    assert dvc(folder, "repro", "-f", "flows/tiny/dvc.yaml", PAPERFLOWS_TRACK="0").returncode == 0
    assert hashes(folder) == hashes(finished)
    again = call(folder, "run", "tiny", "--no-track", check=True)
    assert again.stdout.count("cached") == 4


def test_an_edit_reruns_what_depends_on_it_and_nothing_else(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "project")

    def rerun() -> list[str]:
        done = dvc(folder, "repro", "flows/tiny/dvc.yaml", PAPERFLOWS_TRACK="0")
        assert done.returncode == 0, done.stderr
        return re.findall(r"Running stage 'flows/tiny/dvc.yaml:(\w+)'", done.stdout)

    assert rerun() == []
    report = folder / "flows" / "tiny" / "report.py"
    report.write_text(report.read_text().replace("Errors of both models", "The errors of both models"))
    assert rerun() == ["report"]
    component = folder / "components" / "stats" / "intervals.py"
    component.write_text(component.read_text() + "\n# a remark\n")
    # evaluate imports it; its output stays the same, and the report imports it too
    assert rerun() == ["evaluate", "report"]
    (folder / "components" / "unused.py").write_text("x = 1\n")
    assert rerun() == []


def client(uri: str):
    import mlflow

    return mlflow.MlflowClient(uri)


def test_eight_processes_logging_at_once_lose_nothing(tmp_path):
    folder = make_project(tmp_path / "project")
    code = """
import sys
from tasks import track
from tasks.project import find_project
from tasks.tracking import stage_run
with stage_run(find_project(), "tiny", "train", "smoke", {"writer": sys.argv[1]}):
    for seed in range(5):
        track.run(f"{sys.argv[1]} {seed}", params={"seed": seed}, curves={"loss": [1 / (k + 1) for k in range(1200)]}, metrics={"end": seed})
"""
    words = [[sys.executable, "-c", code, str(writer)] for writer in range(8)]
    writers = [subprocess.Popen(w, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True) for w in words]
    for writer in writers:
        _, errors = writer.communicate(timeout=280)
        assert writer.returncode == 0, errors
    store = client(f"sqlite:///{folder / 'mlflow.db'}")
    [experiment] = [e for e in store.search_experiments() if e.name == "tiny"]
    runs = store.search_runs([experiment.experiment_id], max_results=1000)
    parents = {run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags}
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert (len(parents), len(nested)) == (8, 40)
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == parents
    assert all(run.info.status == "FINISHED" for run in runs)
    histories = [store.get_metric_history(run.info.run_id, "loss") for run in nested]
    assert all([point.step for point in sorted(h, key=lambda point: point.step)] == list(range(1200)) for h in histories)


def test_a_real_mlflow_server_gets_runs_curves_inputs_and_verdicts(tmp_path):
    folder = make_project(tmp_path / "project")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    words = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}", "--artifacts-destination", str(tmp_path / "artifacts")),
    ]
    with running(words, folder, tmp_path / "server.log"):
        wait_for(lambda: answers(f"{uri}/health"), "MLflow's server", tmp_path / "server.log")
        done = dvc(folder, "repro", "flows/tiny/dvc.yaml", MLFLOW_TRACKING_URI=uri)
        assert done.returncode == 0, done.stderr
        store = client(uri)
        [experiment] = [e for e in store.search_experiments() if e.name == "tiny"]
        runs = store.search_runs([experiment.experiment_id], max_results=100)
        stages = {run.data.tags["stage"]: run for run in runs if "mlflow.parentRunId" not in run.data.tags}
        assert sorted(stages) == sorted(STAGES)
        train = stages["train"]
        nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == train.info.run_id]
        assert {(run.data.params["method"], run.data.params["seed"]) for run in nested} == {
            (method, str(draw)) for method in ("least squares", "ridge") for draw in range(3)
        }
        assert train.data.tags["profile"] == "smoke"
        assert re.fullmatch(r"[0-9a-f]{40}\+?", train.data.tags["git.commit"])
        assert train.data.tags["dvc.stage"] == "flows/tiny/dvc.yaml:train"
        assert [entry.dataset.name for entry in train.inputs.dataset_inputs] == ["tiny/data"]
        claims = json.loads((folder / "results" / "tiny" / "claims.json").read_text())
        assert {key: value for key, value in stages["report"].data.metrics.items() if key.startswith("claim/")} == {
            f"claim/{c['id']}": float(c["verdict"] == "holds") for c in claims if c["verdict"] != "not testable at this scale"
        }
        names = [artifact.path for artifact in store.list_artifacts(stages["report"].info.run_id, "report")]
        assert "report/index.html" in names
    assert not (folder / "mlflow.db").exists()


def sweep_results(folder: Path) -> list[dict]:
    return json.loads((folder / ".paperflows" / "sweeps" / "tiny" / "results.json").read_text())


def test_a_local_sweep_with_asha_applies_its_best_and_keeps_the_comments(tmp_path):
    folder = make_project(tmp_path / "project")
    before = (folder / "params.yaml").read_text()
    done = call(folder, "sweep", "tiny", "-n", "6", "--apply")
    assert done.returncode == 0, done.stderr
    trials = sweep_results(folder)
    assert len(trials) == 6
    finished = [trial for trial in trials if not trial["stopped"]]
    assert trials[0]["objective"] == min(trial["objective"] for trial in finished)
    assert any(trial["stopped"] for trial in trials), "ASHA stopped nothing: the test's space no longer separates trials"
    after = (folder / "params.yaml").read_text()
    best = trials[0]["parameters"]["train.penalty"]
    assert float(re.search(r"penalty: (\S+)", after).group(1)) == best
    assert re.findall("#.*", after) == re.findall("#.*", before)
    store = client(f"sqlite:///{folder / 'mlflow.db'}")
    [experiment] = [e for e in store.search_experiments() if e.name == "tiny"]
    runs = store.search_runs([experiment.experiment_id], max_results=100)
    [parent] = [run for run in runs if run.data.tags["stage"] == "sweep" and "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.data.metrics["objective"] for run in children) == sorted(trial["objective"] for trial in trials)
    for name in ("sweep.png", "sweep.md"):
        assert (folder / ".paperflows" / "sweeps" / "tiny" / name).stat().st_size > 0


def test_a_trial_that_uses_all_its_steps_is_not_taken_for_one_that_was_stopped(tmp_path):
    folder = make_project(tmp_path / "project", profile="cpu")  # eight draws, as many as the sweep's max_steps
    done = call(folder, "sweep", "tiny", "-n", "1", PAPERFLOWS_TRACK="0")
    assert done.returncode == 0, done.stderr
    [trial] = sweep_results(folder)
    assert (trial["stopped"], trial["steps"]) == (False, 9)


def test_a_sweep_on_a_cluster_gives_the_objectives_of_a_local_one(tmp_path):
    folder = make_project(tmp_path / "project")
    port = free_port()
    host = "127.0.0.2"  # loopback, and not a name that Ray takes for this machine's outer address
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    head = [*ray, "start", "--head", f"--node-ip-address={host}", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    # Ray's own token check, with a token of this test's: what a team's cluster has.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    where = token | {"RAY_ADDRESS": f"{host}:{port}", "PAPERFLOWS_TRACK": "0"}
    with running([*head, "--block"], folder, tmp_path / "ray.log", **token):
        wait_for(lambda: "Ray runtime started" in (tmp_path / "ray.log").read_text(), "Ray's head", tmp_path / "ray.log")
        done = call(folder, "sweep", "tiny", "-n", "2", **where)
        assert done.returncode == 0, done.stdout + done.stderr
    cluster = {
        trial["number"]: (trial["parameters"], trial["objective"]) for trial in sweep_results(folder) if not trial["stopped"]
    }
    assert cluster
    # The same trial, bare: train and evaluate with its parameters, the way `paperflows run --set` would.
    for parameters, objective in cluster.values():
        text = (folder / "params.yaml").read_text()
        (folder / "params.yaml").write_text(re.sub(r"penalty: \S+", f"penalty: {parameters['train.penalty']!r}", text))
        for name in STAGES[:3]:
            assert stage(folder, "tiny", name, PAPERFLOWS_TRACK="0").returncode == 0
        metrics = json.loads((folder / "results" / "tiny" / "metrics.json").read_text())
        assert metrics["ridge"]["planted/error"]["mean"] == objective
