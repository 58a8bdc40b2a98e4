"""Makes foreign_states.json: states of AdamW of other packages after three updates, as export_moments.py finds them, and
what those packages decode them to.

    python make_foreign_states.py     (torch, bitsandbytes, torchao 0.x and turboadam 0.2.0)
"""

import json
import sys
from pathlib import Path

import torch

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here.parents[4] / "python/examples"), str(here.parents[4] / "python")]
from export_moments import NAMES, entries_of

LENGTH, STRIDE, STEPS = 4096, 13, 3


def optimizers(parameter):
    import bitsandbytes
    from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
    from turboadam import TurboAdam

    yield "torch", lambda p: torch.optim.AdamW(p, lr=1e-3)
    yield "bitsandbytes", lambda p: bitsandbytes.optim.AdamW8bit(p, lr=1e-3)
    yield "torchao 8 bits", lambda p: AdamW8bit(p, lr=1e-3)
    yield "torchao 4 bits", lambda p: AdamW4bit(p, lr=1e-3)
    yield "torchao fp8", lambda p: AdamWFp8(p, lr=1e-3)
    yield "turboadam", lambda p: TurboAdam(p, lr=1e-3)
    yield "turboadam 3 bits", lambda p: TurboAdam(p, lr=1e-3, v_bits=3)


def decoded(state, group, name):
    """The moments, by the package itself."""
    if name == "bitsandbytes":
        quant = state.get("__bnb_optimizer_quant_state__", state)
        from bitsandbytes.functional import dequantize_blockwise

        return [
            dequantize_blockwise(
                quant[f"state{n}"], absmax=quant[f"absmax{n}"], code=quant[f"qmap{n}"], blocksize=256
            )
            for n in (1, 2)
        ]
    if name.startswith("turboadam"):
        from turboadam import oneq, ustate

        v = oneq.decompress_v(state["v_state"])
        beta1, beta2 = group["betas"]
        return [ustate.reconstruct_first_moment(state["ustate"], v.view(-1), state["step"], beta1, beta2, group["eps"]), v]
    both = [state["exp_avg"], state["exp_avg_sq"]]
    return [one.dequantize() if hasattr(one, "codes") else one for one in both]


cases = {}
for name, make in optimizers(None):
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(LENGTH // 64, 64))
    optimizer = make([parameter])
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-2
        parameter.grad[3] *= 1e-3
        optimizer.step()
    entries = {}
    for entry, tensor in entries_of(optimizer, [("w", parameter)]).items():
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if tensor.dtype == torch.float32 and tensor.numel() == LENGTH:
            # Plain numbers are told by the upper halves of a few: the rest is zero in both.
            tensor = tensor.detach().clone().reshape(-1)
            tensor[torch.arange(LENGTH) % STRIDE != 0] = 0
            data = tensor.to(torch.bfloat16).float().view(torch.uint8).numpy().tobytes()
        entries[entry] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "hex": data.hex()}
    m, v = decoded(optimizer.state[parameter], optimizer.param_groups[0], name)
    picked = [x.detach().float().reshape(-1)[::STRIDE] for x in (m, v)]
    if name == "torch":
        picked = [x.to(torch.bfloat16).float() for x in picked]
    cases[name] = {"entries": entries, "m": picked[0].tolist(), "v": picked[1].tolist()}
out = here / "foreign_states.json"
out.write_text(json.dumps({"length": LENGTH, "stride": STRIDE, "steps": STEPS, "cases": cases}, indent=0) + "\n")
