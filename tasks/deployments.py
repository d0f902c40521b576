"""Schedules: papers as Prefect deployments, run here (`serve`) or by the workers of a pool (`deploy`)."""

import datetime
import os
from collections.abc import Sequence
from typing import Any

from tasks.errors import UserError
from tasks.paper import Paper, discover
from tasks.project import Project


def _need_server() -> None:
    from prefect.settings import get_current_settings

    if not get_current_settings().api.url:
        raise UserError(
            "no Prefect server is configured: start one with `paperflows ui`, then "
            "set PREFECT_API_URL=http://127.0.0.1:4200/api and call this again"
        )


def _options(paper: Paper, cron: str | None, every: float | None, profile: str | None) -> dict[str, Any]:
    """What a deployment of the paper is made with; its schedule is in UTC."""
    if every is not None and cron is not None:
        raise UserError("--cron and --every exclude each other: give one schedule")
    if every is not None and every <= 0:
        raise UserError(f"--every {every}: a positive number of seconds is wanted")
    if cron is not None:
        from cronsim import CronSim, CronSimError

        try:
            CronSim(cron, datetime.datetime.now(datetime.UTC))
        except CronSimError as error:
            raise UserError(f"--cron {cron!r} is no cron schedule ({error}); an example is '0 3 * * 1'") from None
    schedule = {"interval": datetime.timedelta(seconds=every)} if every is not None else {"cron": cron or paper.schedule}
    return {
        **schedule,
        "parameters": {"profile": profile, "settings": None, "force": False},
        "tags": ["paperflows", paper.field],
        "description": f"{paper.title}\n\n{paper.summary}",
        "concurrency_limit": 1,
    }


def serve_papers(
    project: Project,
    names: Sequence[str] | None,
    *,
    cron: str | None = None,
    every: float | None = None,
    profile: str | None = None,
    limit: int = 1,
) -> None:
    """Register a deployment per paper and run what its schedule brings, until interrupted."""
    papers = discover(list(names) if names else None)
    chosen = {slug: _options(paper, cron, every, profile) for slug, paper in papers.items()}
    _need_server()
    from prefect import serve
    from prefect.types.entrypoint import EntrypointType

    from tasks.orchestrate import paper_flow

    deployments = [
        paper_flow(slug).to_deployment(name="scheduled", entrypoint_type=EntrypointType.MODULE_PATH, **options)
        for slug, options in chosen.items()
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(project.root), os.environ.get("PYTHONPATH")]))
    serve(*deployments, limit=limit, print_starting_message=True)


def deploy_papers(
    project: Project, pool: str, names: Sequence[str] | None, *, cron: str | None = None, profile: str | None = None
) -> None:
    """Register a deployment per paper with a work pool whose workers see this folder."""
    papers = discover(list(names) if names else None)
    chosen = {slug: _options(paper, cron, None, profile) for slug, paper in papers.items()}
    _need_server()
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.types.entrypoint import EntrypointType

    from tasks.orchestrate import paper_flow

    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(pool)
        except ObjectNotFound:
            raise UserError(
                f"there is no work pool {pool!r}: `prefect work-pool create {pool} --type process` makes one"
            ) from None
    if found.type != "process":
        raise UserError(f"the work pool {pool} is of type {found.type}: papers need one of type process")
    for slug, options in chosen.items():
        deployment = paper_flow(slug).to_deployment(
            name="pooled",
            entrypoint_type=EntrypointType.MODULE_PATH,
            work_pool_name=pool,
            job_variables={"working_dir": str(project.root), "env": {"PYTHONPATH": str(project.root)}},
            **options,
        )
        deployment.apply()
        print(f"deployed {slug}/pooled to {pool}")
    print(f"\nNow, where the work is to be done: prefect worker start --pool {pool}")
