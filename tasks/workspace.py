"""Side workspaces: a run with another profile or with settings of its own never touches the committed results.

A side workspace is a small project of its own, `.paperflows/work/<name>/`: a snapshot of the code, the parameters with
the changes written in, its own dvc.yaml, dvc.lock, artifacts and results. It shares the data folder, DVC's cache (so a
stage that was ever run with the same inputs comes back at once) and the tracking store.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.files import write_text
from tasks.project import PARAMS, Project
from tasks.settings import PROFILES, parse_setting, write_with_settings

_CODE = ("flows", "tasks", "components", "kernels")


def name_of(profile: str | None, settings: Mapping[str, Any]) -> str:
    """A readable name for the combination: the profile, and a short hash of the settings."""
    parts = [profile or "set"]
    if settings:
        text = json.dumps(settings, sort_keys=True, default=str)
        parts.append(hashlib.sha256(text.encode()).hexdigest()[:8])
    return "-".join(parts)


def make(project: Project, profile: str | None, settings: Mapping[str, Any]) -> Project:
    """The side workspace for `profile` and `settings` ({"slug.stage.key": value}), its code brought up to date.

    Raises UserError for a profile or a key that does not exist; nothing is written then."""
    if profile is not None and profile not in PROFILES:
        raise UserError(f"there is no profile {profile!r}: choose {', '.join(PROFILES)}")
    root = project.scratch / "work" / name_of(profile, settings)
    root.mkdir(parents=True, exist_ok=True)
    try:
        write_with_settings(project.params, root / PARAMS, dict(settings), profile)
    except UserError:
        if not (root / ".dvc").exists():
            shutil.rmtree(root)
        raise
    snapshot(project.root, root)
    _make_repository(project, root)
    link = root / "data"
    if not link.is_symlink():
        link.symlink_to(project.root / "data", target_is_directory=True)
    return Project(root, home=project.home)


def snapshot(source: Path, target: Path) -> None:
    """Copy the code, file by file where it differs; files that are gone are removed, `dvc.lock` is the target's own."""
    for package in _CODE:
        wanted = {
            path.relative_to(source)
            for path in (source / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.name != "dvc.lock"
        }
        for path in wanted:
            new, old = source / path, target / path
            if not old.is_file() or old.read_bytes() != new.read_bytes():
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(new, old)
        if (target / package).is_dir():
            for old in list((target / package).rglob("*")):
                gone = old.is_file() and old.relative_to(target) not in wanted
                if gone and old.name != "dvc.lock" and "__pycache__" not in old.parts:
                    old.unlink()


def _make_repository(project: Project, root: Path) -> None:
    cache = project.root / ".dvc" / "cache"
    config = (
        "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"
        f"[cache]\n    dir = {os.path.relpath(cache, root / '.dvc')}\n"
    )
    if not (root / ".dvc" / "config").is_file():
        (root / ".dvc" / "tmp").mkdir(parents=True, exist_ok=True)
        write_text(root / ".dvc" / "config", config)


def full_keys(slugs: list[str], settings: list[str]) -> dict[str, Any]:
    """`--set` words as {"slug.stage.key": value}; the paper's name may be left out when one paper is meant."""
    found = {}
    for setting in settings:
        parts, value = parse_setting(setting)
        if parts[0] not in slugs:
            if len(slugs) != 1:
                raise UserError(f"--set {setting}: say which paper, for example {slugs[0]}.{setting}")
            parts = [slugs[0], *parts]
        if len(parts) < 3 or not re.fullmatch("data|train|evaluate|report", parts[1]):
            raise UserError(f"--set {setting}: write stage.key=value, for example train.{parts[-1]}=...")
        found[".".join(parts)] = value
    return found
