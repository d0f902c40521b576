"""Planted recall texts of two lengths, and natural text as a row of tokens."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from components.datasets.planted_recall import RecallLanguage, RecallTexts
from components.language.corpus import contiguous_split, load_shakespeare
from flows.l2a.store import SETS, save_tokens, texts_file
from tasks import track
from tasks.errors import UserError
from tasks.params import StageParams, Strict


class Language(Strict):
    """The planted recall language."""

    nb: int = Field(16, ge=1, description="background symbols")
    nk: int = Field(4, ge=1, description="keys")
    nv: int = Field(8, ge=1, description="values")
    pairs: int = Field(4, ge=1, description="definitions of a text")
    pq: float = Field(0.2, ge=0, le=1, description="probability of a recall where one may start")
    keep: float = Field(0.85, ge=0, le=1, description="probability that the background follows its map")


class Recall(Strict):
    """Planted texts."""

    language: Language = Field(Language(), description="language")
    short: int = Field(48, ge=8, description="tokens of a text of the base model")
    long: int = Field(192, ge=8, description="tokens of a text of the extension")
    train_short: int = Field(12800, ge=1, description="short texts to train on")
    train_long: int = Field(2400, ge=1, description="long texts to train on")
    choice: int = Field(200, ge=1, description="long texts that choices are made on")
    report: int = Field(400, ge=1, description="long texts that are reported")


class Text(Strict):
    """Natural text."""

    source: Literal["shakespeare", "files"] = Field(
        "shakespeare", description="packaged characters, or text files with a tokeniser"
    )
    path: str | None = Field(None, description="folder of *.txt documents, for source files")
    tokenizer: str | None = Field(None, description="tokeniser of a hub model or folder, for source files")
    limit: int | None = Field(None, ge=1000, description="only the first so many tokens")
    short: int = Field(64, ge=8, description="tokens of a window of the base model")
    long: int = Field(256, ge=8, description="tokens of a window of the extension")
    train_share: float = Field(
        0.95, gt=0, lt=1, description="share that is trained on; the rest is halved into choice and report"
    )


class Params(StageParams):
    recall: Recall = Field(Recall(), description="planted recall")
    text: Text = Field(Text(), description="natural text")


def tokens_of_files(p: Text) -> tuple[np.ndarray, int]:
    """The documents of a folder, each followed by the end-of-text token: int32 tokens, and the size of the vocabulary."""
    if p.path is None or p.tokenizer is None:
        raise UserError("l2a.data.text: source files needs a path and a tokenizer")
    files = sorted(Path(p.path).glob("*.txt"))
    if not files:
        raise UserError(f"l2a.data.text.path: {p.path} holds no *.txt file; put the long documents there")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(p.tokenizer)
    except OSError as error:
        raise UserError(
            f"l2a.data.text.tokenizer: {p.tokenizer} could not be loaded ({error}); a hub name needs the internet"
        ) from error
    parts, filled = [], 0
    for file in track.progress(files, "documents"):
        ids = tokenizer(file.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
        parts.append(np.asarray(ids, dtype=np.int32))
        filled += len(ids)
        if p.limit is not None and filled >= p.limit:
            break
    return np.concatenate(parts)[: p.limit], len(tokenizer)


def note(path: Path, source: str) -> None:
    track.dataset(path.stem, hashlib.sha256(path.read_bytes()).hexdigest(), source)


def write_recall(p: Recall, out: Path) -> dict[str, Any]:
    language = RecallLanguage(**p.language.model_dump())
    counts = {"train_short": p.train_short, "train_long": p.train_long, "choice": p.choice, "report": p.report}
    sheet: dict[str, Any] = {"symbols": language.vocab, "short": p.short, "long": p.long, "texts": counts}
    for seed, (name, count) in enumerate(counts.items()):
        texts: RecallTexts = language.sample(count, p.short if name == "train_short" else p.long, seed)
        path = texts_file(out, name)
        np.savez_compressed(path, **texts._asdict())
        note(path, "planted recall language")
        sheet[f"{name}: share of recalls"] = float(texts.recall.mean())
    np.save(out / "recall_factors.npy", language.factors())
    sheet["names"] = [language.name(token) for token in range(language.vocab)]
    sheet["language"] = p.language.model_dump()
    return sheet


def write_text(p: Text, assets: dict[str, Path], out: Path) -> dict[str, Any]:
    if p.source == "shakespeare":
        corpus = load_shakespeare(assets["shakespeare"], p.limit)
        tokens, symbols = corpus.tokens, len(corpus.vocab)
    else:
        tokens, symbols = tokens_of_files(p)
    train, rest = contiguous_split(tokens, p.train_share)
    choice, report = contiguous_split(rest, 0.5)
    parts = dict(zip(SETS, (train, choice, report), strict=True))
    for name, part in parts.items():
        if len(part) < p.long + 1:
            raise UserError(f"l2a.data.text: the part {name} has {len(part)} tokens, a window needs {p.long + 1}")
        note(save_tokens(out, name, part), p.source)
    return {
        "symbols": symbols,
        "short": p.short,
        "long": p.long,
        "source": p.source,
        "tokens": {name: len(part) for name, part in parts.items()},
    }


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes recall_{train_short,train_long,choice,report}.npz, recall_factors.npy, text_{train,choice,report}.npy and datasheet.json."""
    sheet = {"recall": write_recall(p.recall, out), "text": write_text(p.text, assets, out)}
    (out / "datasheet.json").write_text(json.dumps(sheet, indent=2, sort_keys=True) + "\n", encoding="utf-8")
