"""Files that appear whole or not at all."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

PART = ".part."  # in the name of every hidden folder that is not in its place yet; a crash may leave one


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text stream whose content replaces `path` when the block ends well, and leaves no trace when it does not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        os.chmod(name, 0o666 & ~_umask())
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with atomic_writer(path) as stream:
        stream.write(text)


def write_json(path: Path, value: Any) -> None:
    """Sorted keys, two spaces, no NaN: the same value gives the same bytes. Raises ValueError for NaN or infinity."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def replace_folder(new: Path, target: Path) -> None:
    """Put the folder `new` where `target` is; there is no moment with half a folder in that place.

    When it cannot be put there, what was there stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.replace(new, target)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{PART}old."))
    os.replace(target, aside / "old")
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(aside / "old", target)
        raise
    finally:
        shutil.rmtree(aside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
