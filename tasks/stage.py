"""Running one stage: validated parameters, a temporary folder renamed at the end, fixed seeds, an open MLflow run."""

import contextlib
import errno
import hashlib
import importlib
import inspect
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks import settings
from tasks.environment import WORKERS_VARIABLE, make_deterministic, seed_everything
from tasks.errors import Busy, UserError
from tasks.files import PART, replace_folder, write_json
from tasks.paper import STAGES, Paper, check_stage, get
from tasks.params import StageParams
from tasks.project import Project

METRICS = "metrics.json"
REPORT_FILES = ("README.md", "index.html", "claims.json")
FIGURES = "figures"


def run_stage(project: Project, slug: str, stage: str) -> None:
    """Run one stage of one paper in `project` and put its output in place.

    Raises UserError (nothing is written then) for an unknown paper or stage, bad parameters, missing or damaged inputs,
    an unreachable tracking server, and Busy when another process runs the same stage."""
    check_stage(stage)
    paper = get(slug)
    everything = settings.read(project.params)
    profile = settings.profile_of(everything)
    block = settings.block_of(everything, slug, stage)
    where = f"params.yaml, {slug}.{stage}"
    make_deterministic(_threads(block, where))
    if profile == "smoke":
        # Starting workers takes longer than the work; results do not depend on their number.
        os.environ.setdefault(WORKERS_VARIABLE, "1")
    function, model = load(slug, stage)
    p = settings.validate(model, block, where)
    inputs = gather_inputs(project, paper, stage, function)
    with _only_one(project, slug, stage):
        from tasks.tracking import stage_run

        with stage_run(project, slug, stage, profile, flatten(p.model_dump())) as run:
            for name, digest, source in _input_digests(project, slug, inputs):
                if run:
                    run.dataset(name, digest, source)
            target = project.results(slug) if stage == "report" else project.artifact(slug, stage)
            with _temporary_output(target) as out:
                seed_everything(p.seed, p.threads)
                returned = function(p, **inputs, out=out)
                if stage == "evaluate":
                    check_metrics(returned, f"flows/{slug}/evaluate.py")
                if stage == "report":
                    _check_report(out, slug)
                if run:
                    _log_results(run, stage, returned, out)
                _place(out, target, stage)
            if stage == "evaluate":
                write_json(project.results(slug) / METRICS, returned)


def check_parameters(project: Project, slug: str) -> None:
    """Raises UserError if the parameters of any stage of a paper are not what the stage takes."""
    everything = settings.read(project.params)
    for stage in STAGES:
        block = settings.block_of(everything, slug, stage)
        settings.validate(load(slug, stage)[1], block, f"params.yaml, {slug}.{stage}")


def load(slug: str, stage: str) -> tuple[Any, type[StageParams]]:
    """The stage's function and its model of settings. Raises UserError if the module lacks either."""
    name = f"flows.{slug}.{stage}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise UserError(
                f"flows/{slug}/{stage}.py needs the package {error.name}, which is not installed: run `make setup`"
            ) from error
        raise UserError(f"the paper {slug} has no flows/{slug}/{stage}.py") from None
    function, model = getattr(module, stage, None), getattr(module, "Params", None)
    if not callable(function):
        raise UserError(f"flows/{slug}/{stage}.py defines no function `{stage}`")
    if not (isinstance(model, type) and issubclass(model, StageParams)):
        raise UserError(f"flows/{slug}/{stage}.py defines no `class Params(StageParams)`")
    return function, model


def reads(function: Any, stage: str, file: str) -> list[str]:
    """What a stage's function asks for besides its parameters and `out`: earlier stages, `assets`, `metrics`.

    Raises UserError for anything else."""
    names = list(inspect.signature(function).parameters)
    check_names(names, stage, file)
    return names[1:-1]


def check_names(names: list[str], stage: str, file: str) -> None:
    """Raises UserError unless `names` are the arguments that a function of that stage may have."""
    if len(names) < 2 or names[0] != "p" or names[-1] != "out":
        raise UserError(f"{file}: a stage's function takes (p, ..., out), this one takes ({', '.join(names)})")
    earlier = STAGES[: STAGES.index(stage)]
    allowed = (*earlier, "assets", *(("metrics",) if stage == "report" else ()))
    for name in names[1:-1]:
        if name not in allowed:
            raise UserError(f"{file}: the stage {stage} cannot read {name!r}; it may read {', '.join(allowed)}")


def gather_inputs(project: Project, paper: Paper, stage: str, function: Any) -> dict[str, Any]:
    """The arguments of a stage's function. Raises UserError for each that is missing or damaged."""
    inputs: dict[str, Any] = {}
    for name in reads(function, stage, f"flows/{paper.slug}/{stage}.py"):
        if name == "assets":
            inputs[name] = {asset: _asset(project, asset) for asset in paper.assets}
        elif name == "metrics":
            inputs[name] = read_metrics(project.results(paper.slug) / METRICS)
        else:
            inputs[name] = _upstream(project, paper.slug, name)
    return inputs


def _asset(project: Project, name: str) -> Path:
    from tasks import assets

    assets.check(project.root, name)
    return project.asset(name)


def _upstream(project: Project, slug: str, stage: str) -> Path:
    folder = project.artifact(slug, stage)
    shown = project.relative(folder)
    if not folder.is_dir():
        raise UserError(f"{shown} is missing: run `paperflows run {slug}`, or the stage {stage} before this one")
    recorded = locked_output(project, slug, stage)
    if recorded:
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        if (len(files), size) != recorded:
            raise UserError(
                f"{shown} is damaged: it holds {len(files)} files of {size} bytes, flows/{slug}/dvc.lock says "
                f"{recorded[0]} of {recorded[1]}; `paperflows run {slug}` makes it again"
            )
    return folder


def locked_output(project: Project, slug: str, stage: str) -> tuple[int, int] | None:
    """(number of files, bytes) that dvc.lock records for a stage's folder, None where it records nothing."""
    lock = project.flow(slug) / "dvc.lock"
    if not lock.is_file():
        return None
    path = project.relative(project.artifact(slug, stage))
    stages = settings.read(lock).get("stages", {})
    for entry in stages.get(stage, {}).get("outs", []):
        if entry["path"] == path:
            return entry.get("nfiles", 1), entry["size"]
    return None


def read_metrics(path: Path) -> dict[str, Any]:
    """A metrics file, checked. Raises UserError that names the file."""
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the stage evaluate writes it") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    check_metrics(metrics, str(path))
    return metrics


def check_metrics(metrics: Any, where: str) -> None:
    """Raises UserError unless `metrics` is {method: {metric: {"mean", "ci95", "n", "values"}}} with finite numbers."""

    def wrong(what: str) -> UserError:
        return UserError(f"{where}: {what}; metrics are {{method: {{metric: {{mean, ci95, n, values}}}}}}")

    if not isinstance(metrics, dict) or not metrics:
        raise wrong("there are no metrics")
    for method, row in metrics.items():
        if not isinstance(row, dict):
            raise wrong(f"{method!r} holds no metrics")
        for metric, cell in row.items():
            name = f"{method} / {metric}"
            if not _is_cell(cell):
                raise wrong(f"{name} is not a cell")
            if not all(_is_finite(x) for x in (cell["mean"], *(cell["ci95"] or ()), *cell["values"])):
                raise wrong(f"{name} holds something that is no finite number")
            if cell["n"] != len(cell["values"]):
                raise wrong(f"{name} says n = {cell['n']} and holds {len(cell['values'])} values")


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or set(cell) != {"mean", "ci95", "n", "values"}:
        return False
    interval = cell["ci95"]
    pair = isinstance(interval, list | tuple) and len(interval) == 2
    return isinstance(cell["values"], list | tuple) and (interval is None or pair)


def _is_finite(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _threads(block: Mapping[str, Any], where: str) -> int:
    threads = block.get("threads", StageParams.model_fields["threads"].default)
    if not isinstance(threads, int) or threads < 1:
        raise UserError(f"{where}.threads is {threads!r}: a whole number from 1 is wanted")
    return threads


@contextlib.contextmanager
def _temporary_output(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target`, on the same file system; gone at the end, whatever happened.

    A killed run cannot remove its own: the next run of the stage does (only one runs at a time)."""
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for stale in parent.glob(f".{target.name}{PART}*"):
            shutil.rmtree(stale)
        out = Path(tempfile.mkdtemp(dir=parent, prefix=f".{target.name}{PART}"))
    except OSError as error:
        raise UserError(f"cannot write to {parent}: {error.strerror}") from error
    try:
        os.chmod(out, 0o755)
        yield out
    except Exception as error:
        full = _full(error, parent)
        if full:
            raise UserError(f"cannot write to {parent}: {full}; nothing was kept of this stage") from error
        raise
    finally:
        shutil.rmtree(out, ignore_errors=True)


_FULL = {errno.ENOSPC, errno.EROFS, errno.EDQUOT}
_SLACK = 64 * 1024  # bytes; a disk with less is full


def _full(error: Exception, folder: Path) -> str | None:
    """Why nothing can be written to `folder`, if that is behind `error`.

    Numpy's and torch's errors say neither errno nor "full" when a write falls short, so the disk is asked as well."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return error.strerror
    if not isinstance(error, UserError) and shutil.disk_usage(folder).free < _SLACK:
        return os.strerror(errno.ENOSPC)
    return None


def _place(out: Path, target: Path, stage: str) -> None:
    if stage != "report":
        replace_folder(out, target)
        return
    # The report shares its folder with metrics.json, which the stage evaluate owns: its files move one by one.
    target.mkdir(parents=True, exist_ok=True)
    if (out / FIGURES).is_dir():
        replace_folder(out / FIGURES, target / FIGURES)
    for name in REPORT_FILES:
        os.replace(out / name, target / name)


def _check_report(out: Path, slug: str) -> None:
    found = {path.name for path in out.iterdir()}
    if found != {*REPORT_FILES, FIGURES}:
        raise UserError(f"flows/{slug}/report.py left {sorted(found)}; a report is {', '.join(REPORT_FILES)} and {FIGURES}/")


def _log_results(run: Any, stage: str, returned: Any, out: Path) -> None:
    if stage == "evaluate":
        run.log(
            run.run_id,
            metrics={f"{method}/{metric}": cell["mean"] for method, row in returned.items() for metric, cell in row.items()},
        )
    if stage == "report":
        claims = json.loads((out / "claims.json").read_text(encoding="utf-8"))
        values = {"holds": 1.0, "fails": 0.0}  # an untestable claim has no value
        run.log(run.run_id, metrics={f"claim/{c['id']}": values[c["verdict"]] for c in claims if c["verdict"] in values})
        for claim in claims:
            run.client.set_tag(run.run_id, f"claim.{claim['id']}", claim["verdict"])
        run.artifacts(out, "report")


def _input_digests(project: Project, slug: str, inputs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, digest, source) of each folder that the stage reads, for MLflow's data set inputs."""
    found = []
    for name, value in inputs.items():
        folders = value if name == "assets" else {name: value} if isinstance(value, Path) else {}
        for key, folder in folders.items():
            label = f"assets/{key}" if name == "assets" else f"{slug}/{key}"
            found.append((label, folder_digest(folder), project.relative(folder)))
    return found


def folder_digest(folder: Path) -> str:
    """MD5 over the sorted relative names and contents of a folder's files."""
    digest = hashlib.md5(usedforsecurity=False)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "md5").digest())
    return digest.hexdigest()


@contextlib.contextmanager
def _only_one(project: Project, slug: str, stage: str) -> Iterator[None]:
    with hold(project.scratch / "locks" / f"{slug}.{stage}", f"the stage {stage} of {slug}", wait=False):
        yield


@contextlib.contextmanager
def hold(lock: Path, what: str, *, wait: bool, announce=None) -> Iterator[None]:
    """Hold a lock file; the operating system frees it when the process dies, however it dies.

    wait: wait for the holder (calling `announce(text)` once), otherwise raise Busy that says who holds it."""
    from filelock import FileLock, Timeout

    holder = lock.with_name(lock.name + ".holder")
    guard = FileLock(str(lock) + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard.acquire(timeout=0)
    except Timeout:
        by = holder.read_text() if holder.is_file() else "another process"
        if not wait:
            raise Busy(f"{what} is being run by {by}: wait for it, or stop it") from None
        if announce:
            announce(f"{what} is being run by {by}: waiting for it")
        guard.acquire()
    except OSError as error:
        raise UserError(f"cannot write to {lock.parent}: {error.strerror}") from error
    try:
        holder.write_text(f"process {os.getpid()}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        guard.release()
