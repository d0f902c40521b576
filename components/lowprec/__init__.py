"""Number formats of 4 to 16 bits: their grids, rounding onto them, shared scales and packed storage."""
