"""Where a project's files are: one place that knows the layout."""

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.environment import HOME_VARIABLE, ROOT_VARIABLE
from tasks.errors import UserError

PARAMS = "params.yaml"


@dataclass(frozen=True)
class Project:
    """A folder with `params.yaml` and `flows/`; `home` owns the tracking store, and is another where this one is a side
    workspace."""

    root: Path
    home: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).resolve())
        object.__setattr__(self, "home", Path(self.home or self.root).resolve())

    def environment(self) -> dict[str, str]:
        """What a process has to find in its environment to work in this project."""
        return {ROOT_VARIABLE: str(self.root), HOME_VARIABLE: str(self.home)}

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
        return Project(Path(named), os.environ.get(HOME_VARIABLE))
    here = Path(start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if (folder / PARAMS).is_file() and (folder / "flows").is_dir():
            return Project(folder)
    raise UserError(f"no project at {here} or above it: a project is a folder with {PARAMS} and flows/")
