"""Tokens of the C4 corpus, streamed from its hub and written to one file, for training at a paper's scale.

Needs the internet and the packages `datasets` and `transformers`, which nothing else here uses.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np


def stream_tokens(
    out: str | Path, count: int, *, tokenizer: str, dataset: str = "allenai/c4", config: str = "en", split: str = "train"
) -> tuple[np.ndarray, int]:
    """Write the first `count` tokens to `out` (npy, uint16), documents separated by the end-of-text token.

    Parameters
    ----------
    count : tokens wanted, at least 1.   tokenizer : model id whose tokenizer is used, at most 65,536 symbols.
    dataset, config, split : as `datasets.load_dataset` knows them; read as a stream, in order.

    Returns the tokens as a memory map (count,), and the number of symbols.

    Raises
    ------
    ModuleNotFoundError : `datasets` or `transformers` is not installed.
    ValueError : count below 1, a vocabulary that is too large, or a stream that ends before.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    modules = []
    for name in ("datasets", "transformers"):
        try:
            modules.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"C4 needs the package {name}: `pip install datasets transformers`") from error
    datasets, transformers = modules
    encoder = transformers.AutoTokenizer.from_pretrained(tokenizer)
    symbols = len(encoder)
    if symbols > 1 << 16:
        raise ValueError(f"tokens are stored in 16 bits, but {tokenizer} has {symbols} symbols")
    tokens = np.lib.format.open_memmap(out, mode="w+", dtype=np.uint16, shape=(count,))
    filled = 0
    for document in datasets.load_dataset(dataset, config, split=split, streaming=True):
        ids = [*encoder(document["text"], add_special_tokens=False)["input_ids"], encoder.eos_token_id]
        part = ids[: count - filled]
        tokens[filled : filled + len(part)] = part
        filled += len(part)
        if filled == count:
            tokens.flush()
            return tokens, symbols
    raise ValueError(f"{dataset} {config} {split} ended after {filled} tokens, {count} are wanted")
