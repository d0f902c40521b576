"""Prefect owns runs: when, in what order, with which retries, how many at once.

The flow of a paper has one task per stage, and the task reproduces that DVC stage: a scheduled run and `dvc repro` can
never disagree. An unchanged stage ends in a state of its own, `Cached`.
"""

import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from tasks import dvc, workspace
from tasks.environment import prepare
from tasks.errors import UserError
from tasks.paper import STAGES, get
from tasks.project import Project, find_project
from tasks.stage import hold

Listener = Callable[[str, str, dvc.Outcome | None], None]  # (paper, stage, outcome or None when it begins)
_listener: Listener | None = None
_one_workspace_at_a_time = threading.Lock()


def paper_flow(slug: str) -> Any:
    """The Prefect flow of a paper: data, train, evaluate, report.

    Its parameters: profile (None: as params.yaml says), settings ({"stage.key": value} or with the paper's name in
    front), force (run every stage again). With a profile or settings it works in a side workspace."""
    from prefect import flow as as_flow

    paper = get(slug)

    def flow(profile: str | None = None, settings: dict[str, Any] | None = None, force: bool = False) -> list[dict]:
        prepare()
        project = find_project()
        place = working_place(project, profile, settings or {})
        outcomes = run_stages(place, slug, force)
        _publish(place, slug)
        return [vars(outcome) for outcome in outcomes]

    # A worker finds the flow again as `flows.<slug>.flow`.
    flow.__module__, flow.__qualname__ = f"flows.{slug}", "flow"
    flow.__doc__ = paper.summary
    return as_flow(flow, name=slug, description=paper.title, validate_parameters=True, log_prints=False)


def working_place(project: Project, profile: str | None, settings: dict[str, Any]) -> Project:
    """The project itself, or the side workspace of a profile and settings."""
    if profile is None and not settings:
        return project
    with _one_workspace_at_a_time:
        return workspace.make(project, profile, settings)


def run_stages(place: Project, slug: str, force: bool) -> list[dvc.Outcome]:
    """Within a flow: the four stages as tasks, one after the other. Only one run of a paper at a time; another waits."""
    from prefect import task
    from prefect.states import Completed

    def reproduce(stage: str):
        outcome = dvc.reproduce(place, slug, stage, force=force)
        names = {"cached": "Cached", "restored": "Restored", "executed": "Completed"}
        return Completed(name=names[outcome.state], message=f"{stage}: {outcome.state}, {outcome.seconds:.1f} s", data=outcome)

    outcomes = []
    with hold(place.scratch / "locks" / f"{slug}.flow", f"the paper {slug}", wait=True, announce=_say):
        for stage in STAGES:
            _tell(slug, stage, None)
            # The outcome is kept in memory: results stay in DVC, not in Prefect's storage.
            state = task(reproduce, name=stage, task_run_name=stage, persist_result=False)(stage, return_state=True)
            outcome = state.result()
            _tell(slug, stage, outcome)
            outcomes.append(outcome)
    return outcomes


def _tell(slug: str, stage: str, outcome: dvc.Outcome | None) -> None:
    if _listener:
        _listener(slug, stage, outcome)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _publish(place: Project, slug: str) -> None:
    """Prefect artifacts: the claims as a table, and where to read on."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    folder = place.results(slug)
    claims = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    columns = ("id", "statement", "paper", "measured", "unit", "verdict", "reason")
    key = slug.replace("_", "-")  # Prefect's keys hold no underscore
    create_table_artifact(
        table=[{column: claim[column] for column in columns} for claim in claims],
        key=f"{key}-claims",
        description=f"Claims of {get(slug).title}, with their verdicts",
    )
    create_markdown_artifact(
        markdown=f"Report: [{place.relative(folder)}/index.html]({(folder / 'index.html').as_uri()})\n\n"
        f"Runs: MLflow experiment `{slug}`\n\nHashes: `flows/{slug}/dvc.lock`\n",
        key=f"{key}-links",
        description="Where the report, the runs and the hashes are",
    )


def all_papers_flow() -> Any:
    """The Prefect flow over several papers, `jobs` of them side by side."""
    from prefect import flow as as_flow

    def all_papers(
        papers: list[str],
        jobs: int = 1,
        profile: str | None = None,
        settings: dict[str, Any] | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        prepare()
        failures: dict[str, BaseException] = {}

        def one(slug: str) -> Any:
            mine = {key: value for key, value in (settings or {}).items() if key.split(".")[0] == slug}
            return paper_flow(slug)(profile=profile, settings=mine, force=force)

        results: dict[str, Any] = {}
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = {slug: pool.submit(copy_context().run, one, slug) for slug in papers}
            for slug, future in futures.items():
                try:
                    results[slug] = future.result()
                except Exception as error:  # noqa: BLE001 - one paper's failure must not stop the others; all are raised below
                    failures[slug] = error
        if failures:
            raise PapersFailed(failures)
        return results

    all_papers.__module__, all_papers.__qualname__ = "tasks.orchestrate", "all_papers"
    return as_flow(all_papers, name="all-papers", validate_parameters=True)


def __getattr__(name: str) -> Any:
    if name == "all_papers":
        return all_papers_flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class PapersFailed(Exception):
    """Some papers of a run over several failed; `failures` says which, and why."""

    def __init__(self, failures: dict[str, BaseException]) -> None:
        super().__init__("; ".join(f"{slug}: {error}" for slug, error in failures.items()))
        self.failures = failures


def up_to_date(place: Project, papers: Sequence[str]) -> bool:
    """Whether nothing of these papers has changed: then no run is needed, and no Prefect server either."""
    with dvc.opened(place) as repo:
        return not any(reasons for slug in papers for reasons in dvc.changes(place, slug, repo).values())


def _start_server() -> None:
    """Start Prefect's temporary server, where no other is configured, deaf to Ctrl-C.

    Ctrl-C goes to every process of the terminal: a server that ended with it could not record the interruption, and
    Prefect would try to reach it for a minute. The run ends its server itself."""
    from prefect.client.orchestration import get_client

    # A new process inherits which signals are blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        get_client(sync_client=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(
    papers: Sequence[str],
    *,
    jobs: int = 1,
    profile: str | None = None,
    settings: dict[str, Any] | None = None,
    force: bool = False,
    listener: Listener | None = None,
) -> None:
    """Run papers through Prefect: one flow for one paper, the flow over all for more.

    Raises StageFailed, PapersFailed or UserError."""
    global _listener
    if jobs < 1:
        raise UserError(f"-j {jobs}: at least one paper runs at a time")
    _listener = listener
    _start_server()
    try:
        if len(papers) == 1:
            paper_flow(papers[0])(profile=profile, settings=settings, force=force)
        else:
            all_papers_flow()(papers=list(papers), jobs=jobs, profile=profile, settings=settings, force=force)
    finally:
        _listener = None
