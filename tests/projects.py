"""Projects for tests: a folder of its own with the code, parameters, DVC and one tiny paper."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def call(folder: Path, *words: str, check: bool = False, timeout: float = 300, **env: str) -> subprocess.CompletedProcess:
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
