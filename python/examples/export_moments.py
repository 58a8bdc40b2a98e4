"""Writes the moments of an optimizer of PyTorch for `packed-adamw convert --moments`.

    from export_moments import export

    export(optimizer, model.named_parameters(), "moments.safetensors")

takes torch.optim.AdamW and AdamW in few bits of bitsandbytes, torchao and turboadam. Entries of a parameter's state are
written by their own names, `<parameter>.<entry>`, as they are stored: nothing is decoded here.
"""

import json
import struct

import torch

NAMES = {
    torch.uint8: "U8", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
}


def entries_of(optimizer, named_parameters):
    """Tensors by `<parameter>.<entry>`."""
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    entries = {}
    for name, parameter in named_parameters:
        if parameter not in optimizer.state:
            raise ValueError(f"{name}: expected a parameter that has had an update")
        name, group = name.removeprefix("transformer."), groups[parameter]
        state = {"step": 0, **optimizer.state[parameter], "eps": float(group["eps"])}
        state["beta1"], state["beta2"] = map(float, group["betas"])
        for entry, value in flat(state):
            entries[f"{name}.{entry}"] = value
    return entries


def flat(state):
    """Entries below entries, and the parts of tensors that are made of some."""
    for key, value in state.items():
        if isinstance(value, dict):
            inner = flat(value)
            # bitsandbytes hides its tensors from FSDP so.
            hidden = key == "__bnb_optimizer_quant_state__"
            yield from inner if hidden else ((f"{key}.{entry}", part) for entry, part in inner)
        elif hasattr(value, "codes"):
            parts = {part: getattr(value, part) for part in ("codes", "scale", "qmap") if hasattr(value, part)}
            yield from ((f"{key}.{part}", tensor) for part, tensor in parts.items())
        elif isinstance(value, torch.Tensor):
            yield key, value
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield key, torch.tensor([value], dtype=torch.int64 if isinstance(value, int) else torch.float64)


def write(path, tensors):
    """Writes a safetensors file."""
    header, body = {}, bytearray()
    for name, tensor in tensors.items():
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def export(optimizer, named_parameters, path):
    write(path, entries_of(optimizer, named_parameters))
