"""The methods that are compared, by the names that metrics and figures use. No torch in here: the report needs the names alone."""

from typing import Any

# name -> layer kind of a two-layer network; SGC is one linear layer behind two hops, as its authors define it.
BASELINES = {"GCN": "gcn", "GAT": "gat", "SAGE": "sage", "SGC": "sgc", "Cheb": "cheb", "MLP": "mlp"}
# Not tuned: a narrow GCN, for what a comparison without a choice of width would have said. name -> (kind, width).
UNTUNED = {"GCN, 16 hidden": ("gcn", 16)}
RIVALS = ("GCN", "GAT", "SAGE", "SGC", "Cheb")  # whom the paper compares with

# name -> what differs from BES in the shaper's options; all share the frozen embeddings and the decoder's seed.
ARMS: dict[str, dict[str, Any]] = {
    "BES": {},
    "frozen": {"nodes": "none"},
    "all": {"nodes": "all"},
    "random": {"nodes": "random"},
    "supcon": {"nodes": "all", "loss": "supcon"},
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "BES tokens=views": {"tokens": "views"},
    "BES slab=centred": {"slab": "centred"},
    "BES scale=none": {"scale": "none"},
    "BES scale=grad": {"scale": "grad", "alpha": 1.0},
    "BES rival": {"mode": "rival", "denominator": "neg_only"},
    "BES Adam 0.01": {"lr": 0.01, "scale": "none"},
    "BES SGD alpha=1": {"optimizer": "sgd", "scale": "grad", "alpha": 1.0},
}
METHODS = (*BASELINES, *UNTUNED, *ARMS, *ABLATIONS)

# Link prediction: method -> (arm or None for the GCN trained end to end, task that the encoders were trained for).
LINK_ARMS: dict[str, tuple[str | None, str | None]] = {
    "GCN": (None, None),
    "frozen": ("frozen", "links"),
    "BES": ("BES", "links"),
    "frozen (label encoders)": ("frozen", "labels"),
    "BES (label encoders)": ("BES", "labels"),
}

# The two views of each data set.
VIEWS = {
    "cora": ("cheb", "gcn"),
    "csbm": ("cheb", "gcn"),
    "citeseer": ("sgc", "ssgc"),
    "pubmed": ("cheb", "graphconv"),
    "wikics": ("cheb", "gatv2"),
}
