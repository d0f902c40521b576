"""A paper's Prefect flow, built when first asked for: importing a paper stays cheap."""

import importlib
from collections.abc import Callable
from typing import Any

from tasks.paper import Paper


def flow_of(paper: Paper) -> Callable[[str], Any]:
    """A module's `__getattr__` that knows `flow`."""

    def attribute(name: str) -> Any:
        if name == "flow":
            # Imported by name: no stage's output depends on how it is scheduled, so none should be rerun for it.
            return importlib.import_module("tasks.orchestrate").paper_flow(paper.slug)
        raise AttributeError(f"module 'flows.{paper.slug}' has no attribute {name!r}")

    return attribute
