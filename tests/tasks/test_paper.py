"""What a paper may say of itself, and how papers are found."""

import importlib
import sys

import pytest

from tasks.claims import Claim, mean_above
from tasks.errors import UserError
from tasks.paper import Paper, Range, Sweep, check_slug, check_stage, discover, get, slugs


def claim(name="C1"):
    return Claim(id=name, statement="s", paper="p", unit="u", quantity=("a", "b"), rule=mean_above(0.0))


def paper(**changes):
    fields = {"slug": "tiny", "title": "t", "authors": "a", "arxiv": "0000.00000", "field": "f", "summary": "s"}
    return Paper(**{**fields, "claims": (claim(),), **changes})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("normal", 0, 1), "log, uniform, integer or choice, not 'normal'"),
        (("choice",), "at least one value"),
        (("uniform", 1, 1), "low < high, got 1 and 1"),
        (("uniform", 1, None), "low < high"),
        (("uniform", float("nan"), 1), "low < high"),
        (("integer", 3, 2), "low < high"),
        (("log", 0, 1), "needs low > 0, got 0"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Range(*arguments)


def test_a_choice_keeps_its_values():
    assert Range("choice", values=["adam", "sgd"]).values == ("adam", "sgd")
    assert hash(Range("choice", values=["adam", "sgd"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, "at least one parameter"),
        ({"space": {"data.nodes": Range("log", 1, 2)}}, "share the data; got data.nodes"),
        ({"overrides": {"nodes": 3}}, "share the data; got nodes"),
        ({"mode": "best"}, "max or min, not 'best'"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(changes, message):
    fields = {"space": {"train.lr": Range("log", 1e-3, 1)}, "objective": ("a", "b")}
    with pytest.raises(ValueError, match=message):
        Sweep(**{**fields, **changes})


def test_a_paper_needs_claims_of_different_ids():
    with pytest.raises(ValueError, match="makes no claim"):
        paper(claims=())
    with pytest.raises(ValueError, match="two claims of the same id"):
        paper(claims=(claim(), claim()))
    assert paper(claims=[claim("C1"), claim("C2")]).claims[1].id == "C2"


@pytest.mark.parametrize("slug", ["", "Bes", "1a", "a-b", "a.b", "a b", "../a", "a/b", "a\n"])
def test_slugs_lead_nowhere_else(slug):
    with pytest.raises(UserError, match="is no paper's short name"):
        check_slug(slug)


def test_stages_are_four():
    assert check_stage("train") == "train"
    with pytest.raises(UserError, match="there is no stage 'trian': a flow has data, train, evaluate, report"):
        check_stage("trian")


ABOUT = (
    "from tasks.claims import Claim, mean_above\nfrom tasks.paper import Paper\n"
    "paper = Paper('{slug}', 't', 'a', '0', 'f', 's',\n"
    "    (Claim(id='C1', statement='s', paper='p', unit='u', quantity=('a', 'b'), rule=mean_above(0.0)),))\n"
)


@pytest.fixture
def papers(tmp_path, monkeypatch):
    """A package `flows` with papers of our own."""
    folder = tmp_path / "flows"
    for slug in ("bes", "motif_rnn", "odd", "silent"):
        (folder / slug).mkdir(parents=True)
        text = {"silent": "", "odd": ABOUT.format(slug="even")}.get(slug, ABOUT.format(slug=slug))
        (folder / slug / "__init__.py").write_text(text)
    (folder / "__init__.py").touch()
    (folder / "helpers.py").touch()
    for name in [name for name in sys.modules if name == "flows" or name.startswith("flows.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name == "flows" or name.startswith("flows.")]:
        del sys.modules[name]


def test_papers_are_the_packages_of_flows(papers):
    assert slugs() == ["bes", "motif_rnn", "odd", "silent"]
    assert list(discover(["motif_rnn", "bes"])) == ["motif_rnn", "bes"]
    assert discover(["bes"])["bes"].title == "t"


def test_an_unknown_paper_is_answered_with_the_nearest(papers):
    with pytest.raises(UserError, match=r"^there is no paper 'motifrnn': did you mean motif_rnn\?$"):
        get("motifrnn")
    with pytest.raises(UserError, match=r"there is no paper 'qqqqqq': there are: bes, motif_rnn, odd, silent"):
        get("qqqqqq")
    with pytest.raises(UserError, match="there is no paper 'helpers'"):
        get("helpers")


def test_a_package_without_its_paper_is_named(papers):
    with pytest.raises(UserError, match=r"flows/silent/__init__\.py defines no `paper = Paper"):
        get("silent")
    with pytest.raises(UserError, match=r"flows/odd/__init__\.py: its slug is 'even', the folder's name is 'odd'"):
        get("odd")
