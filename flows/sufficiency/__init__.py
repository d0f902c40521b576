"""Fair decisions from calibrated scores under sufficiency: what the paper claims, and the rules that settle each claim."""

from tasks.claims import Claim, every_value_within, lower_bound_above, mean_within
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

INFINITE = float("inf")

paper = Paper(
    slug="sufficiency",
    title="Fair Decisions from Calibrated Scores: Achieving Optimal Classification While Satisfying Sufficiency",
    authors="Benger, Ligett",
    arxiv="2602.07285",
    field="fairness",
    summary=(
        "A yes/no decision is sufficient if, once it is known, the group tells nothing more about the outcome: precision and false omission "
        "rate are the same in all groups. Thresholding a perfectly calibrated score breaks this as soon as groups have different score "
        "distributions. The paper finds the cheapest randomised decision that restores it, exactly. Here on credit scores (FICO), risk of "
        "reoffending (COMPAS), income (Adult) and German credit, beside thresholds, demographic parity and equalised odds."
    ),
    assets=("fico", "compas", "adult", "german"),
    claims=(
        Claim(
            id="C1",
            statement="A single threshold on calibrated scores violates predictive parity: precision and false omission rate differ by over 0.01.",
            paper="violated as soon as groups have different score distributions",
            unit="% of data sets and costs",
            quantity=("single threshold", "population/violates"),
            rule=mean_within(80, INFINITE),
            explanation=(
                "Two of the 18 do not: Adult at costs 2:1, whose precisions happen to differ by 0.004 only, and German credit at 0.5:1, where one "
                "group is accepted whole and has no false omission rate to compare."
            ),
        ),
        Claim(
            id="C2 optimum",
            statement="The decision found is optimal: no feasible pair of a grid, checked by linear programmes, has less loss.",
            paper="the optimal randomised classifier is found exactly",
            unit="largest loss above the grid's least",
            quantity=("sufficient - grid", "population/loss"),
            rule=every_value_within(-INFINITE, 1e-9),
        ),
        Claim(
            id="C2 sufficient",
            statement="It is sufficient: precision and false omission rate are the same in all groups.",
            paper="exactly",
            unit="gap of the two rates",
            quantity=("sufficient", "population/gap"),
            rule=every_value_within(-INFINITE, 1e-10),
        ),
        Claim(
            id="C3",
            statement="Fitted on half of the people of COMPAS, its false omission rates differ less on the other half than a single threshold's.",
            paper="a simple post-processing from scores and group membership attains it",
            unit="difference of gaps",
            quantity=("single threshold - sufficient", "compas2/held-out gap of FOR"),
            rule=lower_bound_above(0),
            explanation=(
                "Precision is another matter: on other people its gap is as large as a single threshold's, since ten scores of half the people are "
                "calibrated with errors of a few percent. What is exact on the calibration people holds elsewhere up to that."
            ),
        ),
        Claim(
            id="C4 least",
            statement="The decision that is least far from separation under sufficiency is never farther from it than the one of least loss.",
            paper="comes from the same algorithm",
            unit="TPR and FPR ranges, loss optimum minus separation optimum",
            quantity=("sufficient - separation", "population/deviation"),
            rule=every_value_within(-1e-12, INFINITE),
        ),
        Claim(
            id="C4 incompatible",
            statement="With different base rates, sufficiency and separation cannot both hold: the least deviation is above 0.",
            paper="generally incompatible",
            unit="TPR range + FPR range",
            quantity=("separation", "population/deviation"),
            rule=every_value_within(1e-6, INFINITE),
        ),
        Claim(
            id="C5",
            statement="At equal costs that decision is at most a percentage point less accurate on at least half of the data sets.",
            paper="often performs comparably to the optimum",
            unit="% of the data sets",
            quantity=("separation", "population/close in accuracy"),
            rule=mean_within(50, INFINITE),
            explanation=(
                "Often, not always: on Adult it is 11 points less accurate. It ignores the costs altogether, so that at unequal ones it can be far "
                "worse (COMPAS, two groups, 2:1: a third more loss than a single threshold, against 7 % of the sufficient optimum)."
            ),
        ),
    ),
    sweep=Sweep(
        space={
            "train.cost_ratio": Range("log", 0.2, 5.0),
            "train.bins": Range("choice", values=[5, 10, 20, 50]),
            "train.calibrator": Range("choice", values=["quantile", "isotonic"]),
        },
        objective=("sufficient", "sweep/objective"),
        mode="min",
        overrides={"train.splits": 10},
    ),
)
__getattr__ = flow_of(paper)
