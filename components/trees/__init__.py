"""Falling trees: decision trees whose risks fall from the root down, and the whole set of near-optimal ones."""
