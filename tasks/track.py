"""What a stage says of its run: curves, nested runs, data sets, progress.

Nothing here imports MLflow unless a run is open, so that stages can be called as plain functions. The runner opens the
stage's run (`tasks.tracking`); a stage logs nested runs through `run`, or calls MLflow itself.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_parent: Any = None  # tasks.tracking.StageRun while a run is open
_listener: Callable[[int, dict[str, float]], None] | None = None  # a sweep that watches the curves


def open_for(parent: Any) -> None:
    """For the runner: log to `parent` from now on (None: nowhere)."""
    global _parent
    _parent = parent


def listen(listener: Callable[[int, dict[str, float]], None] | None) -> None:
    """For sweeps: call `listener(step, values)` at every `step`."""
    global _listener
    _listener = listener


def run(
    name: str,
    *,
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
    steps: Sequence[int] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Log one nested run, a method with a seed.

    curves: name -> values, one per entry of `steps` (default 0, 1, ...). Raises ValueError when lengths differ."""
    curves = curves or {}
    for key, values in curves.items():
        if steps is not None and len(values) != len(steps):
            raise ValueError(f"curve {key!r} of run {name!r} has {len(values)} values for {len(steps)} steps")
    if _parent is not None:
        _parent.nested(name, params or {}, metrics or {}, curves, steps, tags or {})


def dataset(name: str, digest: str, source: str) -> None:
    """Log a data set as an input of the stage's run: `digest` identifies its content, `source` says whence it comes."""
    if _parent is not None:
        _parent.dataset(name, digest, source)


def step(step: int, **values: float) -> None:
    """Report a point of the present training curve; a sweep may stop the trial here."""
    if _listener is not None:
        _listener(step, {key: float(value) for key, value in values.items()})


def progress(iterable: Iterable, label: str, total: int | None = None) -> Iterator:
    """The items, with a bar on a terminal and a line now and then elsewhere (at most one in ten seconds)."""
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(iterable, desc=label, total=total, leave=False)
        return
    last = time.monotonic()
    for count, item in enumerate(iterable, start=1):
        yield item
        if time.monotonic() - last > 10 or count == total:
            last = time.monotonic()
            print(f"{label}: {count}" + (f" of {total}" if total else ""), file=sys.stderr, flush=True)
