"""Writes published-ustate1q.txt: updates of the package turboadam 0.2.0 on the CPU, each with the state before it.

    python make_published_ustate.py > published-ustate1q.txt

Arrays are hexadecimal bytes as they lie in memory. Every update begins from the state that the one before it
left, and a reader checks it alone: states that differ in a last bit draw apart over many updates.
"""

import struct

import torch
from turboadam import TurboAdam
from turboadam.quantize import decompress_v_state
from turboadam.ustate import reconstruct_first_moment

BETAS, EPS = (0.9, 0.999), 1e-8


def hexed(tensor):
    tensor = tensor.detach().contiguous().flatten()
    return bytes(tensor.view(torch.uint8).tolist()).hex() or "-"


def scales(ustate):
    names = ("decode_step", "encode_step", "rms_accumulator")
    return b"".join(struct.pack("<f", float(ustate[name])) for name in names).hex()


def payload(state):
    ustate, v = state["ustate"], state["v_state"]
    return " ".join([hexed(ustate["codes"]), hexed(ustate["means"]), scales(ustate), hexed(v["indices"]), hexed(v["scales"])])


def main():
    torch.manual_seed(0)
    print("# case v_bits elements weight_decay, then for every update: gradient, parameters before, state before")
    print("# (codes means scales v-codes v-endpoints), then parameters, m and v, decoded, and the state after")
    for v_bits, elements, weight_decay in [(4, 150, 0.0), (4, 256, 0.1), (2, 150, 0.1), (3, 129, 0.0), (6, 130, 0.0), (8, 96, 0.1)]:
        print(f"case {v_bits} {elements} {weight_decay}")
        p = torch.nn.Parameter(torch.randn(elements) * 0.1)
        optimizer = TurboAdam(
            [p],
            lr=1e-3,
            betas=BETAS,
            eps=EPS,
            weight_decay=weight_decay,
            v_bits=v_bits,
            min_m_compress_elements=0,
            min_v_compress_elements=0,
        )
        for update in range(1, 6):
            p.grad = torch.randn(elements) * 1e-2 * torch.exp(torch.randn(elements))
            before = payload(optimizer.state[p]) if update > 1 else "fresh"
            print("update", update, hexed(p.grad), hexed(p.data), before)
            optimizer.step()
            state = optimizer.state[p]
            v = decompress_v_state(state["v_state"])
            m = reconstruct_first_moment(state["ustate"], v, update, *BETAS, EPS)
            print("after", hexed(p.data), hexed(m), hexed(v), payload(state))


main()
