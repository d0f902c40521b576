"""What has to be settled before any test is collected."""

import os
import signal

import torch

# Triton decides when a kernel's module is imported whether it is interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A shell starts background jobs deaf to Ctrl-C, and children inherit that; the tests of Ctrl-C need ears.
signal.signal(signal.SIGINT, signal.default_int_handler)
