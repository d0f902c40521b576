"""Triton decides when a kernel's module is imported whether it is interpreted, so it is told before any test is collected."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
