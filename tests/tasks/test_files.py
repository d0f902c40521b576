"""Files and folders that appear whole or not at all."""

import os
import stat

import pytest

from tasks.files import atomic_writer, replace_folder, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_half(path, error):
    with atomic_writer(path) as stream:
        stream.write("half")
        stream.flush()
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_write_leaves_the_old_file_and_no_trace(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_that_cannot_be_put_in_place_leaves_no_trace(tmp_path):
    (tmp_path / "a.txt" / "taken").mkdir(parents=True)
    with pytest.raises(OSError, match=r"directory"):
        write_text(tmp_path / "a.txt", "text")
    assert names(tmp_path) == ["a.txt"]


def test_nothing_shows_before_the_end(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with atomic_writer(path) as stream:
        stream.write("text")
        assert not path.exists()
    assert path.read_text() == "text"
    assert names(path.parent) == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_text_has_one_kind_of_line_end(tmp_path):
    write_text(tmp_path / "a.txt", "ä\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "ä\nb\n".encode()


def test_json_of_equal_values_is_equal_bytes(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [0.1, "ä"]})
    write_json(tmp_path / "b.json", {"a": [0.1, "ä"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json").read_text().startswith('{\n  "a": [')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_holds_no_nan(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": value})
    assert names(tmp_path) == []


def test_a_folder_replaces_another_and_nothing_else_is_left(tmp_path):
    new, target = tmp_path / "new", tmp_path / "target"
    for folder, file in ((new, "fresh"), (target, "stale")):
        folder.mkdir()
        (folder / file).touch()
    replace_folder(new, target)
    assert names(target) == ["fresh"]
    assert names(tmp_path) == ["target"]


def test_a_folder_is_put_where_nothing_was(tmp_path):
    (tmp_path / "new").mkdir()
    replace_folder(tmp_path / "new", tmp_path / "deep" / "target")
    assert names(tmp_path) == ["deep"]
    assert names(tmp_path / "deep") == ["target"]


def test_a_file_in_a_folders_place_is_replaced(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "target").write_text("a file")
    replace_folder(tmp_path / "new", tmp_path / "target")
    assert (tmp_path / "target").is_dir()
    assert names(tmp_path) == ["target"]


def test_a_failed_replacement_leaves_the_old_folder(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").touch()
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "missing", tmp_path / "target")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["old"]
