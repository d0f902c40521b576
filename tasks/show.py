"""`paperflows list` and `show`: what a newcomer sees first."""

import json
from collections import Counter

from tasks import dvc
from tasks.claims import FAILS, HOLDS, NOT_TESTABLE
from tasks.paper import STAGES, discover, get
from tasks.project import Project
from tasks.settings import profile_of, read

_MARKS = {HOLDS: "[bright_blue]✔ holds[/]", FAILS: "[orange3]✘ fails[/]", NOT_TESTABLE: "[dim]– not testable at this scale[/]"}


def list_papers(project: Project) -> None:
    """A table of all papers: field, title, state of each stage, verdicts."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    papers = discover()
    console = Console()
    if not papers:
        console.print("There are no papers yet: begin one with [bold]paperflows new[/].")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("paper", "field", "title", "stages", "claims: holds, fails, untestable"):
        table.add_column(column, no_wrap=column in ("paper", "stages"))
    with dvc.opened(project) as repo:
        for slug, paper in papers.items():
            states = _states(project, slug, repo)
            marks = " ".join("[green]●[/]" if states[stage] == "up to date" else "[yellow]○[/]" for stage in STAGES)
            table.add_row(f"[bold]{slug}[/]", escape(paper.field), escape(paper.title), marks, _counts(project, slug))
    console.print(table)
    console.print(
        f"\nprofile {profile_of(read(project.params))}   stages {', '.join(STAGES)}: [green]●[/] up to date, [yellow]○[/] to be run\n"
        f"Next: [bold]paperflows show {next(iter(papers))}[/] reads one, [bold]paperflows run {next(iter(papers))}[/] runs it."
    )


def _states(project: Project, slug: str, repo) -> dict[str, str]:
    if not (project.flow(slug) / "dvc.yaml").is_file():
        return dict.fromkeys(STAGES, "no dvc.yaml: run `paperflows sync`")
    changes = dvc.changes(project, slug, repo)
    return {stage: "; ".join(reasons) if reasons else "up to date" for stage, reasons in changes.items()}


def _claims(project: Project, slug: str) -> list[dict]:
    path = project.results(slug) / "claims.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _counts(project: Project, slug: str) -> str:
    claims = _claims(project, slug)
    if not claims:
        return "[dim]not run yet[/]"
    count = Counter(claim["verdict"] for claim in claims)
    return f"[bright_blue]{count[HOLDS]} ✔[/]  [orange3]{count[FAILS]} ✘[/]  [dim]{count[NOT_TESTABLE]} –[/]"


def show_paper(project: Project, slug: str) -> None:
    """One paper: summary, claims with verdicts, stages with what changed, where to read on."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    paper = get(slug)
    console = Console()
    source = (paper.authors, paper.arxiv and f"arXiv {paper.arxiv}", paper.field)
    console.print(f"[bold]{escape(paper.title)}[/]\n{escape(', '.join(filter(None, source)))}\n")
    console.print(escape(paper.summary) + "\n")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("claim", "", "the paper", "ours (95% interval)", "verdict"):
        table.add_column(column)
    found = {claim["id"]: claim for claim in _claims(project, slug)}
    for claim in paper.claims:
        ours = found.get(claim.id)
        verdict = _MARKS[ours["verdict"]] if ours else "[dim]not run yet[/]"
        table.add_row(claim.id, escape(claim.statement), escape(claim.paper), _measured(ours), verdict)
    console.print(table)
    console.print()
    with dvc.opened(project) as repo:
        for stage, state in _states(project, slug, repo).items():
            console.print(f"{stage:9} {'[green]●[/]' if state == 'up to date' else '[yellow]○[/]'} {escape(state)}")
    console.print(
        f"\nreport   {project.relative(project.results(slug))}/index.html\nruns     paperflows ui\nagain    paperflows run {slug}"
    )


def _measured(claim: dict | None) -> str:
    if not claim or claim["measured"] is None:
        return ""
    interval = " [{:.3g}, {:.3g}]".format(*claim["ci95"]) if claim["ci95"] else ""
    from rich.markup import escape

    return escape(f"{claim['measured']:.3g}{interval} {claim['unit']}")
