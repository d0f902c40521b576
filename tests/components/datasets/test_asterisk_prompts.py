"""Recordings inside an archive: order, what is left out, and the packaged ones where they are."""

import io
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest

from components.datasets.asterisk_prompts import FILE, KEPT, RATE, RECORDINGS, read_prompts

ASSET = Path(__file__).resolve().parents[3] / "data/asterisk_prompts"


def recording(samples, rate=RATE, channels=1):
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.asarray(samples, dtype="<i2").tobytes())
    return stream.getvalue()


def archive(folder, members):
    with tarfile.open(folder / FILE, "w:xz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"./usr/share/asterisk/sounds/voice/{name}")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return folder


def loud(seconds, seed=0):
    return np.random.default_rng(seed).integers(-5000, 5000, round(seconds * RATE))


def test_long_and_loud_ones_in_order(tmp_path):
    late, early = loud(1.5), loud(2.0, 1)
    members = {"z.wav": recording(late), "a/b.wav": recording(early), "short.wav": recording(loud(0.5))}
    members |= {"silent.wav": recording(np.zeros(RATE * 2)), "CREDITS": b"names"}
    found = read_prompts(archive(tmp_path, members))
    assert list(found) == ["voice/a/b", "voice/z"]
    np.testing.assert_array_equal(found["voice/a/b"], early)
    assert found["voice/z"].dtype == np.int16
    assert len(read_prompts(tmp_path, least_seconds=0.0, least_deviation=-1.0)) == 4


def test_other_recordings_and_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_prompts(tmp_path)
    archive(tmp_path, {"a.wav": recording(loud(1.5), rate=16000)})
    with pytest.raises(ValueError, match="one channel of 16 bits at 8000 Hz"):
        read_prompts(tmp_path)
    (tmp_path / FILE).write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is no archive of recordings"):
        read_prompts(tmp_path)


@pytest.mark.skipif(not ASSET.is_dir(), reason="the asset asterisk_prompts is not there")
def test_the_packaged_recordings_are_the_ones_of_the_datasheet():
    every = read_prompts(ASSET, 0.0, -1.0)
    assert len(every) == RECORDINGS
    kept = [x for x in every.values() if len(x) >= RATE and x.std() / 32768 > 0.01]
    assert len(kept) == KEPT and sum(map(len, kept)) / RATE == pytest.approx(1317.3, abs=0.05)
