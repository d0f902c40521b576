"""The text, split into training, choosing and reporting parts, and the planted quadratics."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from components.language.c4 import stream_tokens
from components.language.corpus import contiguous_split, load_shakespeare
from components.optim.quadratics import Quadratics, descent_problem, magnitude_bench
from tasks import track
from tasks.params import StageParams, Strict


class Bench(Strict):
    """Scalar quadratics at three kinds of magnitude."""

    n: int = Field(4000, ge=10, description="problems in each of the three groups")
    seeds: int = Field(5, ge=1, description="draws of the problems, from seed 0")
    descent_n: int = Field(200, ge=10, description="problems of the descent check")


class Params(StageParams):
    source: Literal["shakespeare", "c4"] = Field("shakespeare", description="the packaged texts, or C4 (needs the internet)")
    limit: int | None = Field(None, ge=20_000, description="characters to keep, or tokens to stream; null: all the texts")
    train_share: float = Field(0.95, gt=0, lt=1, description="first part of the text; the rest is halved: to choose, to report")
    tokenizer: str = Field("huggyllama/llama-7b", description="model id of C4's tokenizer")
    bench: Bench = Field(Bench(), description="planted quadratics")


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def save_problems(path: Path, draws: list[Quadratics]) -> None:
    """One archive: w0, w_star and h of shape (seeds, groups, n)."""
    np.savez_compressed(path, **{name: np.stack([getattr(d, name) for d in draws]) for name in Quadratics._fields})


def data(p: Params, assets: dict[str, Path], out: Path) -> None:
    """Writes tokens.npy, vocab.json, bench.npz, descent.npz, datasheet.json and parameters.json."""
    if p.source == "c4":
        if p.limit is None:
            raise ValueError("mplus_adam.data.limit must say how many tokens of C4 are streamed")
        tokens, symbols = stream_tokens(out / "tokens.npy", p.limit, tokenizer=p.tokenizer)
        vocab = {"tokenizer": p.tokenizer, "size": symbols}
        licence = "ODC-BY"
    else:
        corpus = load_shakespeare(assets["shakespeare"], p.limit)
        tokens = corpus.tokens
        np.save(out / "tokens.npy", tokens)
        vocab = {"symbols": corpus.vocab, "size": len(corpus.vocab)}
        licence = "CC-BY-2.5"
    train, held_out = contiguous_split(tokens, p.train_share)
    choice, report = contiguous_split(held_out, 0.5)
    sizes = {"train": len(train), "choice": len(choice), "report": len(report)}
    seeds = range(p.bench.seeds)
    save_problems(out / "bench.npz", [magnitude_bench(p.bench.n, seed) for seed in seeds])
    save_problems(out / "descent.npz", [descent_problem(p.bench.descent_n, seed) for seed in seeds])
    sheet = {"source": p.source, "licence": licence, "tokens": len(tokens), "parts": sizes, "sha256": digest(tokens)}
    for name, content in (("vocab", vocab), ("datasheet", sheet), ("parameters", p.model_dump())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    track.dataset(p.source, sheet["sha256"], "packaged texts" if p.source == "shakespeare" else "allenai/c4")
