"""What a paper claims, the rule that settles each claim, and the verdict: `holds`, `fails` or `not testable at this scale`.

A rule is written in the paper's package before anything is measured, and sees one cell of the metrics and nothing else. So a
verdict can be recomputed by anyone who has `metrics.json`.

Imported by every `flows/<slug>/__init__.py` on the command line's path, so this module needs the standard library alone;
numpy and scipy are imported by the one rule that needs them, when it decides.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from tasks.errors import UserError

HOLDS = "holds"
FAILS = "fails"
NOT_TESTABLE = "not testable at this scale"
VERDICTS = (HOLDS, FAILS, NOT_TESTABLE)


class Cell(NamedTuple):
    """Where a number stands in the metrics. A plain pair `("BES - GCN", "cora/accuracy")` does as well."""

    method: str
    metric: str

    def __str__(self) -> str:
        return f"{self.method}, {self.metric}"


class Summary(TypedDict):
    """One measured quantity: what `components.stats.summarise` returns. `ci95` is None where n is 1."""

    mean: float
    ci95: list[float] | None
    n: int
    values: list[float]


Metrics = Mapping[str, Mapping[str, Summary]]


class Verdict(TypedDict):
    """One entry of `claims.json`."""

    id: str
    statement: str
    paper: str
    measured: float | None
    ci95: list[float] | None
    unit: str
    rule: str | None
    verdict: str
    reason: str


class Outcome(NamedTuple):
    """What a rule makes of a cell: `holds` is None where the cell cannot settle it; `reason` is a phrase with the numbers."""

    holds: bool | None
    reason: str


@dataclass(frozen=True)
class Rule:
    """A condition on one cell of the metrics, fixed before the run.

    Args:
        text: the condition as a sentence, for the report.
        judgement: takes the cell, returns an `Outcome`; must depend on nothing else.
        needs_interval: whether a cell without an interval (n = 1) leaves the question open.
    """

    text: str
    judgement: Callable[[Summary], Outcome] = field(repr=False)
    needs_interval: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(f"Rule.text must be a sentence that states the rule, got {self.text!r}")
        if not callable(self.judgement):
            raise TypeError(f"Rule.judgement must be a function of one cell, got {self.judgement!r}")

    def judge(self, cell: Summary) -> Outcome:
        """The rule's outcome for `cell`, with the reason. Raises ValueError or TypeError for a cell that is no `Summary`."""
        cell = _checked(cell, "the cell")
        if self.needs_interval and cell["ci95"] is None:
            return Outcome(None, f"n = {cell['n']}")
        return self.judgement(cell)

    def decide(self, cell: Summary) -> bool:
        """Whether the rule is met. Raises ValueError where `cell` cannot settle it (too few values) or is not a `Summary`."""
        outcome = self.judge(cell)
        if outcome.holds is None:
            raise ValueError(f"the rule '{self.text}' cannot be decided: {outcome.reason}")
        return outcome.holds


def mean_above(x: float) -> Rule:
    """The mean is greater than `x`. Raises ValueError if `x` is not a finite number."""
    x = _finite(x, "mean_above(x): x")
    return Rule(f"mean > {x:g}", lambda cell: _above("mean", cell["mean"], x, f"{x:g}"))


def lower_bound_above(x: float) -> Rule:
    """The lower end of the 95% interval is greater than `x`. Raises ValueError if `x` is not a finite number."""
    x = _finite(x, "lower_bound_above(x): x")
    text = f"lower end of the 95% interval > {x:g}"
    return Rule(text, lambda cell: _above("lower bound", cell["ci95"][0], x, f"{x:g}"), needs_interval=True)


def mean_below(x: float) -> Rule:
    """The mean is less than `x`. Raises ValueError if `x` is not a finite number."""
    x = _finite(x, "mean_below(x): x")
    return Rule(f"mean < {x:g}", lambda cell: _below("mean", cell["mean"], x))


def upper_bound_below(x: float) -> Rule:
    """The upper end of the 95% interval is less than `x`. Raises ValueError if `x` is not a finite number."""
    x = _finite(x, "upper_bound_below(x): x")
    text = f"upper end of the 95% interval < {x:g}"
    return Rule(text, lambda cell: _below("upper bound", cell["ci95"][1], x), needs_interval=True)


def mean_within(low: float, high: float) -> Rule:
    """`low` <= mean <= `high`; one of the two may be infinite: at most, at least.

    Raises ValueError for a bound that is not a number, for low > high and where neither bound is finite."""
    low, high = _range(low, high, "mean_within(low, high)")
    return Rule(f"mean {_range_text(low, high)}", lambda cell: _within("mean", [cell["mean"]], low, high))


def every_value_within(low: float, high: float) -> Rule:
    """Each single value lies in [`low`, `high`]; one of the two may be infinite.

    Raises ValueError for a bound that is not a number, for low > high and where neither bound is finite."""
    low, high = _range(low, high, "every_value_within(low, high)")
    return Rule(f"every value {_range_text(low, high)}", lambda cell: _within("value", cell["values"], low, high))


def mean_above_minus_standard_errors(k: float) -> Rule:
    """The mean of a difference is greater than minus `k` of its standard errors: 'best, or within them of the best'.

    Raises ValueError if `k` is not finite or is negative.
    """
    k = _finite(k, "mean_above_minus_standard_errors(k): k")
    if k < 0:
        raise ValueError(f"mean_above_minus_standard_errors(k): k must be 0 or more, got {k:g}")

    def judgement(cell: Summary) -> Outcome:
        values, n = cell["values"], cell["n"]
        centre = math.fsum(values) / n
        error = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (n - 1) / n)
        holds, reason = _above("mean", cell["mean"], -k * error, number(-k * error))
        return Outcome(holds, f"{reason} (minus {k:g} x the standard error {number(error)})")

    return Rule(f"mean > -{k:g} standard error{'' if k == 1 else 's'}", judgement, needs_interval=True)


def wilcoxon_greater(p: float) -> Rule:
    """The one-sided Wilcoxon signed-rank test on the values finds them greater than 0 with a p-value below `p`.

    n values give no p-value below 2^-n, so where 2^-n >= `p` the rule could not be met by any measurement: not testable.
    Raises ValueError unless 0 < p < 1.
    """
    p = _finite(p, "wilcoxon_greater(p): p")
    if not 0 < p < 1:
        raise ValueError(f"wilcoxon_greater(p): p must lie between 0 and 1, got {p:g}")

    def judgement(cell: Summary) -> Outcome:
        smallest = 2.0 ** -cell["n"]
        if smallest >= p:
            return Outcome(None, f"n = {cell['n']}: a signed-rank test cannot reach p < {p:g}, its smallest p is {smallest:g}")
        from components.stats import wilcoxon_greater as p_value  # scipy takes most of a second to import

        found = float(p_value(cell["values"]))
        shown = f"{found:.3g}" if (float(f"{found:.3g}") < p) == (found < p) else repr(found)
        return Outcome(found < p, f"Wilcoxon one-sided p = {shown} is {'' if found < p else 'not '}below {p:g}")

    return Rule(f"Wilcoxon signed-rank test, one-sided: p < {p:g}", judgement, needs_interval=True)


def all_of(*rules: Rule) -> Rule:
    """Every one of `rules` is met. One that is not met settles it, even where another is open.

    A cell without an interval leaves the whole open as soon as one of the rules needs an interval: the mean of one run is no
    evidence against a claim. Raises ValueError without rules, TypeError for an argument that is not a `Rule`.
    """
    if not rules:
        raise ValueError("all_of(*rules) needs at least one rule")
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"all_of(*rules) takes rules, got {rule!r}")
    text = " and ".join(rule.text for rule in rules)
    return Rule(text, lambda cell: _joined([rule.judge(cell) for rule in rules]), any(rule.needs_interval for rule in rules))


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, and how it is settled. Written before the numbers are known.

    Args:
        id: a short name, unique in the paper: "C1".
        statement: the claim in our words.
        paper: the paper's own figure, as text.
        unit: the unit of the measured quantity.
        quantity: the cell of the metrics that measures it, or a tuple of cells: the first is the one reported. None only for
            an untestable claim.
        rule: what has to be true of each cell, or a tuple with one rule per cell. None only for an untestable claim.
        settled_by: whether "all" cells have to meet their rule, or "any" one of them.
        untestable: the reason why this scale cannot test the claim, whatever is measured.
        explanation: why we think the verdict is what it is; written after looking into it, added to the computed reason.

    Raises ValueError or TypeError, naming the claim and the field, for anything else.
    """

    id: str
    statement: str
    paper: str
    unit: str = ""
    quantity: tuple[str, str] | tuple[tuple[str, str], ...] | None = None
    rule: Rule | tuple[Rule, ...] | None = None
    settled_by: Literal["all", "any"] = "all"
    untestable: str | None = None
    explanation: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "statement", "paper"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"claim {self.id!r}: {name} must be a text that is not empty, got {value!r}")
        if not isinstance(self.unit, str):
            raise TypeError(f"claim {self.id!r}: unit must be a text (empty for a pure number), got {self.unit!r}")
        for name in ("untestable", "explanation"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValueError(f"claim {self.id!r}: {name} must be None or a text that is not empty, got {value!r}")
        for rule in self.rule if isinstance(self.rule, tuple) else (self.rule,):
            if not isinstance(rule, Rule) and (rule is not None or isinstance(self.rule, tuple)):
                raise TypeError(f"claim {self.id!r}: rule must be a Rule such as mean_above(0), got {rule!r}")
        if self.settled_by not in ("all", "any"):
            raise ValueError(f"claim {self.id!r}: settled_by must be 'all' or 'any', got {self.settled_by!r}")
        cells = self.cells
        if isinstance(self.rule, tuple) and len(self.rule) != len(cells):
            raise ValueError(
                f"claim {self.id!r}: {len(self.rule)} rules for {len(cells)} cells; give one for each, or one for all"
            )
        if self.untestable is None and (self.rule is None or not cells):
            raise ValueError(f"claim {self.id!r} needs a quantity and a rule, or `untestable` with the reason why it has none")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that the rule applies to, the reported one first; none for an untestable claim that measures nothing."""
        quantity = self.quantity
        if quantity is None:
            return ()
        pairs = (quantity,) if _is_pair(quantity) else quantity
        if not isinstance(pairs, tuple) or not pairs or not all(_is_pair(pair) for pair in pairs):
            raise ValueError(f"claim {self.id!r}: quantity must be (method, metric) or a tuple of such pairs, got {quantity!r}")
        return tuple(Cell(*pair) for pair in pairs)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of each cell."""
        return self.rule if isinstance(self.rule, tuple) else (self.rule,) * len(self.cells)

    @property
    def rule_text(self) -> str | None:
        """The condition as a sentence; with different rules or a choice, each beside its cell."""
        if self.rule is None:
            return None
        if isinstance(self.rule, Rule) and self.settled_by == "all":
            return self.rule.text
        parts = (f"{cell}: {rule.text}" for cell, rule in zip(self.cells, self.rules, strict=True))
        return ("; or " if self.settled_by == "any" else "; ").join(parts)


def verdict(claim: Claim, metrics: Metrics) -> Verdict:
    """Measure `claim` in `metrics`, apply its rule, and return its entry of `claims.json`.

    Raises ValueError, naming the claim and the cell, where a cell is missing from the metrics (unless the claim is untestable)
    or is not a summary with finite numbers; TypeError where it is no summary at all.
    """
    found: list[tuple[Cell, Summary]] = []
    for cell in claim.cells:
        summary = metrics.get(cell.method, {}).get(cell.metric)
        if summary is not None:
            found.append((cell, _checked(summary, f"claim {claim.id!r}: metrics[{cell.method!r}][{cell.metric!r}]")))
        elif claim.untestable is None:
            raise ValueError(_missing(claim, cell, metrics))
    if claim.untestable is not None:
        outcome = Outcome(None, claim.untestable.strip())
        found = [pair for pair in found if pair[0] == claim.cells[0]]
    elif len(found) == 1:
        outcome = claim.rules[0].judge(found[0][1])
    else:
        outcomes = ((cell, rule.judge(summary)) for (cell, summary), rule in zip(found, claim.rules, strict=True))
        outcome = _joined([Outcome(o.holds, f"{cell}: {o.reason}") for cell, o in outcomes], claim.settled_by)
    reason = outcome.reason if claim.explanation is None else f"{_sentence(outcome.reason)} {claim.explanation.strip()}"
    reported = found[0][1] if found else None
    return {
        "id": claim.id,
        "statement": claim.statement,
        "paper": claim.paper,
        "measured": reported["mean"] if reported else None,
        "ci95": list(reported["ci95"]) if reported and reported["ci95"] is not None else None,
        "unit": claim.unit,
        "rule": claim.rule_text,
        "verdict": {True: HOLDS, False: FAILS, None: NOT_TESTABLE}[outcome.holds],
        "reason": reason,
    }


def verdicts(claims: Iterable[Claim], metrics: Metrics) -> list[Verdict]:
    """The verdict of each claim, in order. Raises ValueError where two claims share an id, and what `verdict` raises."""
    found = [verdict(claim, metrics) for claim in claims]
    return _unique_ids(found, "the paper's claims")


def validate_claims_file(path: Path) -> list[Verdict]:
    """Read a `claims.json` and return its entries, checked.

    Raises UserError with one sentence that names the file, the entry and the key, where the file is missing, is not JSON, or
    does not follow the schema.
    """
    path = Path(path)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; the report stage of the paper writes it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(entries, list):
        raise UserError(f"{path} must hold a list of claims, found {type(entries).__name__}")
    for position, entry in enumerate(entries):
        problem = _problem(entry)
        if problem:
            raise UserError(f"{path}: entry {position}: {problem}")
    try:
        return _unique_ids(entries, str(path))
    except ValueError as error:
        raise UserError(str(error)) from None


def number(x: float, *, signed: bool = False) -> str:
    """A measured number for a reader: two decimals, more where it is small, none where it is large.

    Raises ValueError if it is not finite.
    """
    x = _finite(x, "number(x): x")
    sign = "+" if signed else ""
    if x == 0:
        return "0"
    if abs(x) >= 1000:
        return f"{x:{sign},.0f}"
    return f"{x:{sign}.2f}" if abs(x) >= 0.095 else f"{x:{sign}.3g}"


def measured_value(entry: Verdict) -> str:
    """The measured quantity of an entry of `claims.json` with its interval, or a dash where nothing was measured.

    All three numbers have the same decimals, enough to tell the ends of the interval apart; where all are below a thousandth
    they are written with exponents.
    """
    if entry["measured"] is None:
        return "–"
    if entry["ci95"] is None:
        return number(entry["measured"])
    low, high = entry["ci95"]
    if 0 < max(abs(low), abs(entry["measured"]), abs(high)) < 1e-3:
        return f"{entry['measured']:.1e} [{low:.1e}, {high:.1e}]"
    width = high - low or abs(entry["measured"]) or 1.0
    decimals = 0 if width >= 1000 else min(12, max(2, 2 - math.ceil(math.log10(width))))
    mean, low, high = (f"{x:,.{decimals}f}" for x in (entry["measured"], low, high))
    return f"{mean} [{low}, {high}]"


def measured_text(entry: Verdict) -> str:
    """`measured_value` with the unit."""
    return measured_value(entry) if entry["measured"] is None else f"{measured_value(entry)} {entry['unit']}".rstrip()


_SCHEMA = {
    "id": (str,),
    "statement": (str,),
    "paper": (str,),
    "measured": (int, float, type(None)),
    "ci95": (list, type(None)),
    "unit": (str,),
    "rule": (str, type(None)),
    "verdict": (str,),
    "reason": (str,),
}


def _problem(entry: object) -> str | None:
    """What is wrong with an entry of `claims.json`, as a phrase; None if nothing is."""
    if not isinstance(entry, dict):
        return f"must be an object, found {type(entry).__name__}"
    for key, types in _SCHEMA.items():
        if key not in entry:
            return f"key {key!r} is missing"
        if not isinstance(entry[key], types) or isinstance(entry[key], bool):
            wanted = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            return f"key {key!r} must be {wanted}, found {entry[key]!r}"
    unknown = sorted(set(entry) - set(_SCHEMA))
    if unknown:
        return f"key {unknown[0]!r} is unknown; the keys are {', '.join(_SCHEMA)}"
    if entry["verdict"] not in VERDICTS:
        return f"verdict must be one of {', '.join(map(repr, VERDICTS))}, found {entry['verdict']!r}"
    if entry["verdict"] != NOT_TESTABLE and (entry["measured"] is None or entry["rule"] is None):
        return f"the verdict {entry['verdict']!r} needs a measured number and a rule"
    bounds = entry["ci95"]
    if bounds is not None and not _is_interval(bounds):
        return f"ci95 must be null or [low, high] with finite low <= high, found {bounds!r}"
    if entry["measured"] is not None and not math.isfinite(entry["measured"]):
        return f"measured must be null or finite, found {entry['measured']!r}"
    return None


def _checked(cell: object, where: str) -> Summary:
    """A copy of `cell`, so that no rule can change the metrics; ValueError if it is not a summary with finite numbers."""
    if not isinstance(cell, Mapping):
        raise TypeError(f"{where} must be a summary with mean, ci95, n and values, got {cell!r}")
    for key in ("mean", "ci95", "n", "values"):
        if key not in cell:
            raise ValueError(f"{where} has no {key!r}; make it with components.stats.summarise")
    mean, bounds, n, values = cell["mean"], cell["ci95"], cell["n"], list(cell["values"])
    if not _is_finite(mean):
        raise ValueError(f"{where}: mean must be a finite number, got {mean!r}")
    if not all(map(_is_finite, values)):
        raise ValueError(f"{where}: values must be finite numbers, got {values!r}")
    if n != len(values) or n < 1:
        raise ValueError(f"{where}: n must be the number of values, at least 1, got n = {n!r} with {len(values)} values")
    if bounds is not None and not _is_interval(bounds):
        raise ValueError(f"{where}: ci95 must be None or [low, high] with finite low <= high, got {bounds!r}")
    if bounds is not None and n < 2:
        raise ValueError(f"{where}: one value has no interval, got ci95 = {bounds!r} with n = 1")
    return {"mean": float(mean), "ci95": None if bounds is None else [float(b) for b in bounds], "n": int(n), "values": values}


def _missing(claim: Claim, cell: Cell, metrics: Metrics) -> str:
    if cell.method not in metrics:
        return f"claim {claim.id!r} measures the method {cell.method!r}, which the metrics lack; they have {_listed(metrics)}"
    return (
        f"claim {claim.id!r} measures the metric {cell.metric!r} of {cell.method!r}, which the metrics lack; "
        f"they have {_listed(metrics[cell.method])}"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"


def _joined(outcomes: list[Outcome], by: Literal["all", "any"] = "all") -> Outcome:
    """All of `outcomes`: one that fails settles it. Any of them: one that holds does. Otherwise an open one leaves it open."""
    states = [outcome.holds for outcome in outcomes]
    settling = by == "any"
    holds = settling if settling in states else None if None in states else not settling
    return Outcome(holds, "; ".join(outcome.reason for outcome in outcomes))


def _above(name: str, value: float, x: float, right: str) -> Outcome:
    """Compare, and print both with enough digits to show on which side the value lies."""
    left = number(value, signed=True)
    if (float(left.replace(",", "")) > float(right.replace(",", ""))) != (value > x):
        left, right = f"{'+' if value > 0 else ''}{value!r}", f"{x:.17g}"
    return Outcome(value > x, f"{name} {left} is {'' if value > x else 'not '}above {right}")


def _below(name: str, value: float, x: float) -> Outcome:
    left, right = number(value, signed=True), f"{x:g}"
    if (float(left.replace(",", "")) < float(right)) != (value < x):
        left, right = f"{'+' if value > 0 else ''}{value!r}", f"{x:.17g}"
    return Outcome(value < x, f"{name} {left} is {'' if value < x else 'not '}below {right}")


def _within(name: str, values: list[float], low: float, high: float) -> Outcome:
    """Whether all of `values` lie within; names the one that is nearest to leaving, or furthest out."""
    worst = min(values, key=lambda value: min(value - low, high - value))
    holds = low <= worst <= high
    shown = number(worst, signed=True)
    if (low <= float(shown.replace(",", "")) <= high) != holds:
        shown = f"{'+' if worst > 0 else ''}{worst!r}"
    if len(set(values)) == 1:
        which = f"{'every ' if len(values) > 1 else ''}{name} {shown}"
    else:
        which = f"the {name} that lies {'nearest to a bound' if holds else 'furthest out'}, {shown},"
    return Outcome(holds, f"{which} is {'' if holds else 'not '}{_range_text(low, high)}")


def _range(low: float, high: float, where: str) -> tuple[float, float]:
    for bound in (low, high):
        if isinstance(bound, bool | str) or not hasattr(bound, "__float__") or math.isnan(bound):
            raise ValueError(f"{where}: the bounds must be numbers, got {bound!r}")
    if low > high or not (math.isfinite(low) or math.isfinite(high)):
        raise ValueError(f"{where}: needs low <= high with one of them finite, got {low!r} and {high!r}")
    return float(low), float(high)


def _range_text(low: float, high: float) -> str:
    if low == -math.inf:
        return f"at most {high:g}"
    return f"at least {low:g}" if high == math.inf else f"within [{low:g}, {high:g}]"


def _unique_ids(entries: list[Verdict], where: str) -> list[Verdict]:
    seen: set[str] = set()
    for entry in entries:
        if entry["id"] in seen:
            raise ValueError(f"{where}: the claim id {entry['id']!r} stands twice; each claim needs its own")
        seen.add(entry["id"])
    return entries


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) and part for part in value)


def _is_finite(value: object) -> bool:
    # numpy's floats and integers count as numbers too, through __float__
    return not isinstance(value, bool | str) and hasattr(value, "__float__") and math.isfinite(value)


def _is_interval(bounds: object) -> bool:
    return isinstance(bounds, list | tuple) and len(bounds) == 2 and all(map(_is_finite, bounds)) and bounds[0] <= bounds[1]


def _finite(x: object, where: str) -> float:
    if not _is_finite(x):
        raise ValueError(f"{where} must be a finite number, got {x!r}")
    return float(x)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")
