"""SAT scheduling, its verifier and baselines; collision-free planning of moves that must be scheduled."""
