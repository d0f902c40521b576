"""Figures, tables and text of the report; every number in the text is computed from the metrics."""

from pathlib import Path

from pydantic import Field

from tasks.params import StageParams


class Params(StageParams):
    shown: int = Field(96, ge=8, description="tokens of the text that is drawn")
