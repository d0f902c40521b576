"""Projects for tests: a folder of its own with the code, parameters, DVC and one tiny paper."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent


def make_project(folder: Path, slugs: tuple[str, ...] = ("tiny",), profile: str = "smoke") -> Path:
    """A project at `folder`, in git and DVC, with papers made by `paperflows new`."""
    folder.mkdir(parents=True)
    for package in ("tasks", "components", "kernels"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "flows").mkdir()
    for name in ("flows/__init__.py", "flows/__main__.py", "pyproject.toml", ".gitignore", ".dvcignore"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "params.yaml").write_text(f"# every parameter\nprofile: {profile}  # one of three\n", encoding="utf-8")
    for words in (["init", "-q"], ["config", "user.email", "test@example.org"], ["config", "user.name", "test"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
    for slug in slugs:
        call(folder, "new", slug, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "commit", "-qm", "begin"], cwd=folder, check=True)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a process that works in the project at `folder`, apart from any other project."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PAPERFLOWS_", "MLFLOW_", "PREFECT_", "RAY_"))
    }
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PREFECT_HOME": str(folder / ".prefect"),
        **more,
    }


def call(folder: Path, *words: str, check: bool = False, timeout: float = 560, **env: str) -> subprocess.CompletedProcess:
    """`paperflows WORDS` in the project."""
    done = subprocess.run(
        [sys.executable, "-m", "tasks", *words],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"paperflows {' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def stage(folder: Path, slug: str, name: str, **env: str) -> subprocess.CompletedProcess:
    """`python -m flows SLUG STAGE` in the project."""
    return subprocess.run(
        [sys.executable, "-m", "flows", slug, name],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def dvc(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess:
    """`dvc WORDS` in the project."""
    return subprocess.run(
        [sys.executable, "-m", "dvc", *words],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def python(folder: Path, *words: str, **env: str) -> "Running":
    """`python WORDS` in the project, in a process group of its own, as a terminal would start it."""
    out = folder.parent / f"{folder.name}.{time.monotonic_ns()}"
    with out.with_suffix(".out").open("w") as stdout, out.with_suffix(".err").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment(folder, **env),
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    return Running(process, out)


class Running:
    """A process that a test started and has not waited for."""

    def __init__(self, process: subprocess.Popen, out: Path) -> None:
        self.process, self.out = process, out

    @property
    def stdout(self) -> str:
        return self.out.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self.out.with_suffix(".err").read_text()

    def wait(self, timeout: float = 240) -> int:
        """Its exit code."""
        return self.process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        """To the whole group: what Ctrl-C on a terminal and a job's time limit do."""
        os.killpg(self.process.pid, number)


def until(condition: Callable[[], object], what: str, running: Running | None = None, deadline: float = 120) -> None:
    """Wait for a condition; fail when it does not come true in time, or when the process that should bring it about ends."""
    end = time.monotonic() + deadline
    while not condition():
        said = f"\n{running.stdout}\n{running.stderr}" if running else ""
        if running and running.process.poll() is not None and not condition():
            raise AssertionError(f"the process ended with {running.process.returncode} before {what}{said}")
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s in vain: {what}{said}")
        time.sleep(0.02)


def end_processes(folder: Path) -> list[str]:
    """End whatever still works in the folder; returns what it was."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has just ended, or is another user's
    return found


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that stands once in a file."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def copy(project: Path, target: Path) -> Path:
    """A project as it stands, at another place."""
    shutil.copytree(project, target, symlinks=True)
    return target


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, without what git and compilers leave."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".git"} & set(path.parts)
    }
