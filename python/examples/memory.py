"""Memory that the optimizer of a model takes, before and after: measured on the device, in one table.

    python examples/memory.py [MILLIONS]
"""

import sys

import torch
from torch import nn

from packed_adamw import PackedAdamW, formats

if not torch.cuda.is_available():
    sys.exit("skipped: no CUDA device")
elements = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 350_000_000
weight = nn.Parameter(torch.randn(elements, device="cuda") * 0.02)
weight.grad = torch.randn_like(weight) * 1e-3


def taken(make):
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    optimizer = make([weight])
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return before - torch.cuda.mem_get_info()[0]


rows = [("torch.optim.AdamW", taken(lambda p: torch.optim.AdamW(p, fused=True)))]
rows += [(name, taken(lambda p: PackedAdamW(p, state=name))) for name, _, _ in formats()]
print(f"{elements:,} parameters\n{'optimizer':20}{'MB of state':>14}{'bytes a parameter':>20}")
for name, size in rows:
    print(f"{name:20}{size / 1e6:14.1f}{size / elements:20.3f}")
