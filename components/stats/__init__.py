"""Summaries with intervals and paired tests: what every flow reports its measurements with."""

from components.stats.intervals import Metrics, Summary, paired_difference, summarise
from components.stats.signed_rank import wilcoxon_greater

__all__ = ["Metrics", "Summary", "paired_difference", "summarise", "wilcoxon_greater"]
