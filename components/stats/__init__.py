"""Summaries with intervals and paired tests: what every flow reports its measurements with."""

from components.stats.intervals import Metrics, Summary, paired_difference, summarise
from components.stats.signed_rank import wilcoxon_greater
from components.stats.slopes import log_log_slope

__all__ = ["Metrics", "Summary", "log_log_slope", "paired_difference", "summarise", "wilcoxon_greater"]
