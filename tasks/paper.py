"""What a flow package says of its paper, and how papers are found."""

import difflib
import importlib
import keyword
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.claims import Claim
from tasks.errors import UserError

STAGES = ("data", "train", "evaluate", "report")


@dataclass(frozen=True)
class Range:
    """Where a sweep looks for a parameter: `log` or `uniform` between two bounds, `integer`, or a `choice` of values."""

    kind: Literal["log", "uniform", "integer", "choice"]
    low: float | None = None
    high: float | None = None
    values: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        if self.kind not in ("log", "uniform", "integer", "choice"):
            raise ValueError(f"a range is log, uniform, integer or choice, not {self.kind!r}")
        if self.kind == "choice":
            if not self.values:
                raise ValueError("a choice needs at least one value")
        elif self.low is None or self.high is None or not self.low < self.high:
            raise ValueError(f"a {self.kind} range needs low < high, got {self.low} and {self.high}")
        elif self.kind == "log" and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, got {self.low}")


@dataclass(frozen=True)
class Sweep:
    """What `paperflows sweep` searches.

    space: `<stage>.<key>...` -> Range. overrides: what a trial runs with besides. objective: the cell (method, metric)
    of the metrics whose mean is compared. step_metric: the value of `track.step` that early stopping compares (the mean
    over the training jobs so far of each one's latest value), over at most `max_steps` steps of all training jobs together; no trial is stopped before `grace` steps."""

    space: dict[str, Range]
    objective: tuple[str, str]
    mode: Literal["max", "min"] = "max"
    overrides: dict[str, Any] = field(default_factory=dict)
    step_metric: str | None = None
    max_steps: int = 100
    grace: int = 10

    def __post_init__(self) -> None:
        if not self.space:
            raise ValueError("a sweep needs at least one parameter to search")
        for key in (*self.space, *self.overrides):
            if key.split(".")[0] not in ("train", "evaluate"):
                raise ValueError(f"a sweep's parameter starts with train. or evaluate., since trials share the data; got {key}")
        if self.mode not in ("max", "min"):
            raise ValueError(f"a sweep's mode is max or min, not {self.mode!r}")


@dataclass(frozen=True)
class Paper:
    """One paper: what it is, which claims it makes, and what a sweep of it searches.

    `authors` and `arxiv` are empty where the sources do not name them."""

    slug: str
    title: str
    authors: str
    arxiv: str
    field: str
    summary: str
    claims: tuple[Claim, ...]
    assets: tuple[str, ...] = ()
    sweep: Sweep | None = None
    schedule: str = "0 3 * * 1"  # cron; every Monday at 03:00 UTC

    def __post_init__(self) -> None:
        check_slug(self.slug)
        object.__setattr__(self, "claims", tuple(self.claims))
        object.__setattr__(self, "assets", tuple(self.assets))
        if not self.claims:
            raise ValueError(f"the paper {self.slug} makes no claim: nothing could be given a verdict")
        ids = [claim.id for claim in self.claims]
        if len(set(ids)) != len(ids):
            raise ValueError(f"the paper {self.slug} has two claims of the same id: {ids}")


def check_slug(slug: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", slug):
        raise UserError(f"{slug!r} is no paper's short name: small letters, digits and _, starting with a letter")
    if keyword.iskeyword(slug):
        raise UserError(f"{slug!r} is no paper's short name: Python keeps the word for itself, so it cannot be imported")
    return slug


def check_stage(stage: str) -> str:
    if stage not in STAGES:
        raise UserError(f"there is no stage {stage!r}: a flow has {', '.join(STAGES)}")
    return stage


def slugs() -> list[str]:
    """The short names of all papers, sorted, without importing any of them."""
    # By name: this package knows that there are papers, not which.
    package = importlib.import_module("flows")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)


def get(slug: str) -> Paper:
    """The paper of that short name. Raises UserError with the nearest names when there is none."""
    known = slugs()
    if slug not in known:
        near = difflib.get_close_matches(slug, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none yet'}"
        raise UserError(f"there is no paper {slug!r}: {hint}")
    module = importlib.import_module(f"flows.{slug}")
    paper = getattr(module, "paper", None)
    if not isinstance(paper, Paper):
        raise UserError(f"flows/{slug}/__init__.py defines no `paper = Paper(...)`")
    if paper.slug != slug:
        raise UserError(f"flows/{slug}/__init__.py: its slug is {paper.slug!r}, the folder's name is {slug!r}")
    return paper


def discover(names: Sequence[str] | None = None) -> dict[str, Paper]:
    """All papers (or those named), by short name, sorted."""
    return {slug: get(slug) for slug in (slugs() if names is None else names)}
