"""The command line answers at once, and refuses in one sentence."""

import signal
import subprocess
import sys

import pytest

from tests import projects

COMMANDS = ("list", "show", "run", "sync", "fetch", "sweep", "ledger", "serve", "deploy", "new", "doctor", "ui")
HEAVY = ("torch", "mlflow", "prefect", "pandas", "ray", "dvc", "matplotlib", "scipy", "sklearn")
HELP = (
    "import sys\nfrom tasks import cli\nsys.argv = ['paperflows', *{words!r}, '--help']\ncode = cli.main()\n"
    "print('loaded:', [name for name in {heavy!r} if name in sys.modules])\nsys.exit(code)\n"
)


@pytest.mark.parametrize("words", [(), *((command,) for command in COMMANDS)], ids=lambda words: "-".join(words) or "all")
def test_help_answers_without_a_heavy_library(words):
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(words=words, heavy=HEAVY)],
        cwd=projects.ROOT,
        env=projects.environment(projects.ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert done.stdout.endswith("loaded: []\n")


def test_every_command_is_known_to_the_tests():
    from tasks.cli import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert names == set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run",), "error: name the papers to run, or say --all\n"),
        (("run", "tiny", "--all"), "error: name the papers to run, or say --all\n"),
        (("run", "tinny"), "error: there is no paper 'tinny': did you mean tiny?\n"),
        (("show", "tinny"), "error: there is no paper 'tinny': did you mean tiny?\n"),
        (("sweep", "tinny"), "error: there is no paper 'tinny': did you mean tiny?\n"),
        (("run", "tiny", "-p", "fast"), "error: there is no profile 'fast': choose smoke, cpu, paper\n"),
        (("run", "tiny", "-s", "penalty=1"), "error: --set penalty=1: write stage.key=value, for example train.penalty=...\n"),
        (("new", "tiny"), "error: flows/tiny exists already: choose another name, or remove it first\n"),
        (("fetch", "coora"), "error: there is no asset 'coora': did you mean cora?\n"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_refused_in_one_sentence(project, words, sentence):
    done = projects.call(project, *words)
    assert (done.returncode, done.stderr) == (2, sentence)


@pytest.mark.parametrize("words", [("rnu",), ("run", "--frce"), ("run", "tiny", "-j", "0"), ("run", "tiny", "-j", "two")])
def test_words_that_are_not_understood_end_with_two_and_no_traceback(project, words):
    done = projects.call(project, *words)
    assert done.returncode == 2
    assert words[-1] in done.stderr or "--jobs" in done.stderr
    assert "Traceback" not in done.stderr


def test_outside_a_project_the_sentence_says_what_a_project_is(project, tmp_path):
    done = projects.call(project, "list", PAPERFLOWS_ROOT=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: PAPERFLOWS_ROOT is {tmp_path}, but there is no params.yaml in that folder\n"


def test_list_and_show_name_the_paper_its_claims_and_the_next_step(project):
    listed, shown = projects.call(project, "list", check=True).stdout, projects.call(project, "show", "tiny", check=True).stdout
    assert "tiny" in listed
    assert "not run yet" in listed
    assert "paperflows run tiny" in listed
    assert "C1" in shown
    assert "paperflows run tiny" in shown


def test_importing_a_paper_loads_no_heavy_library_and_its_flow_is_prefects(project):
    code = (
        "import sys, flows.tiny\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "from prefect import Flow\nprint(isinstance(flows.tiny.flow, Flow), flows.tiny.flow.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=projects.environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\nTrue tiny\n"), done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return projects.make_project(tmp_path_factory.mktemp("cli") / "project")


@pytest.mark.parametrize(("code", "exit_code"), [(130, 130), (-signal.SIGINT, 130), (2, 2), (-signal.SIGKILL, 1), (7, 1)])
def test_what_a_failed_stage_does_to_the_exit_code(code, exit_code):
    from tasks.cli import _known
    from tasks.dvc import StageFailed

    assert _known(StageFailed("tiny", "train", code)) == exit_code
