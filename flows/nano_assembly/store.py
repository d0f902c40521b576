"""What the stages leave for each other: assembly tasks, plans and agents, one reader and one writer each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from components.scheduling.assembly_plan import AssemblyPlan
from components.scheduling.instances import Instance


def instance_name(shape: str, seed: int) -> str:
    """`square-0`; also the name of a folder, so only letters, digits and `-`."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', shape).strip('-')}-{seed}"


def write_instances(folder: Path, instances: dict[str, Instance]) -> None:
    """molecules.parquet and targets.parquet: positions in nm, axial coordinates, orientations in steps of 60 degrees."""
    molecules, targets = [], []
    for name, task in instances.items():
        for rows, sites, positions in (
            (molecules, task.start_sites, task.starts),
            (targets, task.target_sites, task.targets),
        ):
            frame = pd.DataFrame({"instance": name, "shape": task.name, "box": task.box, "id": np.arange(len(sites))})
            rows.append(frame.assign(x=positions[:, 0], y=positions[:, 1], q=sites[:, 0], r=sites[:, 1]))
        molecules[-1]["ori"] = task.orientations
    pd.concat(molecules, ignore_index=True).to_parquet(folder / "molecules.parquet", index=False)
    pd.concat(targets, ignore_index=True).to_parquet(folder / "targets.parquet", index=False)


def read_instances(folder: Path) -> dict[str, Instance]:
    """Name -> task, in the order in which they were written."""
    molecules, targets = (pd.read_parquet(folder / f"{table}.parquet") for table in ("molecules", "targets"))
    found = {}
    for name, rows in molecules.groupby("instance", sort=False):
        goals = targets[targets["instance"] == name]
        found[str(name)] = Instance(
            str(rows["shape"].iloc[0]),
            rows[["q", "r"]].to_numpy(dtype=np.int64),
            goals[["q", "r"]].to_numpy(dtype=np.int64),
            rows["ori"].to_numpy(dtype=np.int64),
            float(rows["box"].iloc[0]),
        )
    return found


def read_plan(train: Path, name: str) -> AssemblyPlan:
    return AssemblyPlan.load(train / "plans" / name)


def agent_path(train: Path, method: str, seed: int) -> Path:
    return train / "agents" / f"{instance_name(method, seed)}.safetensors"
