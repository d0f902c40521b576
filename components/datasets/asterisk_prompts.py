"""Telephone prompts of the Asterisk exchange, American English: real speech of one speaker.

Datasheet. Source: the Debian package asterisk-core-sounds-en-wav 1.6.1-1. Speaker: Allison Smith (recorded 2003 to 2010, paid for
by Digium, Inc.); licence CC-BY-SA-3.0. 568 recordings, 8,000 Hz, one channel, 16 bits, 1,528.7 s in all: words, digits, sentences.
`read_prompts` leaves out what is shorter than a second or nearly silent (363 recordings, 1,317.3 s stay). One speaker in a studio:
what is learned on it says little about other voices and rooms.
"""

from __future__ import annotations

import lzma
import tarfile
import wave
from pathlib import Path

import numpy as np

FILE = "prompts.tar.xz"
RATE = 8000
RECORDINGS, KEPT = 568, 363


def read_prompts(folder: str | Path, least_seconds: float = 1.0, least_deviation: float = 0.01) -> dict[str, np.ndarray]:
    """Recordings by name, int16, in order of their paths.

    folder : of the asset.   least_seconds, least_deviation : what is shorter, or whose standard deviation (of full scale) is not
    above this, is left out.

    Raises FileNotFoundError where the file is not there, ValueError where it is no such archive or a recording is of another kind."""
    path = Path(folder) / FILE
    found: dict[str, np.ndarray] = {}
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                if member.name.endswith(".wav"):
                    samples = _samples(archive.extractfile(member), member.name)
                    if len(samples) >= least_seconds * RATE and samples.std() / 32768 > least_deviation:
                        found[member.name.split("/sounds/")[-1].removesuffix(".wav")] = samples
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is no archive of recordings: {error}") from error
    return found


def _samples(stream: object, name: str) -> np.ndarray:
    with wave.open(stream) as recording:
        if (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) != (RATE, 1, 2):
            raise ValueError(f"{name} must be one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(recording.readframes(recording.getnframes()), dtype="<i2").astype(np.int16)
