"""Writes dynamic-maps.txt: the two 8-bit dynamic maps, as bits of f32, made with PyTorch.

    python make_dynamic_maps.py > dynamic-maps.txt

For i = 0..6 the interval from 0.1 to 1 is cut into 2^i (signed) or 2^(i + 1) (unsigned) cells; their middles,
times 10^(i - 6), are entries, besides zero and one, and in the signed map the negatives of the cells. If the
package bitsandbytes is there, its maps are compared with these.
"""

import struct

import torch


def dynamic_map(signed):
    entries = [0.0, 1.0]
    for i in range(7):
        cells = 2**i if signed else 2 ** (i + 1)
        borders = torch.linspace(0.1, 1, cells + 1, dtype=torch.float32)
        means = (borders[:-1] + borders[1:]) / 2.0
        scaled = [10 ** (i - 6) * mean for mean in means.tolist()]
        entries += scaled
        if signed:
            entries += [-entry for entry in scaled]
    return torch.tensor(sorted(entries), dtype=torch.float32)


def main():
    try:
        from bitsandbytes.functional import create_dynamic_map
    except ImportError:
        create_dynamic_map = None
    print("# map code f32-bits value")
    for name, signed in [("signed", True), ("unsigned", False)]:
        entries = dynamic_map(signed)
        assert len(entries) == 256 and bool((entries[1:] > entries[:-1]).all())
        if create_dynamic_map is not None:
            assert torch.equal(entries, create_dynamic_map(signed=signed)), name
        for code, entry in enumerate(entries.tolist()):
            bits = struct.unpack("<I", struct.pack("<f", entry))[0]
            print(f"{name} {code} {bits:08x} {entry:.9e}")


main()
