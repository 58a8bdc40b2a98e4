"""What all tests ask of the machine."""

import os

import pytest
import torch


def pytest_configure():
    if os.environ.get("REQUIRE_GPU") == "1" and not torch.cuda.is_available():
        raise pytest.UsageError("REQUIRE_GPU=1: expected a CUDA device, found none")
