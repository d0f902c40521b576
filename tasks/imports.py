"""Which files of this project a module imports, found by reading the source, transitively.

DVC reruns a stage when one of these changes, so the list must be whole, and no longer than it has to be. Package
`__init__` files only pass names on: a module that asks one for a name depends on the module that defines that name, not on
everything else that the package offers.
"""

import ast
from functools import cache
from pathlib import Path

from tasks.errors import UserError

PACKAGES = ("flows", "tasks", "components", "kernels")


def dependencies(module: Path, root: Path) -> list[str]:
    """Paths, relative to `root` and sorted, of `module` and of all project files that it imports.

    Raises UserError for a file that is not valid Python."""
    root = root.resolve()
    found: set[Path] = set()
    todo = [module.resolve()]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo.extend(_imported(path, root))
    return sorted(path.relative_to(root).as_posix() for path in found)


def _imported(path: Path, root: Path) -> list[Path]:
    files: list[Path] = []
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                files += _module(alias.name, root)
        elif isinstance(node, ast.ImportFrom):
            files += _from(node, path, root)
    return files


def _from(node: ast.ImportFrom, path: Path, root: Path) -> list[Path]:
    name = _absolute(node, path, root)
    files: list[Path] = []
    if name.split(".")[0] not in PACKAGES:
        return files
    for alias in node.names:
        submodule = _module(f"{name}.{alias.name}", root)
        if submodule:
            files += submodule
        else:
            files += _definition(name, alias.name, root)
    return files


def _absolute(node: ast.ImportFrom, path: Path, root: Path) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(root).parent.parts
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def _module(name: str, root: Path) -> list[Path]:
    """The file of a module of this project; [] for anything else. A package is its `__init__`."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return []
    base = root.joinpath(*parts)
    if base.with_suffix(".py").is_file():
        return [base.with_suffix(".py")]
    if (base / "__init__.py").is_file():
        return [base / "__init__.py"]
    return []


def _definition(module: str, name: str, root: Path, asked: frozenset[tuple[str, str]] = frozenset()) -> list[Path]:
    """Where `from module import name` leads: the module's file, or through a package's re-export to the defining one.

    asked: what led here, so that packages which import a name from each other come to an end."""
    here = _module(module, root)
    if not here or here[0].name != "__init__.py" or name == "*" or (module, name) in asked:
        return here
    for node in ast.walk(_parse(here[0])):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    origin = _absolute(node, here[0], root)
                    submodule = _module(f"{origin}.{alias.name}", root)
                    return submodule or _definition(origin, alias.name, root, asked | {(module, name)})
    return here


@cache
def _parsed(path: Path, stamp: tuple[int, int]) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid Python ({error.msg})") from None


def _parse(path: Path) -> ast.Module:
    status = path.stat()
    return _parsed(path, (status.st_mtime_ns, status.st_size))


def arguments(module: Path, function: str) -> list[str] | None:
    """Names of the arguments of a module's function, without importing it; None if there is no such function."""
    for node in _parse(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return None
