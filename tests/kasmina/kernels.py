"""Where tests of our kernels run: on a GPU; `TRITON_INTERPRET=1` tries them without one, slowly, where Triton is installed."""

from __future__ import annotations

import os

import pytest
import torch

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
needs_kernels = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ, reason="needs CUDA, or Triton's interpreter"
    ),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
