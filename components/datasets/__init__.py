"""Real data sets, each with what must be known to use it: rows, groups, licence, source."""
