"""Shared against component scores on a CPU: `python -m benchmarks.quaternion_attention` writes its two sections of RESULTS.md.

CPU time, one thread, medians of rounds in which all forms take turns. Component scores as written (16 products) and fused (four
wide ones, the strong form); the shared score step by step and through torch's `scaled_dot_product_attention`. The real-time
factor is the enhancer's time over the length of the sound, with the weights that training starts from, which do not change it.
"""

from __future__ import annotations

import torch

from benchmarks.results import write_section
from benchmarks.timing import cpu_milliseconds
from components.quaternion.attention import component_attention, shared_attention
from components.speech.enhancer import Enhancer

SHAPES = ((8, 4, 128, 4), (4, 4, 256, 8), (1, 4, 512, 16))
BATCH, SAMPLES, RATE = 4, 8000, 8000


def attention_rows() -> list[tuple[str, ...]]:
    """A row per shape and direction: times, and the ratios that the paper's claim is about."""
    rows = []
    for batch, heads, length, h in SHAPES:
        inputs = [torch.randn(batch, heads, length, 4, h) for _ in range(3)]
        leaves = [x.clone().requires_grad_() for x in inputs]
        gradient = torch.randn_like(inputs[0])
        forms = {
            "16 products": lambda *x: component_attention(*x, fused=False)[0],
            "fused": lambda *x: component_attention(*x)[0],
            "shared": lambda *x: shared_attention(*x, fused=False)[0],
            "shared, SDPA": lambda *x: shared_attention(*x)[0],
        }
        forward = {name: lambda f=form, x=inputs: f(*x) for name, form in forms.items()}
        both = {name: lambda f=form, x=leaves, g=gradient: torch.autograd.grad(f(*x), x, g) for name, form in forms.items()}
        for words, functions in (("forward", forward), ("with backward", both)):
            times = cpu_milliseconds(functions, seconds=5.0, least=25)
            ratios = [
                f"{times[ours] / times[other]:.2f}" for ours in ("shared", "shared, SDPA") for other in ("16 products", "fused")
            ]
            shape = f"B = {batch}, H = {heads}, L = {length}, h = {h}, {words}"
            rows.append((shape, *(f"{times[name]:.2f}" for name in forms), *ratios))
    return rows


def network_rows() -> list[tuple[str, ...]]:
    """A row per form of the enhancer's attention: its real-time factor, and that over the forms with component scores."""
    noisy = 0.1 * torch.randn(BATCH, SAMPLES)
    forms = {
        "component, 16 products": {"kind": "component", "fused": False},
        "component, fused": {"kind": "component"},
        "shared": {"kind": "shared"},
        "none": {"kind": "none"},
        "real, four times the weights": {"kind": "real"},
    }
    models = {name: Enhancer(**options).eval() for name, options in forms.items()}
    with torch.no_grad():
        times = cpu_milliseconds({name: lambda m=model: m(noisy) for name, model in models.items()}, seconds=15.0, least=9)
    seconds = BATCH * SAMPLES / RATE
    plain, fused = times["component, 16 products"], times["component, fused"]
    return [(name, f"{t / 1e3 / seconds:.4f}", f"{t / plain:.2f}", f"{t / fused:.2f}") for name, t in times.items()]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    command = "python -m benchmarks.quaternion_attention"
    columns = (
        "size",
        "16 products, ms",
        "fused, ms",
        "shared, ms",
        "shared by SDPA, ms",
        "shared / 16 products",
        "shared / fused",
    )
    columns = (*columns, "SDPA / 16 products", "SDPA / fused")
    write_section("Quaternion attention: shared over component scores", command, columns, attention_rows())
    columns = ("attention of the enhancer", "real-time factor", "over component, 16 products", "over component, fused")
    write_section("Quaternion speech enhancement: real-time factor", command, columns, network_rows())


if __name__ == "__main__":
    main()
