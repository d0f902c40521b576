"""The kernels' page: its code runs, every file is on it, and files import what it says they do."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "kernels"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_runs(code):
    exec(compile(code, "kernels/README.md", "exec"), {})


def rows():
    found, file = {}, None
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] not in ("file", "---"):
            file = cells[0].strip("`") or file
            names, imports = found.setdefault(file, (set(), set()))
            names |= set(re.findall(r"`(\w+)`", cells[1]))
            imports |= set(re.findall(r"`(\w+\.py)`", cells[3]))
    return found


def test_every_file_is_on_the_page_with_what_it_imports():
    table = rows()
    assert sorted(table) == FILES
    for file, (names, imports) in table.items():
        tree = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        ours = {f"{module.split('.')[1]}.py" for module in modules if module.startswith("kernels.")}
        assert ours == imports, file
        assert not {module.split(".")[0] for module in modules} & {"components", "tasks", "flows", "numpy", "scipy"}, file
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert names and names <= defined, file
