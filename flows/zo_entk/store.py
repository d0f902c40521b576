"""What the stages leave for one another: digits, pairs of inputs, weights by name, and the numbers that seeds are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel

KINDS = ("self", "same", "similar", "dissimilar")


class Inputs(NamedTuple):
    """One data set: x (n, pixels) float32, y (n,) int64; the first `probes` rows are the observed inputs, never trained on."""

    x: np.ndarray
    y: np.ndarray
    probes: int


def write_inputs(folder: Path, sets: dict[str, Inputs]) -> None:
    arrays = {
        f"{name}/{field}": np.asarray(value) for name, inputs in sets.items() for field, value in inputs._asdict().items()
    }
    np.savez_compressed(folder / "inputs.npz", **arrays)


def read_inputs(folder: Path, name: str) -> Inputs:
    """ValueError for a data set that the stage data did not prepare."""
    with np.load(folder / "inputs.npz", allow_pickle=False) as stored:
        if f"{name}/x" not in stored:
            raise ValueError(f"the stage data did not prepare the data set {name!r}")
        return Inputs(stored[f"{name}/x"], stored[f"{name}/y"], int(stored[f"{name}/probes"]))


def read_pairs(folder: Path, name: str) -> pd.DataFrame:
    """Columns set, pair_id, idx_o, idx_u, y_o, y_u, kind; rows of one data set."""
    pairs = pd.read_parquet(folder / "pairs.parquet")
    return pairs[pairs["set"] == name].reset_index(drop=True)


def weights_file(folder: Path, name: str, seed: int) -> Path:
    """Of a network by name: its width, or lenet."""
    return folder / "weights" / f"{name}-{seed}.safetensors"


def seed_of(*parts: int | str) -> int:
    """A 64-bit seed for what the parts name; texts count by their letters, so that nothing depends on Python's own hashes."""
    numbers = [part if isinstance(part, int) else int.from_bytes(part.encode(), "little") for part in parts]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def write_parameters(folder: Path, p: BaseModel) -> None:
    """What the stage ran with, for the report."""
    (folder / "parameters.json").write_text(json.dumps(p.model_dump(), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_parameters(folder: Path) -> dict[str, object]:
    return json.loads((folder / "parameters.json").read_text(encoding="utf-8"))
