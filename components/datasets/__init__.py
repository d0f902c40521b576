"""Real data sets with their datasheets."""
