"""Known answers, and the same words as Triton's own generator."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.philox import mix, philox_words

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_known_answer():
    """The published test vector of Philox4x32-10 for counter 0 and key 0."""
    assert philox_words(0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@triton.jit
def _draw(out_ptr, key, BLOCK: tl.constexpr):
    counter = tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(key, counter)
    for lane in tl.static_range(4):
        word = a if lane == 0 else (b if lane == 1 else (c if lane == 2 else d))
        tl.store(out_ptr + counter * 4 + lane, word)


@pytest.mark.parametrize("key", [0, 1, mix(1, 2, 3), (1 << 63) - 1])
def test_same_words_as_triton(key):
    out = torch.empty(64, dtype=torch.int32, device=DEVICE)
    _draw[(1,)](out, key, BLOCK=16)
    assert torch.equal(out.cpu().long() & 0xFFFFFFFF, philox_words(key, 64))


def test_mix_separates_its_parts():
    keys = {mix(seed, step, tensor) for seed in range(5) for step in range(50) for tensor in range(20)}
    assert len(keys) == 5000 and all(0 <= key < 1 << 63 for key in keys)
    assert mix(1, 2) != mix(2, 1) and mix(0) != mix(0, 0)
