"""The ledger counts what the reports say, and is replaced whole."""

import json
import os

import pytest

from tasks.claims import Claim, mean_above
from tasks.errors import UserError
from tasks.ledger import write_ledger
from tasks.paper import Paper


def paper(slug, field="graphs", title=None):
    claim = Claim("C1", "s", "p", "", ("A", "m"), mean_above(0))
    return Paper(slug, title or f"Title of {slug}", "A. Author", "2601.00001", field, "Summary.", (claim,))


def entry(number, verdict, **changes):
    measured = None if verdict.startswith("not") else 1.25
    fields = {"id": f"C{number}", "statement": f"Statement {number}.", "paper": "+3.3", "unit": "points", "rule": "mean > 0"}
    bounds = None if measured is None else [0.5, 2.0]
    return {**fields, "measured": measured, "ci95": bounds, "verdict": verdict, "reason": "because", **changes}


def store(root, slug, *entries):
    folder = root / "results" / slug
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.json").write_text(json.dumps(entries))


@pytest.fixture
def project(tmp_path):
    store(tmp_path, "bes", entry(1, "holds"), entry(2, "fails"), entry(3, "holds"))
    store(tmp_path, "l2a", entry(1, "not testable at this scale"))
    store(tmp_path, "removed", entry(1, "fails"))  # a folder that no paper owns any more
    return tmp_path


PAPERS = {"bes": paper("bes"), "l2a": paper("l2a", "attention"), "soma": paper("soma", "physics")}


def test_counts_rows_and_links(project):
    assert write_ledger(project, PAPERS) == {"holds": 2, "fails": 1, "not testable at this scale": 1}
    ledger = (project / "LEDGER.md").read_text(encoding="utf-8")
    page = (project / "results" / "index.html").read_text(encoding="utf-8")
    assert "**✓ 2 holds · ✗ 1 fails · ○ 1 not testable at this scale**" in ledger
    assert "4 claims of 2 papers" in ledger and "4 claims of 2 papers" in page
    for file, address in ((ledger, "(results/bes/README.md)"), (page, 'href="bes/index.html"')):
        assert file.count(address) == 1
        assert "removed" not in file
        assert file.index("attention") < file.index("graphs")
        assert "paperflows run soma" in file and "paperflows run bes" not in file
        assert "1.25 [0.50, 2.00]" in file
    assert "| **C2** Statement 2. | +3.3 | 1.25 [0.50, 2.00] points | ✗ fails |" in ledger
    assert "| **C1** Statement 1. | +3.3 | – | ○ not testable at this scale |" in ledger
    for link in ("bes/index.html", "l2a/index.html"):
        assert link in page
    assert page.count('<td class="outcome">') == 4


def test_the_order_of_papers_does_not_matter(project):
    store(project, "zo", entry(1, "holds"))
    papers = {**PAPERS, "zo": paper("zo"), "aa": paper("aa", "physics")}  # two in one field, two not run yet
    write_ledger(project, papers)
    first = [(project / name).read_bytes() for name in ("LEDGER.md", "results/index.html")]
    write_ledger(project, dict(reversed(papers.items())))
    assert [(project / name).read_bytes() for name in ("LEDGER.md", "results/index.html")] == first
    assert str(project).encode() not in b"".join(first)


def test_what_is_shown_is_escaped(project):
    evil = "<script>alert(1)</script> | [x](javascript:y) ]"
    store(project, "bes", entry(1, "holds", statement=evil, paper=evil, unit=evil))
    write_ledger(project, {"bes": paper("bes", evil, evil)})
    page = (project / "results" / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page
    ledger = (project / "LEDGER.md").read_text(encoding="utf-8")
    assert "<script" not in ledger
    from markdown_it import MarkdownIt

    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(ledger)
    assert rendered.count("<a ") == 1 and 'href="results/bes/README.md"' in rendered
    assert rendered.count("<td>") == 5  # one row of five cells, whatever bars the text holds


def test_an_empty_project_has_a_ledger(tmp_path):
    assert write_ledger(tmp_path, {}) == {"holds": 0, "fails": 0, "not testable at this scale": 0}
    assert "0 claims of 0 papers" in (tmp_path / "LEDGER.md").read_text(encoding="utf-8")
    assert (tmp_path / "results" / "index.html").exists()


def test_a_damaged_claims_file_is_named_and_nothing_is_written(project):
    write_ledger(project, PAPERS)
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file() and "claims" not in path.name}
    store(project, "l2a", entry(1, "maybe"))
    with pytest.raises(UserError, match=r"results/l2a/claims\.json: entry 0: verdict must be one of"):
        write_ledger(project, PAPERS)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(UserError, match="is not a folder"):
        write_ledger(project / "nowhere", PAPERS)


def test_a_write_that_dies_leaves_the_former_ledger(project, monkeypatch):
    write_ledger(project, PAPERS)
    before = (project / "LEDGER.md").read_bytes()
    store(project, "bes", entry(1, "fails"))

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_ledger(project, PAPERS)
    assert (project / "LEDGER.md").read_bytes() == before
    assert not [path for path in project.rglob("*") if path.name.endswith(".tmp")]
