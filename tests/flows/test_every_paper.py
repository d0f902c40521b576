"""What every paper of this project keeps to."""

import ast
import subprocess
import sys

import pytest

from tasks import settings, sync
from tasks.paper import STAGES, discover, slugs
from tasks.project import Project
from tests.projects import ROOT, environment

HEAVY = ("torch", "mlflow", "prefect", "pandas", "ray", "dvc", "matplotlib", "scipy", "sklearn", "torch_geometric")
PACKAGES = ("components", "kernels", "tasks")


def test_every_dvc_yaml_is_in_step():
    assert sync.stale(Project(ROOT)) == []


def test_every_paper_has_its_section_and_every_section_its_paper():
    assert set(settings.read(ROOT / "params.yaml")) - {"profile"} == set(slugs())


def test_sections_hold_stages_alone():
    everything = settings.read(ROOT / "params.yaml")
    assert {(slug, key) for slug in slugs() for key in everything[slug] if key not in STAGES} == set()


def test_parameters_are_valid_under_every_profile():
    """In one process, so that torch is imported once."""
    from tasks.stage import load

    everything = settings.read(ROOT / "params.yaml")
    for slug in slugs():
        for stage in STAGES:
            _, model = load(slug, stage)
            for profile in settings.PROFILES:
                block = settings.block_of(everything | {"profile": profile}, slug, stage)
                settings.validate(model, block, f"params.yaml, {profile}: {slug}.{stage}")


def test_every_asset_is_in_the_manifest():
    from tasks.assets import MANIFEST

    assert {asset for paper in discover().values() for asset in paper.assets} <= set(MANIFEST)


def test_importing_all_papers_stays_cheap():
    code = (
        "import sys\nfrom tasks.paper import discover\ndiscover()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]", "")


@pytest.mark.parametrize("path", sorted(p for package in PACKAGES for p in (ROOT / package).rglob("__init__.py")), ids=str)
def test_packages_only_pass_names_on(path):
    """The dependencies of a stage are found by following names through packages, which must therefore do nothing else."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, f"{path} has no docstring"
    for node in tree.body[1:]:
        names = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        assert isinstance(node, ast.ImportFrom) or names, f"{path}, line {node.lineno}: {ast.unparse(node)}"


def run(*words):
    done = subprocess.run(words, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_go_one_way():
    run(sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])")


def test_the_code_is_in_order():
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")
