"""Reports: what is shown is escaped, nothing is loaded from elsewhere, and the same metrics give the same bytes."""

import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image
from pydantic import BaseModel, Field

from tasks.claims import Claim, mean_above, validate_claims_file, wilcoxon_greater
from tasks.paper import Paper
from tasks.report import COLOURS, FIGURE_LIMIT, Report, escape_markdown, markdown_table, style

EVIL = '<script>alert("x")</script>'


def paper(**changes):
    claims = (
        Claim("C1", "Better.", "+3.3", "points", ("A - B", "cora/accuracy"), mean_above(0)),
        Claim("C2", "Much better.", "+9", "points", ("A - B", "cora/accuracy"), mean_above(5)),
        Claim("C3", "On robots.", "shown", untestable="no robot here"),
    )
    fields = {"slug": "bes", "title": "A title", "authors": "J. Chen et al.", "arxiv": "2606.20283", "field": "graphs"}
    return Paper(**{**fields, "summary": "A summary.", "claims": claims, **changes})


def metrics():
    return {"A - B": {"cora/accuracy": {"mean": 1.5, "ci95": [0.5, 2.5], "n": 2, "values": [1.4, 1.6]}}}


def figure(points=50):
    from matplotlib import pyplot

    fig, axes = pyplot.subplots()
    axes.scatter(*np.random.default_rng(0).normal(size=(2, points)))
    return fig


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether its tags close in order."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.links, self.loaded, self.images, self.open, self.words = [], [], [], [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "link", "img", "br", "hr"):
            self.open.append(tag)
        if tag == "a":
            self.links.append(attrs["href"])
        elif tag == "img":
            self.images.append(attrs)
        self.loaded += [attrs[name] for name in ("src", "srcset", "poster", "data", "action") if name in attrs]
        if tag == "link":
            self.loaded.append(attrs["href"])
        assert not [name for name in attrs if name.startswith("on")]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


def full(out, **changes):
    out.mkdir(exist_ok=True)
    report = Report(paper(**changes), metrics(), out)
    report.section("What was found")
    report.text("Some **bold** words.\n\n- a list\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    report.figure(figure(), "dots", caption="Dots & more.", alt="A cloud of dots.")
    report.table(["method", "accuracy", "n"], [("A", 87.123, 3), ("B", None, 12)], caption="Accuracies.")
    report.parameters({"lr": 1e-4, "shape": {"kinds": ["cheb", "gcn"], "flag": True, "off": None}})
    report.write()
    return out


def test_a_report_is_whole_and_in_order(tmp_path):
    out = full(tmp_path / "out")
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()) == [
        "README.md",
        "claims.json",
        "figures/dots.png",
        "index.html",
    ]
    assert [entry["verdict"] for entry in validate_claims_file(out / "claims.json")] == [
        "holds",
        "fails",
        "not testable at this scale",
    ]
    page = Page((out / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    readme = (out / "README.md").read_text(encoding="utf-8")
    order = ["A title", "A summary.", "Each rule was fixed", "Some bold words", "Dots & more.", "Accuracies.", "shape.kinds"]
    order += ["Run what is not up to date", "paperflows run bes", "dvc repro flows/bes/dvc.yaml"]
    for text in (page.text, readme.replace("&amp;", "&").replace("**bold**", "bold")):
        places = [text.rfind(words) for words in order]  # the last place, since the title stands in the head too
        assert -1 not in places and places == sorted(places)
        assert "✓" in text and "✗" in text and "○" in text
        assert "1.50 [0.50, 2.50]" in text and "mean +1.50 is not above 5" in text and "no robot here" in text
        assert "87.12" in text and "0.0001" in text and "shape.kinds" in text and "cheb, gcn" in text
    assert "![A cloud of dots.](figures/dots.png)" in readme
    assert "| **C2** Much better. | +9 | 1.50 [0.50, 2.50] points | ✗ fails |" in readme
    assert page.images[0]["alt"] == "A cloud of dots."


def test_the_same_inputs_give_the_same_bytes_also_in_another_process(tmp_path):
    first, second = full(tmp_path / "a"), full(tmp_path / "b")
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import pathlib, test_report as t; "
    code += f"t.full(pathlib.Path({str(tmp_path / 'c')!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"})
    for path in (path for path in first.rglob("*") if path.is_file()):
        name = path.relative_to(first)
        assert path.read_bytes() == (second / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
        assert str(tmp_path).encode() not in path.read_bytes()


def test_the_page_loads_nothing_from_elsewhere(tmp_path):
    out = full(tmp_path / "out")
    source = (out / "index.html").read_text(encoding="utf-8")
    page = Page(source)
    assert page.loaded and all(address.startswith("data:") for address in page.loaded)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert not re.search(r"url\(|@import|@font-face", source)
    assert [link for link in page.links if "//" in link] == ["https://arxiv.org/abs/2606.20283"]
    assert "default-src 'none'" in source and "prefers-color-scheme: dark" in source and "width=device-width" in source
    anchors = [link[1:] for link in page.links if link.startswith("#")]
    assert anchors and all(f'id="{anchor}"' in source for anchor in anchors)


def test_every_field_is_escaped(tmp_path):
    claim = Claim(EVIL, EVIL, EVIL, EVIL, ("A - B", "cora/accuracy"), mean_above(0), explanation=EVIL)
    spared = Claim("C2", "s", "p", untestable=EVIL)
    evil = paper(title=EVIL, authors=EVIL, arxiv=EVIL, field=EVIL, summary=EVIL, claims=(claim, spared))
    report = Report(evil, metrics(), tmp_path)
    report.section(EVIL)
    report.text(f"In words {EVIL} and\n\n{EVIL}\n\n<img src=x onerror=alert(1)> [x](javascript:alert(1))")
    report.figure(figure(), "dots", caption=EVIL, alt=f'" onerror="{EVIL}')
    report.table([EVIL, "b"], [(EVIL, "x | y")], caption=EVIL)

    class Parameters(BaseModel):
        name: str = Field(EVIL, description=EVIL)

    report.parameters(Parameters(), label=EVIL)
    report.write()
    source = (tmp_path / "index.html").read_text(encoding="utf-8")
    page = Page(source)
    assert "<script" not in source and "script" not in page.tags
    assert len(page.images) == 1 and page.images[0]["src"].startswith("data:image/png;base64,")
    assert not [link for link in page.links if not link.startswith("#") and link not in ("metrics.json", "claims.json")]
    assert page.text.count(EVIL) >= 16
    # The Markdown, read by a renderer that obeys HTML, has no tag of theirs either.
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(readme)
    assert "<script" not in rendered and "<img src=x" not in rendered and 'href="javascript' not in rendered
    assert rendered.count("&lt;script&gt;") >= 14


@given(st.text(max_size=40))
def test_escaped_markdown_shows_the_text_itself(text):
    text = "".join(letter for letter in text if letter.isprintable())
    cell = f"x {text} y"
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown_table(["c"], [[escape_markdown(cell)]]))
    page = Page(rendered)
    assert page.tags == ["table", "thead", "tr", "th", "tbody", "tr", "td"]
    shown = re.search(r"<td>(.*)</td>", rendered, re.S)[1]
    assert " ".join(Page(shown).text.split()) == " ".join(cell.split())


@pytest.mark.parametrize("text", ["# not a heading", "- not a list", "1. not a list", "> not a quote", "+ x", "a # b", "#5"])
def test_escaped_markdown_is_a_paragraph(text):
    rendered = MarkdownIt().render(escape_markdown(text))
    assert Page(rendered).tags == ["p"] and Page(rendered).text.strip() == text


def test_comparisons_and_code_survive_in_text(tmp_path):
    report = Report(paper(), metrics(), tmp_path)
    report.text("where a < b and `x<y>` and <b>tag</b>")
    report.write()
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "where a < b and `x<y>` and &lt;b>tag&lt;/b>" in readme
    assert "where a &lt; b and <code>x&lt;y&gt;</code> and &lt;b&gt;tag&lt;/b&gt;" in (tmp_path / "index.html").read_text()


def test_a_figure_fits_the_limit_and_carries_no_metadata(tmp_path):
    report = Report(paper(), metrics(), tmp_path)
    noise = figure()
    noise.set_size_inches(3, 2)
    noise.figimage(np.random.default_rng(1).random((400, 600, 3)), resize=False)
    report.figure(noise, "noise", caption="Noise.", alt="Noise.")
    report.figure(figure(), "dots", caption="Dots.", alt="Dots.")
    report.write()
    for name in ("noise", "dots"):
        content = (tmp_path / "figures" / f"{name}.png").read_bytes()
        assert len(content) <= FIGURE_LIMIT
        with Image.open(io.BytesIO(content)) as image:
            assert "Software" not in image.info and not {"Creation Time", "Author"} & set(image.info)
            # a light figure gets the best resolution, a heavy one less
            assert image.info["dpi"][0] == pytest.approx({"dots": 200, "noise": 100}[name], abs=0.1)


def test_a_figure_over_the_limit_is_refused(tmp_path):
    from matplotlib import pyplot

    fig = pyplot.figure(figsize=(6, 6))
    fig.figimage(np.random.default_rng(0).random((432, 432, 3)))
    report = Report(paper(), metrics(), tmp_path)
    with pytest.raises(ValueError, match=r"figure 'huge' takes \d+ KB at 72 dpi, the limit is 300 KB: draw fewer points"):
        report.figure(fig, "huge", caption="Noise.", alt="Noise.")
    pyplot.close(fig)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda r: r.section(" "), ValueError, "section"),
        (lambda r: r.text(""), ValueError, "text"),
        (lambda r: r.text("see ![plot](https://example.org/x.png)"), ValueError, "add it with figure"),
        (lambda r: r.text("| a |\n|---|\n| ![p](x.png) |"), ValueError, "add it with figure"),
        (lambda r: r.figure(figure(), "../x", caption="c", alt="a"), ValueError, "figure name"),
        (lambda r: r.figure(figure(), "x", caption="", alt="a"), ValueError, "caption"),
        (lambda r: r.figure(figure(), "x", caption="c", alt=""), ValueError, "alt"),
        (lambda r: r.figure(figure(), "taken", caption="c", alt="a"), ValueError, "already in the report"),
        (lambda r: r.table([], []), ValueError, "at least one column"),
        (lambda r: r.table(["a", "b"], [(1,)], caption="t"), ValueError, "row 0 has 1 cells for 2 columns"),
        (lambda r: r.table(["a"], [(float("nan"),)]), ValueError, "finite"),
        (lambda r: r.parameters(3), TypeError, "takes a stage's parameters"),
    ],
)
def test_wrong_calls_say_what_would_be_right(tmp_path, call, error, words):
    report = Report(paper(), metrics(), tmp_path)
    report.figure(figure(), "taken", caption="c", alt="a")
    with pytest.raises(error, match=words):
        call(report)
    matplotlib.pyplot.close("all")


def test_a_missing_metric_stops_the_report_at_once(tmp_path):
    with pytest.raises(ValueError, match="claim 'C1' measures the method 'A - B'"):
        Report(paper(), {}, tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        Report(paper(), metrics(), tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_parameters_show_descriptions_and_exact_values(tmp_path):
    class Shape(BaseModel):
        lr: float = Field(1.25e-7, description="learning rate of Adam")

    class Parameters(BaseModel):
        nodes: int = Field(2708, description="nodes of the graph")
        shape: Shape = Shape()

    report = Report(paper(), metrics(), tmp_path)
    report.parameters(Parameters(), label="train")
    report.write()
    readme = (tmp_path / "README.md").read_text()
    assert "| nodes | 2708 | nodes of the graph |" in readme
    assert "| shape.lr | 1.25e-07 | learning rate of Adam |" in readme


def test_sections_of_one_title_have_their_own_anchors(tmp_path):
    report = Report(paper(), metrics(), tmp_path)
    for title in ("Claims", "Results", "Results", "???"):
        report.section(title)
    report.write()
    anchors = re.findall(r'<h2 id="([^"]+)"', (tmp_path / "index.html").read_text())
    assert len(anchors) == len(set(anchors)) == 6
    assert "claims-2" in anchors  # the page's own heading keeps its name


def test_verdicts_of_a_report_are_the_file(tmp_path):
    report = Report(
        paper(claims=(Claim("C", "s", "p", "", ("A - B", "cora/accuracy"), wilcoxon_greater(0.01)),)), metrics(), tmp_path
    )
    report.write()
    text = (tmp_path / "claims.json").read_text(encoding="utf-8")
    assert json.loads(text) == report.verdicts and text == json.dumps(report.verdicts, indent=2, sort_keys=True) + "\n"
    assert (tmp_path / "figures").is_dir()  # the runner expects the folder, figures or not


def test_style_can_be_put_back():
    with matplotlib.rc_context():
        before = matplotlib.rcParams["axes.grid"], matplotlib.rcParams["font.size"]
        with style():
            assert matplotlib.rcParams["axes.grid"] is True
            assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(COLOURS.values())
        assert (matplotlib.rcParams["axes.grid"], matplotlib.rcParams["font.size"]) == before
        style()
        assert matplotlib.rcParams["axes.grid"] is True


def _contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_verdicts_and_text_are_readable_in_both_modes(mode):
    from tasks.report_templates import STYLE

    palettes = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", palettes[mode == "dark"]))
    pairs = [("ink", "page"), ("ink", "card"), ("soft", "page"), ("soft", "card"), ("link", "page")]
    for text, ground in [*pairs, ("holds", "holds-fill"), ("fails", "fails-fill"), ("open", "open-fill")]:
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_an_interval_for_a_reader():
    from tasks.report import interval, plus_minus

    cell = {"mean": 0.9512, "ci95": [0.3, 1.6024], "n": 5, "values": [0.9512] * 5}
    assert interval(cell) == "0.95 [0.30, 1.60]"
    assert interval(cell, 3, signed=True) == "+0.951 [0.300, 1.602]"
    assert interval(cell | {"ci95": None}, 1) == "1.0"
    assert interval(None) == "–"
    assert plus_minus(cell, 2) == "0.95 ± 0.65"
    assert plus_minus(cell | {"ci95": None}, 1) == "1.0"
    assert plus_minus(None, 2) == "–"
