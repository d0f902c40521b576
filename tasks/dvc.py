"""DVC owns state: what is up to date, with which inputs. This module is the only one that talks to it.

DVC runs in this process (starting its command line costs more than asking it), one stage at a time: `single_item` skips
the graph of all papers. Its lock is held only while it looks and records, not while a stage computes.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.paper import STAGES, check_stage
from tasks.project import Project


@dataclass(frozen=True)
class Outcome:
    """What became of one stage: `executed`, `restored` (from DVC's run cache) or `cached` (nothing had changed)."""

    stage: str
    state: str
    seconds: float


class StageFailed(Exception):
    """A stage's command ended badly; its own message has been printed.

    `code` is its exit code. A process that a signal ended has 128 plus the signal's number, as a shell says it: of a stage
    that Ctrl-C interrupts, DVC sees one or the other, as the shell that started it outlives it or not."""

    def __init__(self, slug: str, stage: str, code: int) -> None:
        code = code if code >= 0 else 128 - code
        super().__init__(f"the stage {stage} of {slug} failed with exit code {code}")
        self.code = code


def open_repo(project: Project) -> Any:
    """DVC's repository of the project; use `opened`. It waits for a lock that another process holds.

    Raises UserError where DVC is not initialised."""
    _quiet()
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    try:
        return Repo(str(project.root), _wait_for_lock=True)
    except NotDvcRepoError:
        raise UserError(f"{project.root} has no .dvc folder: run `dvc init` there, or clone the project anew") from None


@contextlib.contextmanager
def opened(project: Project) -> Iterator[Any]:
    """DVC's repository, closed at the end. DVC wants the working folder to lie in it."""
    with contextlib.chdir(project.root):
        repo = open_repo(project)
        try:
            yield repo
        finally:
            repo.close()


def _quiet() -> None:
    # DVC speaks of what it does through its logger; the runs' own lines say it better.
    logging.getLogger("dvc").setLevel(logging.ERROR)


def _address(path: Path, stage: str) -> str:
    if not path.is_file():
        raise UserError(f"{path} is missing: run `paperflows sync`")
    return f"{path}:{stage}"


def changes(project: Project, slug: str, repo: Any) -> dict[str, list[str]]:
    """For each stage of a paper what has changed since it was last reproduced; an empty list: nothing.

    While a stage is being run there is no telling, and that is what the list says."""
    from dvc.lock import LockError

    found: dict[str, list[str]] = {}
    with _readable(project):
        for stage in STAGES:
            [loaded] = repo.stage.collect(_address(project.flow(slug) / "dvc.yaml", stage))
            try:
                with repo.lock:
                    report = loaded.status(check_updates=False)
                found[stage] = sorted(_flat(report))
            except LockError:
                found[stage] = ["being run"]
    return found


def _flat(report: dict) -> Iterator[str]:
    """DVC's nested report as lines: 'modified flows/bes/train.py'."""
    for entries in report.values():
        for entry in entries:
            if isinstance(entry, str):
                yield entry
                continue
            for group in entry.values():
                for path, state in group.items():
                    yield from (f"{s} {key}" for key, s in state.items()) if isinstance(state, dict) else [f"{state} {path}"]


def reproduce(project: Project, slug: str, stage: str, *, force: bool = False) -> Outcome:
    """Bring one stage up to date, its upstream stages being so.

    Raises StageFailed if its command fails, UserError if DVC cannot even start it."""
    check_stage(stage)
    if threading.current_thread() is not threading.main_thread():
        return _in_own_process(project, slug, stage, force)
    begin = time.monotonic()
    state = reproduce_file(project, project.flow(slug) / "dvc.yaml", stage, force=force)
    return Outcome(stage, state, time.monotonic() - begin)


class _PathBusy(Exception):
    pass


def reproduce_file(project: Project, path: Path, stage: str, *, force: bool = False) -> str:
    """Bring a stage of the dvc.yaml at `path` up to date and say what became of it; waits for what others hold."""
    begin = time.monotonic()
    while True:
        try:
            return _reproduce_once(project, path, stage, force)
        except _PathBusy as busy:
            # Another run reads or writes what this stage needs; DVC gives up at once, we wait.
            if time.monotonic() - begin > 3600:
                raise UserError(f"waited an hour for DVC's lock ({busy}); `paperflows doctor` heals a stale one") from None
            time.sleep(0.5)


def _in_own_process(project: Project, slug: str, stage: str, force: bool) -> Outcome:
    """DVC's table of readers and writers knows processes, not threads: papers side by side need one process each."""
    with tempfile.NamedTemporaryFile(suffix=".json") as answer:
        words = [sys.executable, "-m", "tasks.dvc", slug, stage, answer.name, *(["--force"] if force else [])]
        done = subprocess.run(words, cwd=project.root, env=os.environ | project.environment(), check=False)
        text = answer.read()
    if text:
        said = json.loads(text)
        if "error" in said:
            raise UserError(said["error"])
        if "failed" in said:
            raise StageFailed(slug, stage, said["failed"])
        return Outcome(**said)
    raise StageFailed(slug, stage, done.returncode)


def _main() -> None:
    slug, stage, answer, *rest = sys.argv[1:]
    from tasks.environment import prepare
    from tasks.project import find_project

    prepare()
    try:
        said = vars(reproduce(find_project(), slug, stage, force="--force" in rest))
    except StageFailed as error:
        said = {"failed": error.code}
    except UserError as error:
        said = {"error": str(error)}
    except KeyboardInterrupt:
        said = {"failed": 130}
    Path(answer).write_text(json.dumps(said), encoding="utf-8")


def _reproduce_once(project: Project, path: Path, stage: str, force: bool) -> str:
    from dvc.exceptions import DvcException, ReproductionError
    from dvc.lock import LockError
    from dvc.stage.exceptions import StageCmdFailedError

    marker = _ExecutionMarker()
    name = path.parent.name if path.parent != project.root else "the project"
    try:
        with opened(project) as repo, _readable(project), marker.watching(), children_told(project.environment()):
            done = repo.reproduce(_address(path, stage), single_item=True, force=force)
    except ReproductionError as error:
        cause = error.__cause__
        if isinstance(cause, StageCmdFailedError):
            raise StageFailed(name, stage, _code(str(cause))) from None
        if isinstance(cause, LockError):
            raise _PathBusy(str(cause)) from None
        if isinstance(cause, OSError) and not isinstance(cause, DvcException):
            raise UserError(f"{name}, {stage}: {cause}") from cause
        raise UserError(f"{name}, {stage}: {cause or error}") from error
    except LockError as error:
        raise _PathBusy(str(error)) from None
    except OSError as error:
        raise UserError(f"{name}, {stage}: {error}") from error
    if not done:
        return "cached"
    return "executed" if marker.seen else "restored"


@contextlib.contextmanager
def children_told(wanted: dict[str, str]) -> Iterator[None]:
    """Within the block, processes started here find `wanted` in their environment; DVC hands on this process's own."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _ExecutionMarker(logging.Handler):
    """Whether DVC started a command: a stage whose inputs were seen before comes back from the run cache instead."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen = False

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("Running stage"):
            self.seen = True

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("dvc.stage.run")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


def _code(message: str) -> int:
    digits = message.rstrip().rsplit(" ", 1)[-1]
    return int(digits) if digits.lstrip("-").isdigit() else 1


@contextlib.contextmanager
def _readable(project: Project) -> Iterator[None]:
    """DVC's own complaints about broken files, as one sentence with a cure."""
    from dvc.exceptions import DvcException
    from dvc.rwlock import RWLockFileCorruptedError, RWLockFileFormatError

    try:
        yield
    except (RWLockFileCorruptedError, RWLockFileFormatError) as error:
        raise UserError(f"{error}: a crash left it so; `paperflows doctor` heals it") from error
    except DvcException as error:
        from dvc.exceptions import ReproductionError
        from dvc.lock import LockError

        if isinstance(error, ReproductionError | LockError):
            cause = error.__cause__
            if isinstance(cause, RWLockFileCorruptedError | RWLockFileFormatError):
                raise UserError(f"{cause}: a crash left it so; `paperflows doctor` heals it") from error
            raise
        raise UserError(str(error)) from error


def locked_hashes(project: Project, slug: str) -> dict[str, str]:
    """Path -> hash of every output that a paper's dvc.lock records."""
    from tasks.settings import read

    lock = project.flow(slug) / "dvc.lock"
    if not lock.is_file():
        return {}
    return {out["path"]: out["md5"] for entry in read(lock)["stages"].values() for out in entry.get("outs", [])}


def pin_asset(project: Project, name: str) -> None:
    """Put `data/<name>` under DVC: a file `data/<name>.dvc` beside it holds its hash.

    One file per asset: with a single one for the whole folder, DVC would record a partly fetched folder as the new truth."""
    with opened(project) as repo:
        repo.add([str(project.asset(name))])


def rwlock_problem(project: Project) -> str | None:
    """What is wrong with DVC's table of readers and writers, if anything: a crash may leave it empty, or with dead holders."""
    import psutil

    path = rwlock_path(project)
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return "it is not valid JSON"
    if not isinstance(table, dict):
        return "it is not a table"
    holders = set()
    for entry in (table.get("read") or {}).values():
        holders |= {info["pid"] for info in entry}
    holders |= {info["pid"] for info in (table.get("write") or {}).values()}
    dead = sorted(pid for pid in holders if not psutil.pid_exists(pid))
    return f"it names dead processes: {', '.join(map(str, dead))}" if dead else None


def rwlock_path(project: Project) -> Path:
    return project.root / ".dvc" / "tmp" / "rwlock"


if __name__ == "__main__":
    _main()
