"""Real data sets with what must be known to use them."""
