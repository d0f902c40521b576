"""Same-run ratios against named alternatives; nothing here is a timed test."""
