"""Every claim of every paper on one page: `LEDGER.md` for a code host and `results/index.html` for a browser.

Both are computed from the committed `results/<slug>/claims.json` alone, so they say what the reports say.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.claims import VERDICTS, Verdict, measured_text, validate_claims_file
from tasks.errors import UserError
from tasks.files import write_text
from tasks.paper import Paper
from tasks.report import count_verdicts, environment, escape_markdown, markdown_table, verdict_counts_text, verdict_text


@dataclass(frozen=True)
class _Entry:
    slug: str
    title: str
    authors: str
    claims: list[Verdict]


@dataclass(frozen=True)
class _Field:
    name: str
    anchor: str
    papers: list[_Entry]


def write_ledger(root: Path, papers: Mapping[str, Paper]) -> dict[str, int]:
    """Write `LEDGER.md` and `results/index.html` under `root`, and return how many claims have each verdict.

    Args:
        root: the project's folder.
        papers: the papers to list, by short name (`tasks.paper.discover()`). Results of others are left out; a paper without
            results is listed as not run yet.

    Raises UserError, before anything is written, where `root` is no folder or a `claims.json` is damaged; OSError where the two
    files cannot be written. Each file is replaced whole.
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; the ledger is written at the root of a project")
    fields: dict[str, list[_Entry]] = {}
    waiting: list[Paper] = []
    for slug, paper in sorted(papers.items()):
        path = root / "results" / slug / "claims.json"
        if path.exists():
            fields.setdefault(paper.field, []).append(_Entry(slug, paper.title, paper.authors, validate_claims_file(path)))
        else:
            waiting.append(paper)
    listed = [
        _Field(name, f"field-{position}-{_anchor(name)}", fields[name]) for position, name in enumerate(sorted(fields), 1)
    ]
    claims = [claim for entries in fields.values() for entry in entries for claim in entry.claims]
    summary = _summary(len(claims), sum(len(field.papers) for field in listed), len(waiting))
    page = environment().get_template("ledger")
    html = page.render(fields=listed, waiting=waiting, numbers=count_verdicts(claims), summary=summary)
    write_text(root / "LEDGER.md", _markdown(listed, waiting, claims, summary))
    write_text(root / "results" / "index.html", html.rstrip() + "\n")
    return {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}


def _markdown(fields: list[_Field], waiting: list[Paper], claims: list[Verdict], summary: str) -> str:
    parts = [
        "# Ledger of claims",
        f"**{verdict_counts_text(claims)}**",
        f"{summary} A claim holds or fails by a rule that was fixed before anything was measured; intervals are at 95%. "
        "A failed claim means that it did not show at this scale under that rule: each report says why.",
    ]
    for field in fields:
        rows = []
        for entry in field.papers:
            # Every bracket of the title is escaped: one that is left over would end the link's text.
            title = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escape_markdown(entry.title))
            link = f"[{title}](results/{entry.slug}/README.md)"
            for position, claim in enumerate(entry.claims):
                # The paper stands in its first row alone, as a reader expects of a grouped table.
                rows.append(
                    (
                        "" if position else link,
                        f"**{escape_markdown(claim['id'])}** {escape_markdown(claim['statement'])}",
                        escape_markdown(claim["paper"]),
                        escape_markdown(measured_text(claim)),
                        verdict_text(claim["verdict"]),
                    )
                )
        parts.append(f"## {escape_markdown(field.name)}")
        parts.append(markdown_table(("paper", "claim", "the paper's number", "ours", "verdict"), rows))
    if waiting:
        parts.append("## Not run yet")
        parts.append("\n".join(f"- {escape_markdown(paper.title)}: `paperflows run {paper.slug}`" for paper in waiting))
    return "\n\n".join(parts) + "\n"


def _summary(claims: int, papers: int, waiting: int) -> str:
    text = f"{claims} claim{'' if claims == 1 else 's'} of {papers} paper{'' if papers == 1 else 's'}, measured again."
    return text if not waiting else f"{text} {waiting} paper{' is' if waiting == 1 else 's are'} still to be run."


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
