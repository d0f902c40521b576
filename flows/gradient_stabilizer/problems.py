"""What is trained: each problem gives parameters, a loss per step, and measurements at the end.

All randomness comes from the seed, so that methods that share it see the same weights, batches, noise and spikes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from components.datasets.weather import CHANNELS, clean
from components.language.corpus import contiguous_split, even_windows, random_windows
from components.language.tiny_llama import LLAMA_SHAPES, TinyLlama
from components.lowprec.fake_quant import FP4_LINEARS
from components.sequence.patchtst import PatchTST
from tasks.errors import UserError


class Problem(NamedTuple):
    parameters: list[nn.Parameter]
    loss: Callable[[int], Tensor]  # of step 0, 1, ...; the same batch for the same step and seed
    measure: Callable[[], dict[str, float]]  # at the end


def read_sheet(data: Path) -> dict[str, Any]:
    return json.loads((data / "datasheet.json").read_text(encoding="utf-8"))


def language(q: Any, data: Path, precision: str, seed: int, device: str) -> Problem:
    """Next symbol; `selection_loss` and `loss` on two halves of the validation windows, nats per symbol."""
    sheet = read_sheet(data)["text"]
    train, held = contiguous_split(np.load(data / "tokens.npy", mmap_mode="c"), sheet["train"] / sheet["tokens"])
    torch.manual_seed(seed)
    linear = FP4_LINEARS[precision.removeprefix("fp4_")] if precision.startswith("fp4_") else nn.Linear
    if q.task == "char_llama":
        model = TinyLlama(sheet["symbols"], q.d, q.layers, q.heads, linear=linear)
    else:
        shape = LLAMA_SHAPES[q.task]
        model = TinyLlama(sheet["symbols"], shape.d, shape.layers, shape.heads, shape.ff, linear=linear)
    model.to(device)
    batches = random_windows(train, seq=q.seq, batch=q.batch, generator=torch.Generator().manual_seed(seed))
    half = precision == "fp16"

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.float16, enabled=half):
            return model.loss(inputs.to(device), targets.to(device))

    @torch.no_grad()
    def measure() -> dict[str, float]:
        inputs, targets = even_windows(held, seq=q.seq, count=2 * q.windows)
        found = {}
        for name, start in (("selection_loss", 0), ("loss", 1)):
            x, y = inputs[start::2], targets[start::2]
            parts = [loss_of(a, b).item() * len(a) for a, b in zip(x.split(q.batch * 8), y.split(q.batch * 8), strict=True)]
            found[name] = math.fsum(parts) / len(x)
        return found

    return Problem(list(model.parameters()), lambda step: loss_of(*next(batches)), measure)


def digits(q: Any, data: Path, seed: int) -> Problem:
    """Ten classes of 8 x 8 images by a multilayer perceptron; `accuracy` on the test part, percent."""
    x, y = torch.from_numpy(np.load(data / "digits_x.npy")), torch.from_numpy(np.load(data / "digits_y.npy"))
    count = read_sheet(data)["digits"]["train"]
    torch.manual_seed(seed)
    widths, layers = [x.shape[1], *q.widths], []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        chosen = torch.randint(0, count, (q.batch,), generator=generator)
        return nn.functional.cross_entropy(model(x[chosen]), y[chosen])

    @torch.no_grad()
    def measure() -> dict[str, float]:
        return {"accuracy": 100 * (model(x[count:]).argmax(1) == y[count:]).double().mean().item()}

    return Problem(list(model.parameters()), loss, measure)


def vision_transformer(q: Any, seed: int, device: str) -> Problem:
    """ViT-B/16 on ImageNet in folders `train` and `val` of q.folder; `accuracy` on the latter, percent."""
    try:
        from torchvision import datasets, models, transforms
    except ImportError as error:
        raise UserError(f"weight_decay.task: vit_b_imagenet needs the package torchvision ({error})") from error
    if q.folder is None or not Path(q.folder, "train").is_dir() or not Path(q.folder, "val").is_dir():
        raise UserError(f"weight_decay.folder must hold ImageNet as folders train and val, got {q.folder!r}")
    scale = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    ways = {
        "train": transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *scale]),
        "val": transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *scale]),
    }
    images = {part: datasets.ImageFolder(str(Path(q.folder, part)), way) for part, way in ways.items()}
    torch.manual_seed(seed)
    model = models.vit_b_16(weights=None, num_classes=len(images["train"].classes)).to(device)

    def batches() -> Any:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield from torch.utils.data.DataLoader(images["train"], q.batch, shuffle=True, generator=generator, drop_last=True)

    stream = batches()

    def loss(step: int) -> Tensor:
        x, y = next(stream)
        return nn.functional.cross_entropy(model(x.to(device)), y.to(device))

    @torch.no_grad()
    def measure() -> dict[str, float]:
        model.eval()
        loader = torch.utils.data.DataLoader(images["val"], q.batch)
        hits = [(model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader]
        return {"accuracy": 100 * sum(hits) / len(images["val"])}

    return Problem(list(model.parameters()), loss, measure)


def weather(q: Any, data: Path, level: float, seed: int) -> Problem:
    """Forecasts by PatchTST; a share of the training inputs gets noise of standard deviation level * the largest input.

    `mse` on untouched test windows, in squared standard deviations."""
    sheet = read_sheet(data)["weather"]
    raw = pd.read_parquet(data / "weather.parquet")[list(CHANNELS)].to_numpy()
    series = torch.from_numpy(clean(raw)).float()
    largest = float(np.abs(raw if q.max_from == "raw" else clean(raw))[: sheet["train_rows"]].max())
    starts, tests = (torch.from_numpy(np.load(data / f"windows_{part}.npy")) for part in ("train", "test"))
    context, horizon = sheet["context"], sheet["horizon"]
    offsets = torch.arange(context + horizon)
    torch.manual_seed(seed)
    model = PatchTST(context, horizon, patch=q.patch, d=q.d, heads=q.heads, layers=q.layers)
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        window = series[starts[torch.randint(0, len(starts), (q.batch, 1), generator=generator)] + offsets]
        x, y = window[:, :context], window[:, context:]
        # Drawn at every level, so that the levels see the same windows.
        hit, noise = torch.rand(x.shape, generator=generator) < q.prob, torch.randn(x.shape, generator=generator)
        return nn.functional.mse_loss(model(x + hit * noise * level * largest), y)

    @torch.no_grad()
    def measure() -> dict[str, float]:
        model.eval()
        window = series[tests[:, None] + offsets]
        return {"mse": nn.functional.mse_loss(model(window[:, :context]), window[:, context:]).item()}

    return Problem(list(model.parameters()), loss, measure)


class Quadratic:
    """f(x) = sum_i lambda_i x_i^2 / 2 with lambda from 1 / cond to 1; noisy gradients, some replaced by spikes.

    A spike is a random direction of norm `factor` times the running norm (rate 0.9) of the gradients before it. `spikes` says at
    which steps they come; None: each step with probability `prob`."""

    def __init__(self, q: Any, seed: int, spikes: frozenset[int] | None = None) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.curvature = torch.logspace(-math.log10(q.cond), 0, q.dim)
        self.x = nn.Parameter(torch.randn(q.dim, generator=self.generator))
        self.q, self.spikes, self.running = q, spikes, 0.0

    def value(self) -> float:
        return 0.5 * float((self.curvature * self.x.detach().square()).sum())

    def set_gradient(self, step: int) -> None:
        """Fill `x.grad`; draws as many numbers whether there is a spike or not."""
        q = self.q
        noise, direction = torch.randn(2, q.dim, generator=self.generator)
        chance = float(torch.rand((), generator=self.generator))
        g = self.curvature * self.x.detach() + q.noise * noise
        norm = float(g.norm())
        spike = chance < q.prob if self.spikes is None else step in self.spikes
        if spike and step:
            g = direction * (q.factor * self.running / float(direction.norm()))
        else:
            self.running = norm if step == 0 else 0.9 * self.running + 0.1 * norm
        self.x.grad = g
