"""`paperflows new`: writes a paper that stands, and never writes over one."""

import subprocess
import sys

import pytest

from tasks.errors import UserError
from tasks.project import Project
from tasks.scaffold import new_paper
from tests import projects


@pytest.fixture
def project(tmp_path):
    (tmp_path / "flows").mkdir()
    (tmp_path / "params.yaml").write_text("# all\nprofile: cpu\n")
    return Project(tmp_path)


def everything(project):
    return {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}


def test_a_paper_is_written_once(project):
    written = new_paper(project, "ridge_regression", None)
    assert all(path.is_file() for path in written)
    assert 'title="Ridge regression"' in (project.flow("ridge_regression") / "__init__.py").read_text()
    assert project.params.read_text().startswith("# all\nprofile: cpu\n\nridge_regression:\n")
    before = everything(project)
    with pytest.raises(UserError, match="flows/ridge_regression exists already"):
        new_paper(project, "ridge_regression")
    assert everything(project) == before


def test_a_test_or_a_section_of_that_name_is_not_written_over(project):
    (project.root / "tests" / "flows").mkdir(parents=True)
    (project.root / "tests" / "flows" / "test_one.py").write_text("mine")
    project.params.write_text("profile: cpu\ntwo: {}\n")
    before = everything(project)
    with pytest.raises(UserError, match=r"tests/flows/test_one\.py exists already"):
        new_paper(project, "one")
    with pytest.raises(UserError, match=r"params\.yaml has a section two already"):
        new_paper(project, "two")
    assert everything(project) == before


@pytest.mark.parametrize(
    ("slug", "title"), [("Bad", None), ("../up", None), ("a", 'so "called"'), ("a", "two\nlines"), ("a", "back\\slash")]
)
def test_names_and_titles_that_would_break_the_files_are_refused(project, slug, title):
    before = everything(project)
    with pytest.raises(UserError):
        new_paper(project, slug, title)
    assert everything(project) == before


@pytest.mark.parametrize("slug", ["profile", "class", "import"])
def test_names_that_python_or_the_parameters_use_are_refused(project, slug):
    before = everything(project)
    with pytest.raises(UserError, match=slug):
        new_paper(project, slug)
    assert everything(project) == before


def test_the_written_paper_passes_its_own_test(tmp_path):
    folder = projects.make_project(tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rp", "--import-mode=importlib", "-p", "no:cacheprovider", "tests/flows/test_tiny.py"],
        cwd=folder,
        env=projects.environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "PASSED tests/flows/test_tiny.py" in done.stdout
