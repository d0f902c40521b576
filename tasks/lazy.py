"""A paper's Prefect flow, built when first asked for: importing a paper stays cheap."""

from collections.abc import Callable
from typing import Any

from tasks.paper import Paper


def flow_of(paper: Paper) -> Callable[[str], Any]:
    """A module's `__getattr__` that knows `flow`."""

    def attribute(name: str) -> Any:
        if name == "flow":
            from tasks.orchestrate import paper_flow

            return paper_flow(paper.slug)
        raise AttributeError(f"module 'flows.{paper.slug}' has no attribute {name!r}")

    return attribute
