"""`paperflows new`: a paper's folder from a template that runs as it stands."""

from pathlib import Path

from tasks.errors import UserError
from tasks.files import write_text
from tasks.paper import STAGES, check_slug
from tasks.project import Project
from tasks.settings import read

_TEMPLATES = Path(__file__).parent / "templates" / "paper"


def new_paper(project: Project, slug: str, title: str | None = None) -> list[Path]:
    """Write `flows/<slug>/`, `tests/flows/test_<slug>.py` and a section of params.yaml; returns the files.

    Raises UserError if any of them exists."""
    from jinja2 import Environment, StrictUndefined

    check_slug(slug)
    folder, test = project.flow(slug), project.root / "tests" / "flows" / f"test_{slug}.py"
    for path in (folder, test):
        if path.exists():
            raise UserError(f"{project.relative(path)} exists already: choose another name, or remove it first")
    if slug in read(project.params):
        raise UserError(f"params.yaml has a section {slug} already: choose another name, or remove it first")
    title = title or slug.replace("_", " ").capitalize()
    if '"' in title or "\n" in title or "\\" in title:
        raise UserError("a title holds no quotation marks, backslashes or line breaks")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701 - Python, not HTML

    def fill(name: str) -> str:
        text = (_TEMPLATES / f"{name}.tmpl").read_text(encoding="utf-8")
        return environment.from_string(text).render(slug=slug, title=title)

    files = {folder / f"{name}.py": fill(f"{name}.py") for name in ("__init__", *STAGES)}
    files[test] = fill("test_paper.py")
    section = project.params.read_text(encoding="utf-8").rstrip("\n") + "\n" + fill("params.yaml")
    for path, text in files.items():
        write_text(path, text)
    write_text(project.params, section)
    return [*files, project.params]
