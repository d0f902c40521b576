"""Writing each paper's `dvc.yaml`, the root's, and the README's table of papers from the flow packages, so that nobody writes
one by hand."""

from pathlib import Path

from tasks import imports
from tasks.errors import UserError
from tasks.files import write_text
from tasks.paper import STAGES, Paper, discover
from tasks.project import Project
from tasks.stage import FIGURES, METRICS, REPORT_FILES, check_names

_HEADER = "# Written by `paperflows sync`; edit the flow package instead.\n"


def pipeline(project: Project, paper: Paper) -> dict:
    """The content of a paper's dvc.yaml: four stages, each with what it reads and writes."""
    slug = paper.slug
    stages = {}
    for stage in STAGES:
        module = project.flow(slug) / f"{stage}.py"
        shown = project.relative(module)
        names = imports.arguments(module, stage) if module.is_file() else None
        if names is None:
            raise UserError(f"{shown} is missing, or defines no function `{stage}`")
        check_names(names, stage, shown)
        deps = _code(module, project)
        for name in names[1:-1]:
            if name == "assets":
                deps += [f"data/{asset}" for asset in paper.assets]
            elif name == "metrics":
                deps.append(f"results/{slug}/{METRICS}")
            else:
                deps.append(f"artifacts/{slug}/{name}")
        entry: dict = {
            "cmd": f"python -m flows {slug} {stage}",
            "wdir": "../..",
            "deps": sorted(deps),
            "params": ["profile", f"{slug}.{stage}"],
        }
        if stage == "report":
            # In git, not in DVC's cache: people read these.
            entry["outs"] = [{f"results/{slug}/{name}": {"cache": False}} for name in REPORT_FILES]
            entry["plots"] = [{f"results/{slug}/{FIGURES}": {"cache": False}}]
        else:
            entry["outs"] = [f"artifacts/{slug}/{stage}"]
        if stage == "evaluate":
            entry["metrics"] = [{f"results/{slug}/{METRICS}": {"cache": False}}]
        stages[stage] = entry
    return {"stages": stages}


def _code(module: Path, project: Project) -> list[str]:
    return imports.dependencies(module, project.root)


def ledger_pipeline(project: Project, papers: dict[str, Paper]) -> dict:
    """The root's dvc.yaml: one stage that depends on every paper's report."""
    deps = [f"results/{slug}/claims.json" for slug in papers]
    deps += [f"flows/{slug}/__init__.py" for slug in papers]
    deps += _code(project.root / "tasks" / "ledger.py", project)
    return {
        "stages": {
            "ledger": {
                "cmd": "python -m tasks ledger",
                "deps": sorted(deps),
                "outs": [{"LEDGER.md": {"cache": False}}, {"results/index.html": {"cache": False}}],
            }
        }
    }


def documents(project: Project) -> dict[Path, str]:
    """Every file that `sync` owns, with the text that it should have."""
    papers = discover()
    texts = {project.flow(slug) / "dvc.yaml": text_of(pipeline(project, paper)) for slug, paper in papers.items()}
    texts[project.root / "dvc.yaml"] = text_of(ledger_pipeline(project, papers))
    readme = project.root / "README.md"
    if readme.is_file():
        texts[readme] = with_table(readme.read_text(encoding="utf-8"), papers)
    return texts


def with_table(readme: str, papers: dict[str, Paper]) -> str:
    """A README with the table of papers put between its two markers; unchanged where it has none."""
    start, end = "<!-- papers: written by `paperflows sync` -->\n", "<!-- end of papers -->"
    if start not in readme or end not in readme:
        return readme
    head, rest = readme.split(start, 1)
    tail = rest.split(end, 1)[1]
    rows = [f"| [{slug}](results/{slug}/README.md) | {paper.title} | {paper.field} |\n" for slug, paper in papers.items()]
    return "".join([head, start, "| paper | title | field |\n| --- | --- | --- |\n", *rows, end, tail])


def stale(project: Project) -> list[str]:
    """Paths of files that `sync` would change."""
    return [
        project.relative(path)
        for path, text in documents(project).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def sync(project: Project) -> list[str]:
    """Write what is stale; returns the paths written."""
    written = stale(project)
    texts = documents(project)
    for shown in written:
        write_text(project.root / shown, texts[project.root / shown])
    return written


def text_of(document: dict) -> str:
    """A pipeline as the text of a dvc.yaml."""
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(document, stream)
    return _HEADER + stream.getvalue()
