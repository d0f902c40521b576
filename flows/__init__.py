"""One package per paper: what the paper does, as four stages (data, train, evaluate, report)."""
