"""What people read of a paper: one self-contained HTML page, the same as Markdown, the figures and `claims.json`.

Nothing in a report depends on when, where or by whom it was made: the same metrics give the same bytes.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import report_templates
from tasks.claims import FAILS, HOLDS, VERDICTS, Metrics, Summary, Verdict, measured_text, measured_value, number, verdicts

if TYPE_CHECKING:
    import jinja2
    from matplotlib.figure import Figure
    from pydantic import BaseModel

    from tasks.paper import Paper

# Okabe and Ito's palette: told apart with any colour vision. In the order in which a plot takes them.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "black": "#000000",
}
FIGURE_LIMIT = 300_000  # bytes
_RESOLUTIONS = (200, 170, 144, 120, 100, 84, 72)  # dots per inch, the best that fits is taken
_SYMBOLS = {HOLDS: "✓", FAILS: "✗"}
_CLASSES = {HOLDS: "holds", FAILS: "fails"}


class style(AbstractContextManager):
    """Set matplotlib's fonts, lines and colours for a report, and draw without a display.

    A call is enough; used as a context manager it puts the former settings back at the end.
    """

    def __init__(self) -> None:
        import matplotlib

        matplotlib.use("Agg")
        self._former = matplotlib.rcParams.copy()
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs on every machine
                "font.size": 10,
                "axes.titlesize": 11,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.titlepad": 10,
                "axes.labelcolor": "#333333",
                "axes.edgecolor": "#8a9099",
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.grid": True,
                "grid.color": "#e6e8eb",
                "grid.linewidth": 0.7,
                "axes.prop_cycle": matplotlib.cycler(color=list(COLOURS.values())),
                "lines.linewidth": 1.8,
                "lines.markersize": 5,
                "patch.edgecolor": "none",
                "xtick.color": "#565e68",
                "ytick.color": "#565e68",
                "xtick.major.size": 3,
                "ytick.major.size": 3,
                "legend.frameon": False,
                "legend.fontsize": 9,
                "figure.facecolor": "white",
                "figure.figsize": (7.5, 4.2),
                "figure.constrained_layout.use": True,
            }
        )

    def __exit__(self, *exc_info: object) -> None:
        import matplotlib

        matplotlib.rcParams.update(self._former)


@dataclass(frozen=True)
class _Section:
    title: str
    anchor: str
    kind: str = "section"


@dataclass(frozen=True)
class _Text:
    markdown: str
    html: Any
    kind: str = "text"


@dataclass(frozen=True)
class _Figure:
    name: str
    number: int
    png: bytes
    width: int  # of the page, in CSS pixels
    height: int
    caption: str
    alt: str
    kind: str = "figure"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    number: int | None
    caption: str
    kind: str = "table"


class Report:
    """The report of one paper, filled from top to bottom and written by `write`.

    It opens with the paper's title and summary and the claims with their verdicts, which are computed at once: a metric that a
    claim needs and that was not measured raises ValueError here, before any figure is drawn. Then comes what is added by
    `section`, `text`, `figure` and `table`, in that order, then the parameters, then how to reproduce it all.

    Args:
        paper: the paper's description, with its claims.
        metrics: what the stage `evaluate` returned.
        out: the folder to write into; it must exist.
    """

    def __init__(self, paper: Paper, metrics: Metrics, out: Path) -> None:
        self.paper = paper
        self.out = Path(out)
        if not self.out.is_dir():
            raise ValueError(f"the report's folder {self.out} does not exist; give it the stage's `out`")
        self.verdicts: list[Verdict] = verdicts(paper.claims, metrics)
        self._blocks: list[_Section | _Text | _Figure | _Table] = []
        self._parameters: list[_Table] = []
        self._anchors = {"claims", "parameters", "reproduce"}

    def section(self, title: str) -> None:
        """Start a section. Raises ValueError for an empty title."""
        self._blocks.append(_Section(_text(title, "section(title)"), self._anchor(title)))

    def text(self, markdown: str) -> None:
        """Add paragraphs of Markdown (CommonMark and tables). HTML in it is shown, not obeyed.

        Raises ValueError for an empty text, or one with an image: images come through `figure`, so that the page loads nothing.
        """
        markdown = _text(markdown, "text(markdown)").strip()
        html, source = _render_markdown(markdown)
        self._blocks.append(_Text(source, html))

    def figure(self, fig: Figure, name: str, *, caption: str, alt: str) -> None:
        """Add a matplotlib figure as `figures/<name>.png`, at the best resolution that stays within 300 KB, and close it.

        Args:
            caption: what to see in it, as plain text.
            alt: what it shows, for readers who cannot see it.

        Raises ValueError for a name that is not small letters, digits, `-` and `_` or is taken, an empty caption or alternative
        text, and a figure that does not fit at 72 dpi.
        """
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise ValueError(f"figure name must be small letters, digits, - and _, got {name!r}")
        figures = [block for block in self._blocks if isinstance(block, _Figure)]
        if any(block.name == name for block in figures):
            raise ValueError(f"figure {name!r} is already in the report; each figure needs its own name")
        caption, alt = _text(caption, f"figure {name!r}: caption"), _text(alt, f"figure {name!r}: alt")
        png = _png(fig, name)
        # A CSS pixel is 1/96 inch; the picture has more dots than that for sharp screens.
        width, height = (max(1, round(size * 96)) for size in fig.get_size_inches())
        self._blocks.append(_Figure(name, len(figures) + 1, png, width, height, caption, alt))
        from matplotlib import pyplot

        pyplot.close(fig)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> None:
        """Add a table. Cells are texts, numbers (floats are rounded for reading) or None (a dash).

        Raises ValueError without columns, where a row has another length, or for a number that is not finite.
        """
        columns = tuple(str(column) for column in columns)
        rows = [tuple(row) for row in rows]
        if not columns:
            raise ValueError("table(columns, rows) needs at least one column")
        for position, row in enumerate(rows):
            if len(row) != len(columns):
                raise ValueError(f"table {caption!r}: row {position} has {len(row)} cells for {len(columns)} columns")
        count = sum(isinstance(block, _Table) for block in self._blocks)
        self._blocks.append(_table(columns, rows, caption, count + 1))

    def parameters(self, p: BaseModel | Mapping[str, Any], *, label: str = "") -> None:
        """Add parameters to the report's last but one part: each value, and what its field's description says of it.

        Args:
            p: a stage's parameters; groups within are written `group.key`. A plain mapping has no descriptions.
            label: which parameters these are, where there are several.
        """
        rows = list(_flatten(p))
        described = any(row[2] for row in rows)
        columns = ("parameter", "value", "meaning") if described else ("parameter", "value")
        self._parameters.append(_table(columns, [row[: len(columns)] for row in rows], label, None))

    def write(self) -> None:
        """Write `index.html`, `README.md`, `claims.json` and `figures/` into the folder. Raises OSError if it cannot."""
        folder = self.out / "figures"
        folder.mkdir(exist_ok=True)
        for block in self._blocks:
            if isinstance(block, _Figure):
                (folder / f"{block.name}.png").write_bytes(block.png)
        claims = json.dumps(self.verdicts, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        for name, content in (("claims.json", claims), ("README.md", self._markdown()), ("index.html", self._html())):
            (self.out / name).write_text(content.rstrip() + "\n", encoding="utf-8", newline="\n")

    def _anchor(self, title: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        anchor, count = stem, 2
        while anchor in self._anchors:
            anchor, count = f"{stem}-{count}", count + 1
        self._anchors.add(anchor)
        return anchor

    def _all_blocks(self) -> list[_Section | _Text | _Figure | _Table]:
        heading = [_Section("Parameters", "parameters")] if self._parameters else []
        return [*self._blocks, *heading, *self._parameters]

    def _html(self) -> str:
        blocks = self._all_blocks()
        sections = [(block.anchor, block.title) for block in blocks if isinstance(block, _Section)]
        return (
            environment()
            .get_template("report")
            .render(
                paper=self.paper,
                arxiv=_arxiv(self.paper.arxiv),
                numbers=count_verdicts(self.verdicts),
                claims=[(entry, _glyph(entry)) for entry in self.verdicts],
                contents=[("claims", "Claims and verdicts"), *sections, ("reproduce", "Reproduce")],
                blocks=blocks,
            )
        )

    def _markdown(self) -> str:
        paper, arxiv = self.paper, _arxiv(self.paper.arxiv)
        source = f"[arXiv {arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else escape_markdown(paper.arxiv)
        about = " · ".join(
            part for part in (escape_markdown(paper.authors), "ICML 2026", source, escape_markdown(paper.field)) if part
        )
        parts = [
            f"# {escape_markdown(paper.title)}",
            about,
            f"**{verdict_counts_text(self.verdicts)}**",
            escape_markdown(paper.summary),
        ]
        rows = [
            (f"**{escape_markdown(e['id'])}** {escape_markdown(e['statement'])}", escape_markdown(e["paper"]),
             escape_markdown(measured_text(e)), verdict_text(e["verdict"]))
            for e in self.verdicts
        ]  # fmt: skip
        parts += [
            "## Claims and verdicts",
            "Each rule was fixed before anything was measured. Intervals are at 95%.",
            markdown_table(("claim", "the paper", "measured", "verdict"), rows),
            "Why:",
            "\n".join(_reason_line(entry) for entry in self.verdicts),
        ]
        for block in self._all_blocks():
            if isinstance(block, _Section):
                parts.append(f"## {escape_markdown(block.title)}")
            elif isinstance(block, _Text):
                parts.append(block.markdown)
            elif isinstance(block, _Figure):
                parts.append(f"![{escape_markdown(block.alt)}](figures/{block.name}.png)")
                parts.append(f"**Figure {block.number}.** {escape_markdown(block.caption)}")
            else:
                numbering = f"**Table {block.number}.** " if block.number else ""
                if block.caption:
                    parts.append(f"{numbering}{escape_markdown(block.caption)}")
                rows = [[escape_markdown(value) for value in row] for row in block.rows]
                parts.append(markdown_table([escape_markdown(column) for column in block.columns], rows, block.numeric))
        parts += [
            "## Reproduce",
            "Run what is not up to date, and write this report again:",
            f"```\npaperflows run {paper.slug}\n```",
            "Reproduce the committed numbers, through DVC alone:",
            f"```\ndvc repro flows/{paper.slug}/dvc.yaml\n```",
            "Every measured value is in [metrics.json](metrics.json), every verdict in [claims.json](claims.json); "
            "[index.html](index.html) is this report as one page. The same inputs give the same bytes.",
        ]
        return "\n\n".join(parts)


def interval(cell: Summary | None, digits: int = 2, *, signed: bool = False) -> str:
    """`+0.95 [0.30, 1.60]`, or the mean alone where there is no interval; a dash for nothing measured."""
    if cell is None:
        return "–"
    mean = f"{cell['mean']:{'+' if signed else ''}.{digits}f}"
    return mean if cell["ci95"] is None else f"{mean} [{cell['ci95'][0]:.{digits}f}, {cell['ci95'][1]:.{digits}f}]"


def plus_minus(cell: Summary | None, digits: int) -> str:
    """`2.561 ± 0.020`, the mean and half the width of its interval, or the mean alone; a dash for nothing measured."""
    if cell is None:
        return "–"
    half = "" if cell["ci95"] is None else f" ± {(cell['ci95'][1] - cell['ci95'][0]) / 2:.{digits}f}"
    return f"{cell['mean']:.{digits}f}{half}"


def environment() -> jinja2.Environment:
    """The templates of all pages, with autoescape on and unknown names an error."""
    import jinja2
    from markupsafe import Markup

    names = {"base": "BASE", "macros": "MACROS", "report": "REPORT", "ledger": "LEDGER"}
    pages = jinja2.DictLoader({name: getattr(report_templates, constant) for name, constant in names.items()})
    found = jinja2.Environment(
        loader=pages, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.globals["style"] = Markup(report_templates.STYLE)  # our own style sheet, a constant
    found.filters.update(measured=measured_text, measured_value=measured_value, symbol=symbol)
    found.filters["css"] = lambda verdict: _CLASSES.get(verdict, "open")
    return found


def symbol(verdict: str) -> str:
    """The mark that stands before a verdict's words."""
    return _SYMBOLS.get(verdict, "○")


def verdict_text(verdict: str) -> str:
    """A verdict for Markdown: its mark and its words."""
    return f"{symbol(verdict)} {verdict}"


def count_verdicts(entries: Iterable[Verdict]) -> list[tuple[str, int]]:
    """How many of `entries` have each of the three verdicts."""
    found = [entry["verdict"] for entry in entries]
    return [(verdict, found.count(verdict)) for verdict in VERDICTS]


def verdict_counts_text(entries: Iterable[Verdict]) -> str:
    """The three counts on one line."""
    return " · ".join(f"{symbol(verdict)} {count} {verdict}" for verdict, count in count_verdicts(entries))


def escape_markdown(text: str) -> str:
    """Plain text as Markdown that shows exactly this text, on one line: for headings, table cells and captions."""
    text = " ".join(str(text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"[\\`*_|~$]|\](?=[(\[:])", r"\\\g<0>", text)  # a bracket matters only before what makes it a link
    return re.sub(r"^(#+|[-+>=]|\d+[.)])(?=\s|$)", lambda found: found[0][:-1] + "\\" + found[0][-1], text)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    """A Markdown table of cells that are Markdown already; columns marked as numeric are aligned to the right."""
    sides = ["--:" if position < len(numeric) and numeric[position] else "---" for position in range(len(columns))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, sides, *rows))


def _reason_line(entry: Verdict) -> str:
    reason = escape_markdown(entry["reason"])
    parts = [f"- **{escape_markdown(entry['id'])}** {verdict_text(entry['verdict'])}: {reason}"]
    parts[0] += "" if reason.endswith(".") else "."
    if entry["rule"]:
        parts.append(f"*Holds if {escape_markdown(entry['rule'])}.*")
    return " ".join(parts)


def _render_markdown(markdown: str) -> tuple[Any, str]:
    """`markdown` as safe HTML, and as Markdown in which HTML is escaped too, since a code host would obey some of it."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    # With HTML enabled the parser says where HTML stands; what is shown is rendered by the other one.
    flat = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown):
        flat += [token, *(token.children or [])]
    if any(token.type == "image" for token in flat):
        raise ValueError("text(markdown) holds an image: add it with figure(fig, name, caption=..., alt=...)")
    source = markdown
    for found in {token.content for token in flat if token.type in ("html_block", "html_inline")}:
        source = source.replace(found, found.replace("<", "&lt;"))
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    html = html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    return Markup(html), source  # marked as safe: rendered with HTML disabled, nothing of the text became a tag


def _png(fig: Figure, name: str) -> bytes:
    """The figure as PNG without metadata (matplotlib would write its version), at the best resolution that fits the limit."""
    size = drawn = 0
    for dpi in _RESOLUTIONS:
        # Bytes grow with the number of dots at most: where that alone says too large, drawing would only take time.
        if size * (dpi / (drawn or dpi)) ** 2 > FIGURE_LIMIT and dpi != _RESOLUTIONS[-1]:
            continue
        stream = io.BytesIO()
        fig.savefig(stream, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        size, drawn = stream.tell(), dpi
        if size <= FIGURE_LIMIT:
            return stream.getvalue()
    raise ValueError(
        f"figure {name!r} takes {size / 1000:.0f} KB at {_RESOLUTIONS[-1]} dpi, the limit is "
        f"{FIGURE_LIMIT // 1000} KB: draw fewer points or a smaller figure"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str, position: int | None) -> _Table:
    shown = tuple(tuple(_cell(value) for value in row) for row in rows)
    numeric = tuple(bool(rows) and all(_looks_numeric(row[column]) for row in shown) for column in range(len(columns)))
    return _Table(tuple(columns), shown, numeric, position, caption)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return str(value)
    return str(int(value)) if hasattr(value, "__index__") else number(float(value))


def _looks_numeric(text: str) -> bool:
    """Whether a cell belongs in a column aligned to the right: a number, perhaps with an interval or a unit sign."""
    return re.fullmatch(r"–|[-+−]?[\d.,]+(e[-+]?\d+)?\s*%?(\s*(±|\+-)\s*[\d.,]+|\s*\[[^\]]*\])?", text.strip()) is not None


def _flatten(p: BaseModel | Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str, str]]:
    """(dotted name, value, description) of each parameter. Raises TypeError for what is neither a model nor a mapping."""
    from pydantic import BaseModel

    if isinstance(p, BaseModel):
        items = [(name, getattr(p, name), field.description or "") for name, field in type(p).model_fields.items()]
    elif isinstance(p, Mapping):
        items = [(str(name), value, "") for name, value in p.items()]
    else:
        raise TypeError(f"parameters(p) takes a stage's parameters or a mapping, got {type(p).__name__}")
    for name, value, description in items:
        if isinstance(value, BaseModel | Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _parameter(value), description


def _parameter(value: Any) -> str:
    """A parameter exactly as one would write it: nothing rounded."""
    if isinstance(value, list | tuple):
        return ", ".join(_parameter(part) for part in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _glyph(entry: Verdict) -> dict[str, str] | None:
    """Where to draw zero, mean and interval in a picture 300 wide; None without an interval, or with zero too far to tell."""
    if entry["measured"] is None or entry["ci95"] is None:
        return None
    low, high = entry["ci95"]
    left, right = min(0.0, low), max(0.0, high)
    if right == left or (high - low) < 0.04 * (right - left):
        return None
    places = {"zero": 0.0, "low": low, "high": high, "mean": entry["measured"]}
    return {name: f"{8 + 284 * (value - left) / (right - left):.1f}" for name, value in places.items()}


def _arxiv(name: str) -> str | None:
    """`name` if it is an arXiv number that may go into a link."""
    return name if re.fullmatch(r"\d{4}\.\d{4,5}(v\d+)?", name) else None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a text that is not empty, got {value!r}")
    return value
