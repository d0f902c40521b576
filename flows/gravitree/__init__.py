"""Rashomon sets of falling trees: what the paper claims, and the rules that settle each claim."""

from tasks.claims import Claim, every_value_within, lower_bound_above, mean_within
from tasks.lazy import flow_of
from tasks.paper import Paper, Range, Sweep

INFINITE = float("inf")

paper = Paper(
    slug="gravitree",
    title="Rashomon Sets of Falling Trees",
    authors="",
    arxiv="",
    field="interpretable models",
    summary=(
        "In triage one wants rules that name the people at the highest risk first. A falling rule list is an if/else-if chain whose risks only "
        "go down; a falling tree may branch as well, and the algorithm returns all trees that are nearly optimal, so that a clinician can "
        "choose. Here on reoffending (COMPAS), heart attacks (MONICA), German credit and attrition, beside optimal and greedy rule lists, "
        "optimal ordinary trees, CART, logistic regression and gradient boosting."
    ),
    assets=("compas", "monica", "german", "attrition", "credit_data"),
    claims=(
        Claim(
            id="C1 interpolation",
            statement="More branchings never make the optimum worse.",
            paper="depth and branching budgets interpolate between lists and full trees",
            unit="largest rise of the objective with a branching more",
            quantity=("falling", "all/rise of the optimum"),
            rule=every_value_within(-INFINITE, 1e-12),
        ),
        Claim(
            id="C1 lists",
            statement="Without branchings the set is exactly that of the rule lists.",
            paper="falling trees generalise falling rule lists",
            unit="% of random problems",
            quantity=("search - enumeration", "small/lists equal"),
            rule=every_value_within(100, 100),
        ),
        Claim(
            id="C2 set",
            statement="The search finds the whole set of near-optimal trees, and nothing else: equal to plain enumeration.",
            paper="learns the whole Rashomon set",
            unit="% of random problems",
            quantity=("search - enumeration", "small/sets equal"),
            rule=every_value_within(100, 100),
        ),
        Claim(
            id="C2 bounds",
            statement="Bounds from falling risks leave the optimum and at most half of the subproblems of the search for rule lists.",
            paper="the falling constraint yields bounds that provably shrink the search",
            unit="share of the subproblems without bounds",
            quantity=(("falling bounds / none", "lists/subproblems"), ("falling bounds / none", "lists/optimum changed")),
            rule=(mean_within(-INFINITE, 0.5), every_value_within(-1e-12, 1e-12)),
            explanation=(
                "For lists. With a branching the same bounds make the search expand more row sets, not fewer: what a subtree may cost and how risky "
                "it may be differs from parent to parent, and a row set is expanded again when more is asked of it than before. Without them each "
                "is expanded once, for all caps at a time, and so it is in the search as it is used with branchings."
            ),
        ),
        Claim(
            id="C3",
            statement="Falling trees rank as well as the best rule lists on every data set, and better on average.",
            paper="match or outperform falling rule lists and other interpretable baselines",
            unit="AUC",
            quantity=(("falling - rule list", "all/auc"), ("falling - rule list", "all/auc by data set")),
            rule=(lower_bound_above(0), every_value_within(-0.005, INFINITE)),
            explanation=(
                "Every data set's mean is on the side of falling trees, but the interval just reaches 0, since the lists were given what trees were "
                "not: depths to six and conditions in pairs, chosen on held-out rows. Lists of the tree's own depth are behind by 0.014, beyond "
                "chance. On heart attacks a list is as good: one condition says most. Ordinary trees and CART rank no worse than falling trees."
            ),
        ),
        Claim(
            id="C4",
            statement="The sparsest near-optimal falling tree needs fewer conditions for the tenth at the highest risk than the optimal ordinary tree.",
            paper="decisions for high-risk instances often use fewer conditions",
            unit="% of the data sets",
            quantity=(
                ("sparsest falling - ordinary", "all/fewer conditions"),
                ("sparsest falling - ordinary", "all/top sparsity by data set"),
            ),
            rule=(mean_within(75, INFINITE), every_value_within(-INFINITE, 1e-9)),
            explanation="On heart attacks both need one condition. Rule lists need the fewest throughout; a falling tree can only come level.",
        ),
    ),
    sweep=Sweep(
        space={
            "train.depth": Range("choice", values=[2, 3, 4]),
            "train.chosen_branching": Range("choice", values=[0, 1, 2, 3]),
            "train.lam": Range("log", 3e-4, 1e-2),
            "train.loss": Range("choice", values=["brier", "zero_one"]),
            "train.min_leaf_share": Range("choice", values=[0.005, 0.01, 0.03]),
        },
        objective=("falling", "sweep/objective"),
        mode="max",
        overrides={"train.search": False},
    ),
)
__getattr__ = flow_of(paper)
