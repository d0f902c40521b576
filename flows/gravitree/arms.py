"""What is compared, by the names that metrics and figures use."""

METHODS = {
    "rule list": "the optimal falling rule list: depth, and whether conditions come in pairs, chosen on a quarter of the training rows",
    "rule list, same depth": "the optimal falling rule list of the falling tree's depth",
    "greedy list": "always the condition whose people are at the highest risk",
    "falling": "the optimal falling tree",
    "sparsest falling": "of the near-optimal falling trees the one with fewest conditions for the tenth at the highest risk",
    "ordinary": "the optimal tree without an order of risks",
    "CART": "scikit-learn's tree of the same depth and leaf size",
    "CART, 7 leaves": "the same with at most seven leaves",
    "logistic": "logistic regression",
    "boosting": "gradient boosting, a ceiling that nobody can read",
}
TREES = (
    "rule list",
    "rule list, same depth",
    "greedy list",
    "falling",
    "sparsest falling",
    "ordinary",
    "CART",
    "CART, 7 leaves",
)
DATASETS = {
    "compas": "COMPAS, reoffending",
    "monica": "MONICA, heart attacks",
    "german": "German credit",
    "attrition": "attrition",
    "credit_data": "credits",
}
# Which bounds are switched on one after the other.
LADDER = (
    ("none", ()),
    ("leaf side", ("leaf_side",)),
    ("+ cap", ("leaf_side", "cap")),
    ("+ loss under a cap", ("leaf_side", "cap", "cap_loss", "collapse")),
    ("+ budget", ("leaf_side", "cap", "cap_loss", "collapse", "two_leaves", "budget")),
    ("all", ("leaf_side", "cap", "cap_loss", "collapse", "two_leaves", "budget", "equivalent")),
)
FALLING_BOUNDS = ("leaf_side", "cap", "cap_loss", "collapse")
