"""`paperflows run` and `fetch`: what happens before and after the flow, and what a person sees meanwhile."""

import sys
import time
from collections.abc import Sequence

from tasks import dvc, orchestrate, sync, workspace
from tasks.environment import tracking_wanted
from tasks.errors import UserError
from tasks.files import write_text
from tasks.paper import STAGES, Paper, discover, slugs
from tasks.project import Project
from tasks.stage import check_parameters


def run_papers(
    project: Project,
    names: Sequence[str] | None,
    *,
    jobs: int = 1,
    profile: str | None = None,
    settings: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Bring papers up to date. Everything that can be refused is refused before anything is computed."""
    papers = discover(list(dict.fromkeys(names)) if names else slugs())
    if not papers:
        raise UserError("there are no papers yet: begin one with `paperflows new`")
    chosen = workspace.full_keys(list(papers), list(settings))
    place = orchestrate.working_place(project, profile, chosen)
    prepare_papers(place, papers)
    if not force and orchestrate.up_to_date(place, list(papers)):
        for slug in papers:
            for stage in STAGES:
                _line(slug, stage, dvc.Outcome(stage, "cached", 0.0))
            _where(place, slug)
        return
    # DVC clears a stage's output before it starts the stage, so what the stage would refuse is refused here.
    for slug in papers:
        check_parameters(place, slug)
    if tracking_wanted():
        from tasks.tracking import check_reachable, store_uri

        check_reachable(store_uri(project))
    begin = time.monotonic()
    orchestrate.run(list(papers), jobs=jobs, profile=profile, settings=chosen, force=force, listener=_line)
    _refresh_ledger(place)
    for slug in papers:
        _where(place, slug)
    print(f"done in {time.monotonic() - begin:.0f} s")


def prepare_papers(place: Project, papers: dict[str, Paper]) -> None:
    """Refuse a run whose assets are missing or altered; bring each paper's dvc.yaml in step. Raises UserError."""
    from tasks import assets

    for name in sorted({asset for paper in papers.values() for asset in paper.assets}):
        assets.check(place.root, name)
    texts = {place.flow(slug) / "dvc.yaml": sync.text_of(sync.pipeline(place, paper)) for slug, paper in papers.items()}
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            print(f"wrote {place.relative(path)}, which was not in step with the flow package")


_COLOURS = {"cached": "2", "restored": "36", "executed": "32"}


def _line(slug: str, stage: str, outcome: dvc.Outcome | None) -> None:
    """One line per stage: when it begins (on a terminal), and what became of it."""
    terminal = sys.stdout.isatty()
    if outcome is None:
        if terminal:
            print(f"\r{slug:24} {stage:9} ...", end="", flush=True)
        return
    state = f"{outcome.state:9}"
    if terminal:
        state = f"\033[{_COLOURS[outcome.state]}m{state}\033[0m"
    seconds = f"{outcome.seconds:8.1f} s" if outcome.state != "cached" else ""
    print(("\r" if terminal else "") + f"{slug:24} {stage:9} {state}{seconds}", flush=True)


def _where(place: Project, slug: str) -> None:
    print(f"report: {place.results(slug) / 'index.html'}")


def _refresh_ledger(place: Project) -> None:
    """Bring the ledger up to date through DVC, once every paper has its claims."""
    everyone = slugs()
    if (place.root / "dvc.yaml").is_file() and all((place.results(slug) / "claims.json").is_file() for slug in everyone):
        dvc.reproduce_file(place, place.root / "dvc.yaml", "ledger")


def fetch_assets(project: Project, names: Sequence[str] | None) -> None:
    """Bring assets (default: all that papers declare), and pin each with DVC where it has no pin yet."""
    from tasks import assets

    wanted = list(names) if names else sorted({asset for paper in discover().values() for asset in paper.assets})
    assets.fetch(project.root, wanted)
    for name in wanted:
        if not (project.root / "data" / f"{name}.dvc").is_file():
            dvc.pin_asset(project, name)
