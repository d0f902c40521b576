"""The paper's own scale: causal language models on SST-2, seen through the logits of two verbalisers.

A sentence becomes "<text> It was", and the model's next-token logits of " great" and " terrible" are its two outputs; so the kernel
of a pair of sentences is 2 x 2 whatever the vocabulary. The package datasets is not among this project's dependencies: it is
imported when the paper profile asks for it, and so is transformers, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from components.optim.entk import entk, expected_sq_error, jacobian
from components.optim.zeroth_order import ZOSGD, ZOGradient

PROMPT = "{} It was"
VERBALISERS = (" terrible", " great")  # labels 0 and 1
SPLITS = {"train": 67349, "validation": 872}
MODELS = ("facebook/opt-125m", "facebook/opt-1.3b", "mistralai/Mistral-7B-v0.1")


def load_sst2() -> pd.DataFrame:
    """GLUE's SST-2 from the hub: columns split, text, label. ImportError without the package datasets, ValueError for other sizes."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "SST-2 needs the package datasets, an extra of the paper profile that is not installed: pip install datasets"
        ) from error
    found = load_dataset("nyu-mll/glue", "sst2")
    frames = [
        pd.DataFrame({"split": split, "text": found[split]["sentence"], "label": found[split]["label"]}) for split in SPLITS
    ]
    sizes = {split: len(frame) for split, frame in zip(SPLITS, frames, strict=True)}
    if sizes != SPLITS:
        raise ValueError(f"SST-2 must have {SPLITS} sentences, found {sizes}")
    return pd.concat(frames, ignore_index=True)


def load_causal_lm(name: str, dtype: str, device: str) -> tuple[nn.Module, Any]:
    """Model in eval() mode and its tokenizer, by name from the hub or from a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
    return model.eval().to(device), AutoTokenizer.from_pretrained(name)


def verbaliser_ids(tokenizer: Any) -> list[int]:
    """First token of each verbaliser. ValueError where the two begin with the same token."""
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in VERBALISERS]
    # Tokenizers that mark beginnings of words put a token for the bare space first.
    first = [tokens[-1] if len(tokens) > 1 and tokens[0] == ids[1 - k][0] else tokens[0] for k, tokens in enumerate(ids)]
    if first[0] == first[1]:
        raise ValueError(f"the verbalisers {VERBALISERS} begin with the same token {first[0]}")
    return first


class VerbaliserModel(nn.Module):
    """A causal language model as a classifier: token ids (N, L), padded on the right with -1, to logits (N, 2) in float32."""

    def __init__(self, model: nn.Module, ids: list[int]) -> None:
        super().__init__()
        self.model, self.ids = model, ids

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens >= 0
        if not mask.any(1).all():
            raise ValueError("every row of token ids needs at least one token")
        logits = self.model(input_ids=tokens.clamp_min(0), attention_mask=mask.long()).logits
        last = mask.sum(1) - 1
        return logits[torch.arange(len(tokens), device=tokens.device), last][:, self.ids].float()


def encode(tokenizer: Any, texts: list[str], length: int) -> Tensor:
    """Token ids (N, L) of the prompts, padded on the right with -1.

    Text beyond `length` tokens is cut at the front of the prompt, so that "It was" stays."""
    rows = [tokenizer(PROMPT.format(text.strip()))["input_ids"][-length:] for text in texts]
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def batches(size: int, batch: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Rows of each step, from a generator of their own: the same for first-order and zeroth-order runs."""
    generator = np.random.default_rng([seed, 1])
    for _ in range(steps):
        yield generator.choice(size, min(batch, size), replace=False)


def trajectory(
    net: VerbaliserModel,
    tokens: Tensor,
    labels: Tensor,
    probes: Tensor,
    *,
    eta: float,
    steps: int,
    batch: int,
    seed: int,
    **zo: Any,
) -> pd.DataFrame:
    """Train in place, by ZOSGD with the options `zo`, or first-order without any; columns step, loss and the probes' logits.

    Logits are lists of 2 N numbers, before the first step (step 0) and after each."""
    parameters = list(net.parameters())
    optimizer = ZOSGD(parameters, eta, seed=seed, **zo) if zo else torch.optim.SGD(parameters, eta)

    def observed() -> list[float]:
        with torch.no_grad():
            return net(probes).flatten().tolist()

    rows = [{"step": 0, "loss": math.nan, "logits": observed()}]
    for step, chosen in enumerate(batches(len(tokens), batch, steps, seed), start=1):
        at = torch.from_numpy(chosen)
        x, y = tokens[at].to(probes.device), labels[at].to(probes.device)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            return nn.functional.cross_entropy(net(x), y)

        if zo:
            loss = optimizer.step(closure)
        else:
            optimizer.zero_grad()
            value = closure()
            value.backward()
            optimizer.step()
            loss = value.item()
        rows.append({"step": step, "loss": loss, "logits": observed()})
    return pd.DataFrame(rows)


def kernel_error(
    net: VerbaliserModel, first: Tensor, second: Tensor, *, perturbations: int, mu: float, seed: int, step: int
) -> dict[str, float]:
    """Squared error of the projected kernel of two inputs (1, L), from forward passes alone, its law, and ||K||_F^2.

    The tangent vectors' projections are differences of logits at perturbed weights; only the exact kernel needs gradients.
    """
    parameters = list(net.parameters())
    flat = torch.nn.utils.parameters_to_vector(parameters).detach()
    Jo, Ju = (jacobian(net, x)[0].float() for x in (first, second))
    zo, S = ZOGradient(perturbations, mu, seed=seed), ([], [])

    @torch.no_grad()
    def logits() -> list[Tensor]:
        return [net(first)[0].double(), net(second)[0].double()]

    for u in zo.directions(step, flat.numel()):
        u = u.to(flat)
        torch.nn.utils.vector_to_parameters(flat + mu * u, parameters)
        plus = logits()
        torch.nn.utils.vector_to_parameters(flat - mu * u, parameters)
        for side, high, low in zip(S, plus, logits(), strict=True):
            side.append((high - low) / (2 * mu * math.sqrt(perturbations)))
    torch.nn.utils.vector_to_parameters(flat, parameters)
    K, projected = entk(Jo, Ju).double(), torch.stack(S[0], 1) @ torch.stack(S[1], 1).T
    return {
        "square_error": float((projected - K).square().sum()),
        "law": expected_sq_error(Jo, Ju, perturbations),
        "square_norm": float(K.square().sum()),
    }
