"""Where a project's files are: one place that knows the layout."""

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.environment import HOME_VARIABLE, ROOT_VARIABLE
from tasks.errors import UserError

PARAMS = "params.yaml"


@dataclass(frozen=True)
class Project:
    """A folder with `params.yaml` and `flows/`."""

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).resolve())

    @property
    def home(self) -> Path:
        """The project that owns the tracking store: this one, unless it is a side workspace of another."""
        return Path(os.environ.get(HOME_VARIABLE) or self.root)

    @property
    def params(self) -> Path:
        return self.root / PARAMS

    @property
    def scratch(self) -> Path:
        """Locks and side workspaces; may be deleted whenever nothing runs."""
        return self.root / ".paperflows"

    def flow(self, slug: str) -> Path:
        return self.root / "flows" / slug

    def artifact(self, slug: str, stage: str) -> Path:
        return self.root / "artifacts" / slug / stage

    def results(self, slug: str) -> Path:
        return self.root / "results" / slug

    def asset(self, name: str) -> Path:
        return self.root / "data" / name

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def find_project(start: Path | None = None) -> Project:
    """The project around `start` (default: the working folder), or the one that this package was installed from.

    Raises UserError when there is none."""
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        if not (Path(named) / PARAMS).is_file():
            raise UserError(f"{ROOT_VARIABLE} is {named}, but there is no {PARAMS} in that folder")
        return Project(Path(named))
    here = Path(start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if (folder / PARAMS).is_file() and (folder / "flows").is_dir():
            return Project(folder)
    raise UserError(f"no project at {here} or above it: a project is a folder with {PARAMS} and flows/")
