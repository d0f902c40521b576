"""Assembly tasks: scattered molecules and the structure to build from them, on the adsorption sites of Ag(111)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from components.envs.hexagonal import snap
from components.scheduling.instances import CONTACT, Instance, make_instance, read_positions, target_positions
from flows.nano_assembly.store import instance_name, write_instances
from tasks.errors import UserError
from tasks.params import StageParams, Strict


class Measured(Strict):
    """Molecules as a microscope found them, instead of scattered ones."""

    positions: str = Field(description="CSV file with x_nm, y_nm, orientation_deg, as Nanonis and Createc export it")
    shape: str = Field("square", description="structure to build from them")


class Params(StageParams):
    shapes: list[str] = Field(["square", "honeycomb", "hex"], min_length=1, description="structures, also bitmap(TEXT)")
    n: int = Field(420, ge=2, description="targets of each structure")
    pitch: dict[str, float] = Field(
        {}, description="distance of neighbouring targets by structure, nm; 2.0 where it is not given"
    )
    box: dict[str, float] = Field({}, description="side of the square that holds everything, by structure, nm")
    default_box: float = Field(80.0, gt=0, description="that side for structures not named in box, nm")
    d_min: float = Field(2.0, ge=CONTACT, description="least distance of two scattered molecules, nm")
    surplus: float = Field(0.0, ge=0, description="molecules beyond those needed, as a share of n")
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="scatterings of each structure")
    measured: Measured | None = Field(None, description="a task from measured positions, besides the others")


def measured_instance(p: Params, measured: Measured) -> Instance:
    """As many targets as there are molecules, about the middle of the molecules' surroundings."""
    try:
        found = read_positions(measured.positions)
        sites = snap(found.positions - found.positions.mean(axis=0))
        goals = snap(target_positions(measured.shape, len(sites), p.pitch.get(measured.shape, 2.0)))
    except (OSError, ValueError) as error:
        raise UserError(f"nano_assembly.data.measured: {error}") from error
    task = Instance(measured.shape, sites, goals, found.orientation_index, p.box.get(measured.shape, p.default_box))
    if np.abs(np.concatenate([task.starts, task.targets])).max() > task.box / 2:
        raise UserError(f"nano_assembly.data: {measured.positions} and its structure need a box larger than {task.box} nm")
    return task


def data(p: Params, out: Path) -> None:
    """Writes molecules.parquet, targets.parquet and datasheet.json."""
    tasks: dict[str, Instance] = {}
    for shape in p.shapes:
        for seed in p.seeds:
            try:
                task = make_instance(
                    shape, p.n, p.pitch.get(shape, 2.0), p.box.get(shape, p.default_box), p.d_min, seed, p.surplus
                )
            except ValueError as error:
                raise UserError(f"nano_assembly.data, {shape}: {error}") from error
            tasks[instance_name(shape, seed)] = task
    if p.measured is not None:
        tasks["measured-0"] = measured_instance(p, p.measured)
    write_instances(out, tasks)
    sheet = {
        "contact_nm": CONTACT,
        "instances": {
            name: {
                "molecules": len(task.start_sites),
                "shape": task.name,
                "targets": len(task.target_sites),
                "box_nm": task.box,
            }
            for name, task in tasks.items()
        },
        "lattice": "Ag(111), axial coordinates, a0 = 0.2885 nm",
        "licence": "made by this project",
    }
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=1, sort_keys=True) + "\n", encoding="utf-8")
