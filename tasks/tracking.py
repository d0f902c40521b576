"""MLflow: the store, checked before anything is computed, and the run of a stage."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks import track
from tasks.environment import tracking_wanted
from tasks.errors import UserError
from tasks.project import Project

_BATCH = 1000  # MLflow's own limit of metrics in one request
_PARAMS = 100
_PATIENCE = 3.0  # seconds until a tracking server counts as unreachable


def store_uri(project: Project) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file at the project's root.

    SQLite waits for a busy database instead of failing: stages of several papers write at once."""
    named = os.environ.get("MLFLOW_TRACKING_URI")
    return named or f"sqlite:///{project.home / 'mlflow.db'}?timeout=120"


def check_reachable(uri: str) -> None:
    """Raises UserError within seconds if a tracking server does not accept connections."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_PATIENCE).close()
    except OSError as error:
        raise UserError(
            f"the tracking server {parts.scheme}://{parts.hostname}:{port} cannot be reached ({error.strerror or error}): "
            "start it, set MLFLOW_TRACKING_URI to another, or run with --no-track"
        ) from None


def prepare_store(project: Project) -> str:
    """The store's address, reachable and with its schema in place.

    The schema of a new SQLite file takes seconds to make; a file lock lets only one process make it."""
    uri = store_uri(project)
    check_reachable(uri)
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///").partition("?")[0])  # a fourth slash makes it absolute
        ready = path.with_name(path.name + ".ready")
        if not (ready.exists() and path.exists()):
            from filelock import FileLock

            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(str(path) + ".lock", timeout=300):
                if not (ready.exists() and path.exists()):
                    _client(uri).search_experiments(max_results=1)
                    ready.touch()
    return uri


def _client(uri: str):
    # A server that stops answering later must not hold a stage for MLflow's default of many minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    import logging

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    import mlflow

    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(uri)


class StageRun:
    """The open MLflow run of a stage; a stage reaches it through `tasks.track`."""

    def __init__(self, client: Any, experiment_id: str, run_id: str, tags: Mapping[str, str]) -> None:
        self.client, self.experiment_id, self.run_id, self.tags = client, experiment_id, run_id, dict(tags)

    def nested(
        self,
        name: str,
        params: Mapping[str, Any],
        metrics: Mapping[str, float],
        curves: Mapping[str, Sequence[float]],
        steps: Sequence[int] | None,
        tags: Mapping[str, str],
    ) -> str:
        run = self.client.create_run(
            self.experiment_id, run_name=name, tags={**self.tags, **tags, "mlflow.parentRunId": self.run_id}
        )
        self.log(run.info.run_id, params, metrics, curves, steps)
        self.client.set_terminated(run.info.run_id)
        return run.info.run_id

    def log(
        self,
        run_id: str,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        curves: Mapping[str, Sequence[float]] | None = None,
        steps: Sequence[int] | None = None,
    ) -> None:
        """Batched: one request holds up to a thousand points."""
        import time

        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        points = [Metric(_name(key), float(value), now, 0) for key, value in (metrics or {}).items()]
        for key, values in (curves or {}).items():
            at = steps if steps is not None else range(len(values))
            points += [Metric(_name(key), float(value), now, int(step)) for step, value in zip(at, values, strict=True)]
        entries = [Param(_name(key), str(value)[:6000]) for key, value in (params or {}).items()]
        for start in range(0, len(entries), _PARAMS):
            self.client.log_batch(run_id, params=entries[start : start + _PARAMS])
        for start in range(0, len(points), _BATCH):
            self.client.log_batch(run_id, metrics=points[start : start + _BATCH])

    def dataset(self, name: str, digest: str, source: str) -> None:
        from mlflow.entities import Dataset, DatasetInput

        entry = Dataset(name=name, digest=digest[:36], source_type="local", source=source)
        self.client.log_inputs(self.run_id, [DatasetInput(dataset=entry, tags=[])])

    def artifacts(self, folder: Path, into: str) -> None:
        self.client.log_artifacts(self.run_id, str(folder), into)


def _name(key: str) -> str:
    """MLflow's names hold letters, digits and _-./: and spaces."""
    return "".join(character if character.isalnum() or character in "_-./: " else "_" for character in str(key))


@contextlib.contextmanager
def stage_run(project: Project, slug: str, stage: str, profile: str, params: Mapping[str, Any]) -> Iterator[StageRun | None]:
    """The stage's run, open for `tasks.track` and for plain MLflow calls; None where tracking is off."""
    if not tracking_wanted():
        yield None
        return
    uri = prepare_store(project)
    client = _client(uri)
    import mlflow

    experiment = mlflow.set_experiment(slug)
    tags = {
        "paper": slug,
        "stage": stage,
        "profile": profile,
        "git.commit": git_commit(project.home),
        "dvc.stage": f"flows/{slug}/dvc.yaml:{stage}",
    }
    with mlflow.start_run(run_name=stage, tags=tags) as active:
        run = StageRun(client, experiment.experiment_id, active.info.run_id, tags)
        run.log(run.run_id, params=params)
        track.open_for(run)
        try:
            yield run
        finally:
            track.open_for(None)


def git_commit(root: Path) -> str:
    """The commit of the working tree, with `+` if it differs from it; `none` outside a repository."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return "none"
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "params.yaml") else "")
