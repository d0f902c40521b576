"""Parameters of a stage: typed, bounded, described; a wrong key is an error.

Every stage depends on this file, so it holds nothing else. Reading `params.yaml` is in `tasks.settings`.
"""

from pydantic import BaseModel, Field


class Strict(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A group of parameters; an unknown key and a number that is not finite are errors."""


class StageParams(Strict):
    """What every stage can be told."""

    seed: int = Field(0, ge=0, description="seed of python, numpy and torch when the stage begins")
    threads: int = Field(1, ge=1, description="threads of each process; sums depend on it to the last bit")
