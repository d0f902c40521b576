"""`paperflows doctor`: is the installation whole, and what did a crash leave behind?"""

import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tasks import dvc
from tasks.errors import UserError
from tasks.files import PART
from tasks.paper import STAGES, discover
from tasks.project import Project


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `cure` heals it (None: a person has to), `ok` when there is nothing to heal."""

    what: str
    ok: bool
    note: str = ""
    cure: Callable[[], None] | None = None


def examine(project: Project, heal: bool = True) -> int:
    """Print every finding, heal what can be healed; 0 if all is well at the end, else 1."""
    sound = True
    for finding in findings(project):
        if finding.ok:
            print(f"  ok      {finding.what}")
        elif finding.cure and heal:
            finding.cure()
            print(f"  healed  {finding.what}: {finding.note}")
        else:
            sound = False
            print(f"  wrong   {finding.what}: {finding.note}")
    return 0 if sound else 1


def findings(project: Project) -> Iterator[Finding]:
    """Everything that is looked at, in order."""
    yield from _installation(project)
    yield from _papers(project)
    yield from _crashes(project)
    yield from _prefect()


def _installation(project: Project) -> Iterator[Finding]:
    yield Finding("Python 3.11", sys.version_info[:2] == (3, 11), f"this is {sys.version.split()[0]}")
    for tool in ("git", "dvc"):
        yield Finding(f"{tool} can be found", shutil.which(tool) is not None, "install it, or activate the virtual environment")
    pins = project.root / "constraints.txt"
    if pins.is_file():
        wrong = []
        for line in pins.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            try:
                have = importlib.metadata.version(name).split("+")[0]
            except importlib.metadata.PackageNotFoundError:
                continue  # extras are pinned too
            if version and have != version:
                wrong.append(f"{name} {have} instead of {version}")
        yield Finding("packages are the pinned ones", not wrong, ", ".join(wrong) + "; run `make setup`")
    yield Finding("DVC is initialised", (project.root / ".dvc" / "config").is_file(), "run `dvc init`")


def _papers(project: Project) -> Iterator[Finding]:
    from tasks import assets, sync
    from tasks.settings import read

    papers = discover()
    sections = read(project.params)
    lacking = [slug for slug in papers if slug not in sections]
    yield Finding("every paper has its section of params.yaml", not lacking, f"none for {', '.join(lacking)}")
    stale = sync.stale(project)
    yield Finding("dvc.yaml files are in step", not stale, f"wrote {', '.join(stale)}", lambda: sync.sync(project) and None)
    for name in sorted({asset for paper in papers.values() for asset in paper.assets}):
        try:
            assets.check(project.root, name)
        except UserError as error:
            yield Finding(f"asset {name}", False, str(error))
        else:
            yield Finding(f"asset {name}", True)


def _crashes(project: Project) -> Iterator[Finding]:
    problem = dvc.rwlock_problem(project)
    yield Finding("DVC's table of readers and writers", not problem, f"{problem}", dvc.rwlock_path(project).unlink)
    parts = [
        path
        for folder in (project.root / "artifacts", project.root / "results")
        for path in folder.glob(f"**/.*{PART}*")
        if not _running(project, path)
    ]
    yield Finding(
        "half-written outputs",
        not parts,
        f"removed {', '.join(project.relative(path) for path in parts)}",
        lambda: [shutil.rmtree(path) for path in parts] and None,
    )
    holders = [path for path in (project.scratch / "locks").glob("*.holder") if _free(path.with_suffix(".lock"))]
    yield Finding(
        "notes of who holds a lock",
        not holders,
        f"removed {', '.join(path.name for path in holders)}, whose process is gone",
        lambda: [path.unlink() for path in holders] and None,
    )


def _running(project: Project, part) -> bool:
    """Whether some stage of the paper runs: its temporary folder is in use then."""
    slug = part.name[1:].split(PART)[0] if part.parent.name == "results" else part.parent.name
    locks = project.scratch / "locks"
    return any(not _free(locks / f"{slug}.{stage}.lock") for stage in STAGES)


def _free(lock) -> bool:
    """The system frees a lock when its process dies, so a lock that can be taken belongs to nobody."""
    from filelock import FileLock, Timeout

    if not lock.exists():
        return True
    guard = FileLock(lock)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        return False
    guard.release()
    return True


def _prefect() -> Iterator[Finding]:
    """Runs that a killed process left "Running": their stages' locks are free, so nothing runs them."""
    from prefect.settings import get_current_settings

    if not get_current_settings().api.url:
        yield Finding("Prefect runs (no server configured; looked at in its local database)", True)
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    with get_client(sync_client=True) as client:
        running = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
        runs = client.read_flow_runs(flow_run_filter=running, limit=200)
        from tasks.project import find_project

        locks = find_project().scratch / "locks"
        names = {flow_id: client.read_flow(flow_id).name for flow_id in {run.flow_id for run in runs}}
        known = set(discover()) | {"all-papers"}
        dead = [run for run in runs if names[run.flow_id] in known and _nobody(locks, names[run.flow_id])]

        def cure() -> None:
            for run in dead:
                client.set_flow_run_state(run.id, Crashed(message="its process is gone"), force=True)

        yield Finding('Prefect runs that stayed "Running"', not dead, f"marked {len(dead)} as crashed", cure)


def _nobody(locks, name: str) -> bool:
    if name == "all-papers":
        return all(_free(path) for path in locks.glob("*.flow.lock"))
    return _free(locks / f"{name}.flow.lock")
