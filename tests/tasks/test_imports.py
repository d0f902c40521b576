"""Which files a module imports, on a made-up tree."""

import pytest

from tasks.errors import UserError
from tasks.imports import arguments, dependencies


@pytest.fixture
def tree(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return lambda module: dependencies(tmp_path / f"{module}.py", tmp_path)

    for package in ("flows", "tasks", "components", "kernels"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    return write


def test_a_module_depends_on_itself_and_not_on_other_libraries(tree):
    assert tree(**{"flows/a": "import os\nimport numpy as np\nfrom pathlib import Path\n"})("flows/a") == ["flows/a.py"]


def test_imports_are_followed_through_modules(tree):
    found = tree(
        **{
            "flows/a": "from components.b import f\n",
            "components/b": "from kernels.c import g\n",
            "kernels/c": "import torch\n",
            "components/unused": "",
        }
    )
    assert found("flows/a") == ["components/b.py", "flows/a.py", "kernels/c.py"]


def test_every_way_to_write_an_import(tree):
    found = tree(
        **{
            "flows/a": "import components.b, components.c as c\nfrom components import d as e\n",
            "components/b": "",
            "components/c": "",
            "components/d": "",
        }
    )
    assert found("flows/a") == ["components/b.py", "components/c.py", "components/d.py", "flows/a.py"]


def test_relative_imports(tree):
    found = tree(
        **{
            "flows/p/__init__": "",
            "flows/p/a": "from . import b\nfrom .c import f\nfrom ..q import g\nfrom .. import q as h\n",
            "flows/p/b": "",
            "flows/p/c": "",
            "flows/q": "",
        }
    )
    assert found("flows/p/a") == ["flows/p/a.py", "flows/p/b.py", "flows/p/c.py", "flows/q.py"]


def test_a_name_leads_through_a_package_to_the_module_that_defines_it(tree):
    found = tree(
        **{
            "flows/a": "from components.stats import mean\n",
            "components/stats/__init__": "from components.stats.basic import mean\nfrom components.stats.heavy import fit\n",
            "components/stats/basic": "",
            "components/stats/heavy": "from components import other\n",
            "components/other": "",
        }
    )
    assert found("flows/a") == ["components/stats/basic.py", "flows/a.py"]


def test_a_name_that_is_given_another_is_followed(tree):
    found = tree(
        **{
            "flows/a": "from components.stats import average\n",
            "components/stats/__init__": "from .basic import mean as average\n",
            "components/stats/basic": "",
        }
    )
    assert "components/stats/basic.py" in found("flows/a")


def test_names_lead_through_two_packages(tree):
    found = tree(
        **{
            "flows/a": "from components import mean\n",
            "components/__init__": "from components.stats import mean\n",
            "components/stats/__init__": "from components.stats.basic import mean\n",
            "components/stats/basic": "",
        }
    )
    assert "components/stats/basic.py" in found("flows/a")


def test_a_name_that_the_package_defines_itself_is_its_own(tree):
    found = tree(
        **{"flows/a": "from flows.p import paper\n", "flows/p/__init__": "from tasks.q import P\npaper = P()\n", "tasks/q": ""}
    )
    assert found("flows/a") == ["flows/a.py", "flows/p/__init__.py", "tasks/q.py"]


def test_a_submodule_wins_over_a_name_of_the_package(tree):
    found = tree(
        **{
            "flows/a": "from components.stats import basic\n",
            "components/stats/__init__": "from components.stats.heavy import fit\n",
            "components/stats/basic": "",
            "components/stats/heavy": "",
        }
    )
    assert found("flows/a") == ["components/stats/basic.py", "flows/a.py"]


def test_a_star_takes_all_that_the_package_passes_on(tree):
    found = tree(
        **{
            "flows/a": "from components.stats import *\n",
            "components/stats/__init__": "from components.stats.basic import mean\nfrom components.stats.more import fit\n",
            "components/stats/basic": "",
            "components/stats/more": "",
        }
    )
    assert {"components/stats/basic.py", "components/stats/more.py"} <= set(found("flows/a"))


def test_a_name_passed_on_by_a_star_is_followed(tree):
    found = tree(
        **{
            "flows/a": "from components.stats import fit\n",
            "components/stats/__init__": "from components.stats.basic import *\nfrom components.stats.more import *\n",
            "components/stats/basic": "def mean(): ...\n",
            "components/stats/more": "def fit(): ...\n",
        }
    )
    assert "components/stats/more.py" in found("flows/a")


def test_importing_a_package_takes_all_of_it(tree):
    """`import components.stats` may use any of its names."""
    found = tree(
        **{
            "flows/a": "import components.stats\n",
            "components/stats/__init__": "from components.stats.basic import mean\n",
            "components/stats/basic": "",
        }
    )
    assert found("flows/a") == ["components/stats/__init__.py", "components/stats/basic.py", "flows/a.py"]


def test_imports_within_functions_and_conditions_count(tree):
    found = tree(
        **{
            "flows/a": "def f():\n    from components.b import g\nif True:\n    import components.c\n",
            "components/b": "",
            "components/c": "",
        }
    )
    assert found("flows/a") == ["components/b.py", "components/c.py", "flows/a.py"]


def test_cycles_end(tree):
    found = tree(**{"flows/a": "import flows.b\n", "flows/b": "import flows.a\n"})
    assert found("flows/a") == found("flows/b") == ["flows/a.py", "flows/b.py"]


def test_packages_that_import_from_each_other_end(tree):
    found = tree(
        **{
            "flows/a": "from components.x import name\n",
            "components/x/__init__": "from components.y import name\n",
            "components/y/__init__": "from components.x import name\n",
        }
    )
    assert "flows/a.py" in found("flows/a")


def test_an_edit_is_seen_in_the_same_process(tree):
    found = tree(**{"flows/a": "import components.b\n", "components/b": "", "components/longer": ""})
    assert found("flows/a") == ["components/b.py", "flows/a.py"]
    tree(**{"flows/a": "import components.longer\n"})
    assert found("flows/a") == ["components/longer.py", "flows/a.py"]


def test_a_syntax_error_is_named_with_its_line(tree):
    found = tree(**{"flows/a": "import components.b\n", "components/b": "x = 1\ndef (:\n"})
    with pytest.raises(UserError, match=r"components/b\.py, line 2: not valid Python"):
        found("flows/a")


def test_arguments_are_read_without_importing(tree, tmp_path):
    tree(**{"flows/a": "raise SystemExit\ndef train(p, data, *, out): ...\ndef other(x): ...\n"})
    assert arguments(tmp_path / "flows/a.py", "train") == ["p", "data", "out"]
    assert arguments(tmp_path / "flows/a.py", "report") is None
