"""Verdicts from hand-made cells, on both sides of every rule."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.claims import (
    FAILS,
    HOLDS,
    NOT_TESTABLE,
    Cell,
    Claim,
    Outcome,
    Rule,
    all_of,
    every_value_within,
    lower_bound_above,
    mean_above,
    mean_above_minus_standard_errors,
    mean_below,
    mean_within,
    measured_text,
    number,
    upper_bound_below,
    validate_claims_file,
    verdict,
    verdicts,
    wilcoxon_greater,
)
from tasks.errors import UserError


def cell(*values, ci95=None):
    """A summary with a mean computed here and, where n > 1, an interval of the mean +- 1 unless one is given."""
    mean = sum(values) / len(values)
    bounds = ci95 if ci95 is not None else [mean - 1, mean + 1] if len(values) > 1 else None
    return {"mean": mean, "ci95": bounds, "n": len(values), "values": list(values)}


def claim(rule=None, **changes):
    given_fields = {
        "id": "C1",
        "statement": "better",
        "paper": "+3.3",
        "unit": "points",
        "quantity": ("A - B", "cora/accuracy"),
    }
    return Claim(**{**given_fields, "rule": rule or mean_above(0), **changes})


def judged(rule, summary):
    return verdict(claim(rule), {"A - B": {"cora/accuracy": summary}})


@pytest.mark.parametrize(
    ("rule", "summary", "expected"),
    [
        (mean_above(0), cell(0.5, 1.5), HOLDS),
        (mean_above(0), cell(-0.5, 0.5), FAILS),  # a mean of exactly 0 is not above 0
        (mean_above(1), cell(0.9), FAILS),
        (mean_above(0), cell(0.1), HOLDS),  # one value has a mean
        (lower_bound_above(0), cell(1, 3, ci95=[0.01, 3.99]), HOLDS),
        (lower_bound_above(0), cell(1, 3, ci95=[0.0, 4.0]), FAILS),
        (lower_bound_above(-1), cell(1, 3, ci95=[-0.5, 4.0]), HOLDS),
        (lower_bound_above(0), cell(5), NOT_TESTABLE),
        (mean_below(0), cell(-0.5, 0.5), FAILS),  # a mean of exactly 0 is not below 0
        (mean_below(0), cell(-0.1), HOLDS),
        (upper_bound_below(2), cell(1, 1, ci95=[0.5, 1.99]), HOLDS),
        (upper_bound_below(2), cell(1, 1, ci95=[0.5, 2.0]), FAILS),
        (upper_bound_below(2), cell(1), NOT_TESTABLE),
        (mean_within(1, 2), cell(0, 2), HOLDS),  # bounds belong to it
        (mean_within(1, 2), cell(2.5), FAILS),
        (mean_within(1, 2), cell(0.999), FAILS),
        (mean_within(-math.inf, 0), cell(0.0), HOLDS),
        (mean_within(0.99, math.inf), cell(0.98), FAILS),
        (every_value_within(1, 2), cell(1, 2, 1.5), HOLDS),
        (every_value_within(1, 2), cell(1.5, 1.5, 2.1), FAILS),
        (every_value_within(1, 2), cell(0.9, 1.5, 1.5), FAILS),
        # values -3 and 1: mean -1, standard deviation sqrt(8), standard error 2
        (mean_above_minus_standard_errors(1), cell(-3, 1), HOLDS),
        (mean_above_minus_standard_errors(0.5), cell(-3, 1), FAILS),  # -1 is not above -1
        (mean_above_minus_standard_errors(0.49), cell(-3, 1), FAILS),
        (mean_above_minus_standard_errors(0), cell(1, 2), HOLDS),
        (mean_above_minus_standard_errors(1), cell(9), NOT_TESTABLE),
        # all of n values positive and distinct: p = 2^-n exactly
        (wilcoxon_greater(0.1), cell(1, 2, 3, 4), HOLDS),  # 0.0625
        (wilcoxon_greater(0.0625), cell(1, 2, 3, 4, 5), HOLDS),  # 0.03125
        (wilcoxon_greater(0.1), cell(-1, 2, 3, 4), FAILS),  # 0.125
        (wilcoxon_greater(0.1), cell(-1, -2, -3, -4), FAILS),
        (wilcoxon_greater(0.1), cell(1, 2, 3), NOT_TESTABLE),  # cannot be below 0.125
        (wilcoxon_greater(0.0625), cell(1, 2, 3, 4), NOT_TESTABLE),
        (wilcoxon_greater(0.9), cell(1), NOT_TESTABLE),
        (all_of(mean_above(0), lower_bound_above(0)), cell(1, 3, ci95=[0.5, 3.5]), HOLDS),
        (all_of(mean_above(0), lower_bound_above(0)), cell(1, 3, ci95=[-0.5, 4.5]), FAILS),
        (all_of(mean_above(3), lower_bound_above(0)), cell(1, 3, ci95=[0.5, 3.5]), FAILS),
        (all_of(mean_above(0), lower_bound_above(0)), cell(-1), NOT_TESTABLE),  # one run is no evidence against it
        (all_of(mean_above(0), wilcoxon_greater(0.1)), cell(-1, -2), FAILS),  # what is settled stays settled
        (all_of(mean_above(0), wilcoxon_greater(0.1)), cell(1, 2), NOT_TESTABLE),
    ],
)
def test_a_rule_on_both_sides(rule, summary, expected):
    assert judged(rule, summary)["verdict"] == expected
    if expected == NOT_TESTABLE:
        with pytest.raises(ValueError, match="cannot be decided"):
            rule.decide(summary)
    else:
        assert rule.decide(summary) is (expected == HOLDS)


def test_the_reason_tells_the_numbers():
    rule = all_of(mean_above(0), lower_bound_above(0))
    entry = judged(rule, cell(0.9, 1.0, ci95=[0.3, 1.6]))
    assert entry == {
        "id": "C1",
        "statement": "better",
        "paper": "+3.3",
        "measured": 0.95,
        "ci95": [0.3, 1.6],
        "unit": "points",
        "rule": "mean > 0 and lower end of the 95% interval > 0",
        "verdict": "holds",
        "reason": "mean +0.95 is above 0; lower bound +0.30 is above 0",
    }
    assert (
        judged(rule, cell(-0.5, 0.1, ci95=[-1, 0.6]))["reason"] == "mean -0.20 is not above 0; lower bound -1.00 is not above 0"
    )
    assert judged(rule, cell(4))["reason"] == "n = 1"
    assert judged(rule, cell(4))["ci95"] is None
    assert "smallest p is 0.125" in judged(wilcoxon_greater(0.1), cell(1, 2, 3))["reason"]
    assert judged(wilcoxon_greater(0.1), cell(1, 2, 3, 4))["reason"] == "Wilcoxon one-sided p = 0.0625 is below 0.1"
    assert judged(mean_above_minus_standard_errors(1), cell(-3, 1))["reason"] == (
        "mean -1.00 is above -2.00 (minus 1 x the standard error 2.00)"
    )


def test_the_reason_shows_enough_digits_to_tell_the_side():
    assert judged(mean_above(1), cell(1.0001))["reason"] == "mean +1.0001 is above 1"
    assert judged(mean_above(1), cell(0.9999))["reason"].endswith("is not above 1")


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_printed_numbers_never_contradict_the_verdict(value, threshold):
    reason = mean_above(threshold).judge(cell(value)).reason
    words = reason.replace(",", "").split()
    left, right = float(words[1]), float(words[-1])
    assert (left > right) == (value > threshold) == ("not" not in words)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_printed_numbers_below_never_contradict_the_verdict(value, threshold):
    words = mean_below(threshold).judge(cell(value)).reason.replace(",", "").split()
    left, right = float(words[1]), float(words[-1])
    assert (left < right) == (value < threshold) == ("not" not in words)


def test_the_explanation_follows_the_computed_reason():
    entry = verdict(claim(explanation=" Cheb helps. "), {"A - B": {"cora/accuracy": cell(-2)}})
    assert entry["reason"] == "mean -2.00 is not above 0. Cheb helps."


def test_several_cells_are_all_judged_and_the_first_is_reported():
    two = claim(quantity=(("A - B", "cora/accuracy"), Cell("A - C", "cora/accuracy")))
    metrics = {"A - B": {"cora/accuracy": cell(2)}, "A - C": {"cora/accuracy": cell(-1)}}
    entry = verdict(two, metrics)
    assert (entry["verdict"], entry["measured"]) == (FAILS, 2)
    assert entry["reason"] == "A - B, cora/accuracy: mean +2.00 is above 0; A - C, cora/accuracy: mean -1.00 is not above 0"
    metrics["A - C"]["cora/accuracy"] = cell(1)
    assert verdict(two, metrics)["verdict"] == HOLDS


@pytest.mark.parametrize(
    ("first", "second", "by", "expected"),
    [
        (1, 1, "all", HOLDS),
        (1, 3, "all", FAILS),
        (1, 3, "any", HOLDS),
        (-1, 1, "any", HOLDS),
        (-1, 3, "any", FAILS),
        (-1, 1, "all", FAILS),
    ],
)
def test_each_cell_may_have_its_own_rule(first, second, by, expected):
    two = claim((mean_above(0), mean_below(2)), quantity=(("A", "m"), ("B", "m")), settled_by=by)
    entry = verdict(two, {"A": {"m": cell(first)}, "B": {"m": cell(second)}})
    assert (entry["verdict"], entry["measured"]) == (expected, first)
    assert entry["rule"] == ("A, m: mean > 0; or B, m: mean < 2" if by == "any" else "A, m: mean > 0; B, m: mean < 2")


def test_an_open_cell_leaves_a_choice_open_unless_another_holds():
    two = claim((lower_bound_above(0), mean_above(0)), quantity=(("A", "m"), ("B", "m")), settled_by="any")
    assert verdict(two, {"A": {"m": cell(1)}, "B": {"m": cell(1)}})["verdict"] == HOLDS
    assert verdict(two, {"A": {"m": cell(1)}, "B": {"m": cell(-1)}})["verdict"] == NOT_TESTABLE


def test_the_value_furthest_out_is_named():
    assert judged(every_value_within(1, 2), cell(1.5, 2.5, 0.9))["reason"] == (
        "the value that lies furthest out, +2.50, is not within [1, 2]"
    )
    assert judged(mean_within(-math.inf, 1), cell(0.5))["reason"] == "mean +0.50 is at most 1"
    assert judged(every_value_within(0, 0), cell(0, 0))["reason"] == "every value 0 is within [0, 0]"


def test_a_failing_cell_is_not_hidden_by_an_open_one():
    two = claim(lower_bound_above(0), quantity=(("A", "m"), ("B", "m")))
    assert verdict(two, {"A": {"m": cell(5)}, "B": {"m": cell(-2, -1)}})["verdict"] == FAILS
    assert verdict(two, {"A": {"m": cell(5)}, "B": {"m": cell(2, 3)}})["verdict"] == NOT_TESTABLE


def test_untestable_wins_over_what_was_measured():
    spared = claim(untestable="needs WikiCS")
    measured = verdict(spared, {"A - B": {"cora/accuracy": cell(5, 6)}})
    assert (measured["verdict"], measured["measured"], measured["reason"]) == (NOT_TESTABLE, 5.5, "needs WikiCS")
    assert verdict(spared, {})["measured"] is None
    bare = verdict(Claim(id="C9", statement="s", paper="p", untestable="no robot"), {})
    assert (bare["rule"], bare["measured"], bare["ci95"]) == (None, None, None)


def test_a_missing_cell_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"'C1' measures the method 'A - B', which the metrics lack; they have 'GCN'"):
        verdict(claim(), {"GCN": {}})
    with pytest.raises(ValueError, match=r"'C1' measures the metric 'cora/accuracy' of 'A - B'.*they have 'csbm/accuracy'"):
        verdict(claim(), {"A - B": {"csbm/accuracy": cell(1)}})


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"mean": 1.0}, "has no 'ci95'"),
        (3.0, "must be a summary"),
        (cell(1) | {"mean": math.nan}, "mean must be a finite number"),
        (cell(1) | {"values": [math.inf]}, "values must be finite"),
        (cell(1) | {"n": 2}, "n must be the number of values"),
        (cell(1) | {"n": 0, "values": []}, "n must be the number of values"),
        (cell(1, 2) | {"ci95": [2, 1]}, "ci95 must be None or"),
        (cell(1) | {"ci95": [0, 1]}, "one value has no interval"),
    ],
)
def test_a_cell_that_is_no_summary_is_an_error(broken, words):
    with pytest.raises((ValueError, TypeError), match=words):
        judged(mean_above(0), broken)


def test_a_rule_cannot_change_the_metrics():
    def vandal(summary):
        summary["values"].append(99.0)
        summary["mean"] = 99.0
        return Outcome(True, "changed")

    metrics = {"A - B": {"cora/accuracy": cell(1, 2)}}
    before = json.dumps(metrics)
    verdict(claim(Rule("vandal", vandal)), metrics)
    assert json.dumps(metrics) == before


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: claim(statement=" "), ValueError, "statement must be a text"),
        (lambda: claim(id=""), ValueError, "id must be a text"),
        (lambda: claim(paper=3.3), ValueError, "paper must be a text"),
        (lambda: claim(unit=None), TypeError, "unit must be a text"),
        (lambda: claim(untestable=""), ValueError, "untestable must be None or a text"),
        (lambda: claim(rule="mean > 0"), TypeError, "rule must be a Rule"),
        (lambda: claim(quantity="A - B"), ValueError, "quantity must be"),
        (lambda: claim(quantity=()), ValueError, "quantity must be"),
        (lambda: claim(quantity=("A", "b", "c")), ValueError, "quantity must be"),
        (lambda: claim(quantity=None), ValueError, "needs a quantity and a rule"),
        (lambda: Claim(id="C", statement="s", paper="p", quantity=("A", "m")), ValueError, "needs a quantity and a rule"),
        (lambda: mean_above(math.nan), ValueError, "mean_above"),
        (lambda: mean_above("0"), ValueError, "must be a finite number"),
        (lambda: lower_bound_above(math.inf), ValueError, "lower_bound_above"),
        (lambda: mean_within(2, 1), ValueError, "low <= high"),
        (lambda: mean_within(-math.inf, math.inf), ValueError, "one of them finite"),
        (lambda: every_value_within(math.nan, 1), ValueError, "must be numbers"),
        (lambda: claim((mean_above(0), mean_above(0))), ValueError, "2 rules for 1 cells"),
        (lambda: claim((mean_above(0), 3)), TypeError, "must be a Rule"),
        (lambda: claim(settled_by="most"), ValueError, "settled_by"),
        (lambda: mean_above_minus_standard_errors(-1), ValueError, "0 or more"),
        (lambda: wilcoxon_greater(1), ValueError, "between 0 and 1"),
        (lambda: all_of(), ValueError, "at least one rule"),
        (lambda: all_of(0.1), TypeError, "takes rules"),
        (lambda: Rule("", len), ValueError, "must be a sentence"),
        (lambda: Rule("text", None), TypeError, "must be a function"),
    ],
)
def test_a_wrong_claim_is_refused_where_it_is_written(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_two_claims_of_one_id_are_refused():
    with pytest.raises(ValueError, match="'C1' stands twice"):
        verdicts([claim(), claim()], {"A - B": {"cora/accuracy": cell(1)}})


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(-5, 5), st.floats(0, 5))
def test_a_stricter_threshold_never_turns_fails_into_holds(values, threshold, more):
    summary = cell(*values)
    for factory in (mean_above, lower_bound_above):
        assert factory(threshold).decide(summary) >= factory(threshold + more).decide(summary)
    both = all_of(mean_above(threshold), lower_bound_above(threshold)).decide(summary)
    assert both == (mean_above(threshold).decide(summary) and lower_bound_above(threshold).decide(summary))


@given(st.lists(st.floats(-50, 50).filter(lambda v: abs(v) > 1e-6), min_size=2, max_size=6), st.floats(0.01, 100))
def test_standard_errors_scale_with_the_values(values, factor):
    rule = mean_above_minus_standard_errors(1)
    gap = abs(sum(values) / len(values)) + math.sqrt(sum(v * v for v in values))
    if gap > 1e-3:
        margin = judged(rule, cell(*values))["verdict"], judged(rule, cell(*(v * 2 for v in values)))["verdict"]
        assert margin[0] == margin[1]  # doubling is exact in floating point


def entry(**changes):
    return {**verdict(claim(), {"A - B": {"cora/accuracy": cell(1, 2)}}), **changes}


def test_a_claims_file_is_read_back(tmp_path):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps([entry(), entry(id="C2", ci95=None)]))
    assert validate_claims_file(path) == [entry(), entry(id="C2", ci95=None)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("{", "cannot be read as JSON"),
        ("[NaN]", "NaN is not a number that JSON knows"),
        ("{}", "must hold a list"),
        ([3], "entry 0: must be an object"),
        ([{k: v for k, v in entry().items() if k != "rule"}], "entry 0: key 'rule' is missing"),
        ([entry(), entry(id="C2", measured="1")], "entry 1: key 'measured' must be int or float or null, found '1'"),
        ([entry(measured=True)], "key 'measured'"),
        ([entry(colour="red")], "key 'colour' is unknown"),
        ([entry(verdict="proven")], "verdict must be one of 'holds', 'fails', 'not testable at this scale'"),
        ([entry(measured=None)], "needs a measured number"),
        ([entry(ci95=[2, 1])], "ci95 must be null or"),
        ([entry(ci95=[1])], "ci95 must be null or"),
        ([entry(), entry()], "'C1' stands twice"),
    ],
)
def test_a_bad_claims_file_says_what_is_wrong(tmp_path, content, words):
    path = tmp_path / "claims.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=words) as caught:
        validate_claims_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "text"), [(0.0, "0"), (0.954, "0.95"), (-12.3, "-12.30"), (0.00412, "0.00412"), (12345.6, "12,346"), (3e-7, "3e-07")]
)
def test_numbers_for_a_reader(x, text):
    assert number(x) == text


def test_measured_text():
    assert measured_text(entry(measured=1.5, ci95=[0.5, 2.5])) == "1.50 [0.50, 2.50] points"
    assert measured_text(entry(measured=1.5, ci95=None, unit="")) == "1.50"
    assert measured_text(entry(measured=None, ci95=None)) == "–"
    assert measured_text(entry(measured=-0.23, ci95=[-0.51, 0.04])) == "-0.23 [-0.51, 0.04] points"
    assert measured_text(entry(measured=0.50004, ci95=[0.5, 0.50008], unit="")) == "0.500040 [0.500000, 0.500080]"
    assert measured_text(entry(measured=5432.1, ci95=[1000, 9864.2], unit="s")) == "5,432 [1,000, 9,864] s"
    assert measured_text(entry(measured=2.2e-10, ci95=[1.54e-10, 2.9e-10], unit="")) == "2.2e-10 [1.5e-10, 2.9e-10]"
    assert measured_text(entry(measured=1e-4, ci95=[-9e-4, 1.1e-3], unit="")) == "0.0001 [-0.0009, 0.0011]"
    assert measured_text(entry(measured=0.0, ci95=[0.0, 0.0])) == "0.00 [0.00, 0.00] points"


def test_importing_claims_brings_nothing_heavy():
    code = "import sys, tasks.claims; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "torch", "mlflow", "matplotlib", "pydantic", "jinja2", "components"} & set(loaded)
