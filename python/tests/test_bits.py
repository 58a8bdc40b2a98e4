"""The bits of the authority: hashes of a small model after some updates, which its tests write."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from packed_adamw import PackedAdamW

LENGTHS = (1200, 7, 5000)
GOLDEN = Path(__file__).parents[2] / "crates/optimizer/tests/it/golden/updates.txt"
HASHES = dict(line.split() for line in GOLDEN.read_text().splitlines())
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def numbers(salt):
    """The sequence of golden.rs."""
    with numpy.errstate(over="ignore"):
        mixed = numpy.arange(sum(LENGTHS), dtype=numpy.uint32) + numpy.uint32(salt * 0x9E3779B9 % 2**32)
        mixed = mixed * numpy.uint32(2_654_435_761)
        mixed = (mixed ^ mixed >> numpy.uint32(15)) * numpy.uint32(2_246_822_519)
    return torch.from_numpy((mixed.astype(numpy.float64) / 2.0**31 - 1.0).astype(numpy.float32))


def hash_of(parameters):
    found = 0xCBF29CE484222325
    for byte in torch.cat([p.detach().cpu() for p in parameters]).numpy().tobytes():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return f"{found:016x}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", HASHES)
def test_a_small_model_in_every_format(state, device):
    parameters = [nn.Parameter(part.clone().to(device)) for part in numbers(0).split(LENGTHS)]
    optimizer = PackedAdamW(
        parameters, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, state=state, clip_norm=1.0, seed=3
    )
    scale = torch.tensor([1e-2, 1e-4]).repeat(sum(LENGTHS) // 2 + 1)[: sum(LENGTHS)]
    for update in range(1, 6):
        gradients = (numbers(update) * scale).split(LENGTHS)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient.clone().to(device)
        optimizer.step()
    assert hash_of(parameters) == HASHES[state]
