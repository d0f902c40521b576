"""The pages' templates and their style sheet, for `tasks.report` and `tasks.ledger`.

They stand in a module rather than in data files so that DVC, which follows a stage's imports, sees it when a page's looks change.
Every value is escaped by jinja2's autoescape; only text that `markdown-it` rendered with HTML disabled is marked as safe.
"""

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #1c1f23; --soft: #565e68; --line: #dfe2e6; --fill: #f2f3f5;
  --link: #005a8f; --holds: #005f99; --holds-fill: #e3f0f9; --fails: #a83d00; --fails-fill: #fcebe1; --open: #565e68; --open-fill: #eceef0; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1b1f23; --ink: #e5e8eb; --soft: #a3acb6; --line: #343a41;
  --fill: #22272c; --link: #7cc4f5; --holds: #7cc4f5; --holds-fill: #12324a; --fails: #ffa873; --fails-fill: #48260f; --open: #b4bcc5;
  --open-fill: #2c3238; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 1.05rem/1.62 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 3rem 1.4rem 4rem; }
a { color: var(--link); text-underline-offset: .15em; }
h1 { font-size: clamp(1.65rem, 4.4vw, 2.4rem); line-height: 1.18; letter-spacing: -.018em; margin: .35rem 0 .7rem; text-wrap: balance; }
h2 { font-size: 1.42rem; line-height: 1.25; letter-spacing: -.01em; margin: 3.2rem 0 .9rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, ul, ol, blockquote { max-width: 42rem; margin: 0 0 1rem; }
blockquote { border-left: 3px solid var(--line); padding-left: 1rem; color: var(--soft); }
.eyebrow { color: var(--soft); font-size: .9rem; margin: 0; }
.authors { color: var(--soft); margin: 0 0 1.3rem; }
.lead { font-size: 1.13rem; }
.counts { display: flex; flex-wrap: wrap; gap: .5rem; margin: 0 0 1.4rem; padding: 0; list-style: none; max-width: none; }
.verdict { display: inline-flex; align-items: baseline; gap: .38em; border-radius: 1em; padding: .1em .72em .14em; font-size: .9rem; font-weight: 600;
  line-height: 1.5; white-space: nowrap; }
.holds { color: var(--holds); background: var(--holds-fill); } .fails { color: var(--fails); background: var(--fails-fill); }
.open { color: var(--open); background: var(--open-fill); }
.bar { display: flex; gap: 3px; height: .7rem; margin: 0 0 1rem; max-width: 42rem; }
.bar span { border-radius: 2px; background: currentColor; min-width: 3px; }
nav { font-size: .93rem; color: var(--soft); margin: 1.6rem 0 0; } nav a { margin-right: 1.1rem; display: inline-block; }
.claims { list-style: none; margin: 1.2rem 0 0; padding: 0; max-width: none; display: grid; gap: 1rem; }
.claim { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--edge); border-radius: 8px; padding: 1rem 1.2rem 1.05rem;
  overflow-wrap: anywhere; }
.claim.is-holds { --edge: var(--holds); } .claim.is-fails { --edge: var(--fails); } .claim.is-open { --edge: var(--open); }
.claim header { display: flex; justify-content: space-between; gap: .4rem 1.2rem; align-items: baseline; margin-bottom: .8rem; }
.claim .id { color: var(--soft); font-variant-numeric: tabular-nums; margin-right: .3em; }
.claim .statement { margin: 0; font-size: 1.08rem; font-weight: 600; line-height: 1.4; }
.claim dl { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .8rem 1.6rem; margin: 0; font-size: .95rem; }
.claim dt { color: var(--soft); font-size: .82rem; } .claim dd { margin: 0; } .claim dd + dt { margin-top: .6rem; } .claim .why::first-letter { text-transform: uppercase; } .claim .wide { grid-column: 1 / -1; }
.claim .value { font-size: 1.12rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.interval { display: block; width: 100%; max-width: 19rem; height: 1.9rem; margin-top: .25rem; overflow: visible; }
.interval .zero { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; } .interval .whisker { stroke: var(--edge); stroke-width: 2; }
.interval circle { fill: var(--edge); } .interval text { fill: var(--soft); font-size: 10px; text-anchor: middle; }
figure { margin: 1.7rem 0 2rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--soft); font-size: .93rem; line-height: 1.5; text-align: left; }
figcaption { margin-top: .6rem; max-width: 46rem; } figcaption b { color: var(--ink); }
.tabular figcaption { margin: 0 0 .55rem; } .tabular .scroll { margin: 0; } .dense { font-size: .84rem; } .dense th, .dense td { padding-right: .7rem; }
.scroll { overflow-x: auto; margin: 1.4rem 0 1.9rem; }
table { border-collapse: collapse; font-size: .94rem; line-height: 1.45; min-width: min(100%, 24rem); }
th, td { padding: .42rem .95rem .42rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; border-bottom: 1.5px solid var(--soft); } tbody th { border-bottom: 1px solid var(--line); font-weight: 500; }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } td:last-child, th:last-child { padding-right: 0; }
code { font: .9em ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; background: var(--fill); border-radius: 4px; padding: .1em .3em; overflow-wrap: anywhere; }
pre { background: var(--fill); border: 1px solid var(--line); border-radius: 8px; padding: .85rem 1.1rem; overflow-x: auto; max-width: 42rem; line-height: 1.5; }
pre code { background: none; padding: 0; overflow-wrap: normal; }
footer { margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft); font-size: .9rem; }
.ledger { width: 100%; table-layout: fixed; } .ledger td { overflow-wrap: break-word; } .ledger .verdict { font-size: .85rem; white-space: normal; }
.ledger .wide { width: 36%; } .ledger .narrow { width: 20%; } .ledger .value { font-variant-numeric: tabular-nums; white-space: nowrap; }
.ledger .paper { font-size: 1rem; font-weight: 600; padding-top: 1.3rem; line-height: 1.35; } .ledger .paper small { font-weight: 400; color: var(--soft); }
@media (max-width: 40rem) {
  main { padding: 1.6rem 1rem 3rem; } body { font-size: 1rem; } .claim { padding: .85rem .95rem; } .claim dl { grid-template-columns: minmax(0, 1fr); }
  .claim header { flex-direction: column-reverse; }
  .ledger thead { display: none; } .ledger, .ledger tbody, .ledger tr, .ledger td, .ledger th { display: block; border: 0; padding: 0; min-width: 0; }
  .ledger tr { border-bottom: 1px solid var(--line); padding: .7rem 0; } .ledger td::before { content: attr(data-label) " "; color: var(--soft); font-size: .82rem; }
  .ledger td.statement::before, .ledger td.outcome::before { content: none; } .ledger td { margin-bottom: .25rem; }
}
@media print { main { max-width: none; padding: 0; } nav { display: none; } .claim, figure { break-inside: avoid; } }
"""

BASE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{% block title %}{% endblock %}</title>
<link rel="icon" href="data:,">
<style>{{ style }}</style>
</head>
<body>
<main>
{% block main %}{% endblock %}
</main>
</body>
</html>
"""

MACROS = """{% macro badge(verdict, count=None) -%}
<span class="verdict {{ verdict | css }}"><span aria-hidden="true">{{ verdict | symbol }}</span>{% if count is not none %}{{ count }} {% endif %}{{ verdict }}</span>
{%- endmacro %}
{% macro counts(numbers) -%}
<ul class="counts" aria-label="verdicts">
{% for verdict, count in numbers if count %}<li>{{ badge(verdict, count) }}</li>
{% endfor %}</ul>
{%- endmacro %}
"""

REPORT = """{% extends "base" %}
{% from "macros" import badge, counts with context %}
{% block title %}{{ paper.title }}{% endblock %}
{% block main %}
<header>
<p class="eyebrow">{{ paper.field }} · ICML 2026{% if arxiv %} · <a href="https://arxiv.org/abs/{{ arxiv }}" rel="noreferrer">arXiv {{ arxiv }}</a>{% elif paper.arxiv %} · {{ paper.arxiv }}{% endif %}</p>
<h1>{{ paper.title }}</h1>
{% if paper.authors %}<p class="authors">{{ paper.authors }}</p>
{% endif %}
{{ counts(numbers) }}
<p class="lead">{{ paper.summary }}</p>
<nav aria-label="contents">{% for anchor, title in contents %}<a href="#{{ anchor }}">{{ title }}</a> {% endfor %}</nav>
</header>
<section aria-labelledby="claims">
<h2 id="claims">Claims and verdicts</h2>
<p>Each rule was fixed before anything was measured. Intervals are at 95%.</p>
<ul class="claims">
{% for entry, glyph in claims %}
<li class="claim is-{{ entry.verdict | css }}">
<header><p class="statement"><span class="id">{{ entry.id }}</span> {{ entry.statement }}</p>{{ badge(entry.verdict) }}</header>
<dl>
<div><dt>The paper reports</dt><dd>{{ entry.paper }}</dd>{% if entry.rule %}<dt>It holds if</dt><dd>{{ entry.rule }}</dd>{% endif %}</div>
<div><dt>We measured</dt><dd><span class="value">{{ entry | measured_value }}</span>{% if entry.measured is not none %} {{ entry.unit }}{% endif %}

{% if glyph %}<svg class="interval" viewBox="0 0 300 30" aria-hidden="true" focusable="false"><line class="zero" x1="{{ glyph.zero }}" x2="{{ glyph.zero }}" y1="0" y2="18"/><text x="{{ glyph.zero }}" y="29">0</text><line class="whisker" x1="{{ glyph.low }}" x2="{{ glyph.high }}" y1="9" y2="9"/><line class="whisker" x1="{{ glyph.low }}" x2="{{ glyph.low }}" y1="5" y2="13"/><line class="whisker" x1="{{ glyph.high }}" x2="{{ glyph.high }}" y1="5" y2="13"/><circle cx="{{ glyph.mean }}" cy="9" r="4.5"/></svg>
{% endif %}</dd></div>
<div class="wide"><dt>Why</dt><dd class="why">{{ entry.reason }}</dd></div>
</dl>
</li>
{% endfor %}
</ul>
</section>
{% for block in blocks %}
{% if block.kind == "section" %}
<h2 id="{{ block.anchor }}">{{ block.title }}</h2>
{% elif block.kind == "text" %}
{{ block.html }}
{% elif block.kind == "figure" %}
<figure><img src="data:image/png;base64,{{ block.base64 }}" width="{{ block.width }}" height="{{ block.height }}" alt="{{ block.alt }}"><figcaption><b>Figure {{ block.number }}.</b> {{ block.caption }}</figcaption></figure>
{% elif block.kind == "table" %}
<figure class="tabular">{% if block.caption %}<figcaption>{% if block.number %}<b>Table {{ block.number }}.</b> {% endif %}{{ block.caption }}</figcaption>{% endif %}

<div class="scroll" tabindex="0"><table{% if block.columns | length > 6 %} class="dense"{% endif %}>
<thead><tr>{% for column in block.columns %}<th scope="col"{% if block.numeric[loop.index0] %} class="num"{% endif %}>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in block.rows %}<tr>{% for value in row %}<td{% if block.numeric[loop.index0] %} class="num"{% endif %}>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></figure>
{% endif %}
{% endfor %}
<h2 id="reproduce">Reproduce</h2>
<p>Run what is not up to date, and write this page again:</p>
<pre><code>paperflows run {{ paper.slug }}</code></pre>
<p>Reproduce the committed numbers, through DVC alone:</p>
<pre><code>dvc repro flows/{{ paper.slug }}/dvc.yaml</code></pre>
<p>Every measured value is in <a href="metrics.json">metrics.json</a>, every verdict in <a href="claims.json">claims.json</a>, beside this page. The same inputs give the same bytes.</p>
<footer>Paperflows: the claims of ICML 2026 papers, measured again.</footer>
{% endblock %}
"""

LEDGER = """{% extends "base" %}
{% from "macros" import badge, counts with context %}
{% block title %}Ledger of claims{% endblock %}
{% block main %}
<header>
<p class="eyebrow">Paperflows · ICML 2026</p>
<h1>Ledger of claims</h1>
<p class="lead">{{ summary }}</p>
{{ counts(numbers) }}
<div class="bar" aria-hidden="true">{% for verdict, count in numbers if count %}<span class="{{ verdict | css }}" style="flex: {{ count }}; background: var(--{{ verdict | css }})"></span>{% endfor %}</div>
<p>A claim holds or fails by a rule that was fixed before anything was measured; intervals are at 95%. A failed claim means that it did not show at this scale under that rule: each report says why.</p>
<nav aria-label="fields">{% for field in fields %}<a href="#{{ field.anchor }}">{{ field.name }}</a> {% endfor %}</nav>
</header>
{% for field in fields %}
<h2 id="{{ field.anchor }}">{{ field.name }}</h2>
<div class="scroll" tabindex="0"><table class="ledger">
<thead><tr><th scope="col" class="wide">claim</th><th scope="col">the paper</th><th scope="col">measured</th><th scope="col" class="narrow">verdict</th></tr></thead>
<tbody>
{% for paper in field.papers %}
<tr><th scope="rowgroup" class="paper" colspan="4"><a href="{{ paper.slug }}/index.html">{{ paper.title }}</a> <small>{{ paper.authors }}</small></th></tr>
{% for entry in paper.claims %}<tr><td class="statement"><b>{{ entry.id }}</b> {{ entry.statement }}</td><td data-label="the paper:">{{ entry.paper }}</td><td data-label="measured:"><span class="value">{{ entry | measured_value }}</span>{% if entry.measured is not none %} {{ entry.unit }}{% endif %}</td><td class="outcome">{{ badge(entry.verdict) }}</td></tr>
{% endfor %}
{% endfor %}
</tbody></table></div>
{% endfor %}
{% if waiting %}
<h2 id="waiting">Not run yet</h2>
<ul>{% for paper in waiting %}<li>{{ paper.title }}: <code>paperflows run {{ paper.slug }}</code></li>
{% endfor %}</ul>
{% endif %}
<footer>Written by <code>paperflows ledger</code> from every paper's claims.json.</footer>
{% endblock %}
"""
