"""Stages called as plain functions, with parameters from the project's own file: what the tests of every paper need."""

import hashlib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks import settings
from tasks.environment import seed_everything
from tasks.params import StageParams
from tests.projects import ROOT


def module(slug: str, stage: str) -> Any:
    return importlib.import_module(f"flows.{slug}.{stage}")


def params(slug: str, stage: str, profile: str, **changes: Any) -> StageParams:
    """The stage's parameters under a profile, with changes at any depth."""
    block = settings.resolve(settings.read(ROOT / "params.yaml")[slug][stage] or {}, profile)
    return settings.validate(module(slug, stage).Params, settings.merge(block, changes), f"{slug}.{stage}")


def run(
    slug: str,
    folder: Path,
    stages: Iterable[str] = ("data", "train", "evaluate"),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    assets: Mapping[str, Path] | None = None,
    metrics: Any = None,
) -> Any:
    """Run stages under the smoke profile, each into `folder/<stage>`; what `evaluate` returned."""
    for stage in stages:
        function = getattr(module(slug, stage), stage)
        p = params(slug, stage, "smoke", **(changes or {}).get(stage, {}))
        out = folder / stage
        out.mkdir(parents=True)
        inputs: dict[str, Any] = {}
        for name in list(inspect.signature(function).parameters)[1:-1]:
            inputs[name] = {"assets": assets or {}, "metrics": metrics}.get(name, folder / name)
        seed_everything(p.seed, p.threads)
        returned = function(p, **inputs, out=out)
        metrics = metrics if returned is None else returned
    return metrics


def hashes(folder: Path) -> dict[str, str]:
    """Every file under `folder` with its SHA-256."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
