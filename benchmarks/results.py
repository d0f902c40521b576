"""benchmarks/RESULTS.md: a section per benchmark, each with the command that made it and the machine's facts."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

PATH = Path(__file__).resolve().parent / "RESULTS.md"


def machine() -> str:
    """Cores, architecture and versions: what a ratio may depend on."""
    import torch

    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"


def write_section(title: str, command: str, columns: Sequence[str], rows: Sequence[Sequence[str]], path: Path = PATH) -> None:
    """Print a table and put it into RESULTS.md in the place of the section of that title."""
    table = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns), *("| " + " | ".join(row) + " |" for row in rows)]
    section = f"## {title}\n\nMade by `{command}` on {machine()}.\n\n" + "\n".join(table) + "\n"
    print(section)
    text = (
        path.read_text(encoding="utf-8")
        if path.is_file()
        else "# Benchmarks\n\nRatios measured side by side in one run each.\n\n"
    )
    pattern = re.compile(rf"## {re.escape(title)}\n.*?(?=\n## |\Z)", re.DOTALL)
    text = pattern.sub(lambda _: section, text) if pattern.search(text) else text.rstrip("\n") + "\n\n" + section
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
