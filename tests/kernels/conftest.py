"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before a kernel's module is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
