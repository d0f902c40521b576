"""What is compared, by the names that metrics and figures use."""

OURS = "sufficient"
METHODS = {
    "single threshold": "one threshold for all, Bayes rule",
    "PPV matched": "a threshold per group, precisions as equal as thresholds allow",
    "PPV and FOR matched": "a threshold per group, both rates as equal as thresholds allow",
    "demographic parity": "one selection rate",
    "equalised odds": "one TPR and one FPR, by a linear programme",
    "sufficient": "one PPV and one FOR, least loss",
    "separation": "one PPV and one FOR, least far from one TPR and one FPR",
}
DATASETS = {
    "fico4": "FICO, four groups",
    "fico2": "FICO, white and Black",
    "compas2": "COMPAS, two groups",
    "compas3": "COMPAS, three groups",
    "compas_violent": "COMPAS, violent reoffence",
    "adult_sex": "Adult, by sex",
    "adult_race": "Adult, by race",
    "german_age": "German credit, by age",
}
EXACT = ("fico4", "fico2")  # populations: nothing was sampled
