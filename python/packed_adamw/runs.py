"""Checkpoints of `packed-adamw train`: their weights and moments in PyTorch, and a run in PyTorch that goes on there.

Parameters are told apart by their names, which are those of GPT-2: `h.0.attn.c_attn.weight`, with or without
`transformer.` before it, as Hugging Face's `GPT2LMHeadModel` has them in the same shapes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import _state
from ._cohort import DTYPES, NAMES
from .optimizer import PackedAdamW

PARAMETERS, OPTIMIZER, MANIFEST = "parameters.safetensors", "optimizer.safetensors", "manifest.json"


def load(checkpoint: str | os.PathLike[str], model: nn.Module, optimizer: PackedAdamW) -> int:
    """Overwrites the parameters of `model` and the moments of `optimizer`, which is over them, with those of a
    checkpoint; returns how many updates it has had."""
    folder = Path(checkpoint)
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in (PARAMETERS, OPTIMIZER):
        _check(folder / name, manifest["files"][name]["sha256"])
    weights = _read(folder / PARAMETERS)
    arrays = _read(folder / OPTIMIZER)
    entries = manifest["optimizer"]
    update = int(entries["optimizer.update"])
    states: dict[Tensor, dict[str, Any]] = {}
    own = _named(model)
    if own.keys() != weights.keys():
        raise ValueError(
            f"{folder}: expected the parameters {_few(own)}, found {_few(weights)}"
        )
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise ValueError(f"{name}: expected the shape {tuple(parameter.shape)}, found {tuple(weights[name].shape)}")
        states[parameter] = _state_of(name, arrays, entries, update)
    formats = {name: entries[f"{name}.format"].split("(")[0].split(" ")[0] for name in own}
    for group in optimizer.param_groups:
        names = [name for name, parameter in own.items() if any(parameter is p for p in group["params"])]
        found = {formats[name] for name in names}
        if found - {group["state"]}:
            raise ValueError(f"{folder}: expected the format {group['state']}, found {', '.join(sorted(found))}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    optimizer._restore(states)
    return update


def save(
    checkpoint: str | os.PathLike[str],
    model: nn.Module,
    optimizer: PackedAdamW,
    source: str | os.PathLike[str],
    *,
    updates: int,
    tokens: int,
) -> None:
    """Writes a checkpoint with the parameters of `model` and the moments of `optimizer` that `packed-adamw train
    --resume` goes on from: a copy of `source`, a checkpoint of the same run, `updates` updates and `tokens` training
    tokens later. Beside `source` it becomes the latest of the run; a name is `update-` and eight digits.
    """
    folder, source = Path(checkpoint), Path(source)
    if folder.exists():
        raise FileExistsError(f"{folder}: expected a new folder")
    own = _named(model)
    exported = optimizer.state_dict()["state"]
    positions = optimizer._positions()
    weights = {name: parameter.detach().float().cpu() for name, parameter in own.items()}
    arrays: dict[str, Tensor] = {}
    for name, parameter in own.items():
        for key, value in exported[positions[parameter]].items():
            if key not in _state.OTHERS:
                arrays[f"{name}.{key}"] = value.cpu()
    text = (source / MANIFEST).read_text()
    manifest = json.loads(text)
    new = folder.with_name(folder.name + ".new")
    new.mkdir(parents=True)
    for name in manifest["files"]:
        (new / name).write_bytes((source / name).read_bytes())
    _write(new / PARAMETERS, weights, source / PARAMETERS)
    _write(new / OPTIMIZER, arrays, source / OPTIMIZER)
    # Edited as text, since numbers must stay written as they are.
    for name in (PARAMETERS, OPTIMIZER):
        record = manifest["files"][name]
        text = text.replace(record["sha256"], _sha256(new / name))
        text = _set(text, rf'("{re.escape(name)}": \{{[^}}]*"bytes": )\d+', (new / name).stat().st_size)
    text = _set(text, r'("progress": \{\s*"update": )\d+', manifest["progress"]["update"] + updates)
    text = _set(text, r'("tokens": )\d+', manifest["progress"]["tokens"] + tokens)
    for key in ("update", "written"):
        if f"optimizer.{key}" in manifest["optimizer"]:
            moved = int(manifest["optimizer"][f"optimizer.{key}"]) + updates
            text = _set(text, rf'("optimizer\.{key}": ")\d+', moved)
    bare = re.sub(r'("checksum": ")[0-9a-f]*', r"\1", text)
    checksum = hashlib.sha256(bare.encode()).hexdigest()
    (new / MANIFEST).write_text(re.sub(r'("checksum": ")', rf"\g<1>{checksum}", bare))
    new.rename(folder)
    latest = folder.parent / "latest"
    if latest.is_file():
        pointer = latest.with_name("latest.new")
        pointer.write_text(latest.read_text().replace(source.name, folder.name))
        pointer.replace(latest)


def _set(text: str, pattern: str, value: int) -> str:
    changed, count = re.subn(pattern, rf"\g<1>{value}", text, count=1)
    if count != 1:
        raise ValueError(f"{MANIFEST}: expected an entry like {pattern}, found none")
    return changed


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("transformer."): parameter for name, parameter in model.named_parameters()}


def _state_of(name: str, arrays: dict[str, Tensor], entries: dict[str, str], update: int) -> dict[str, Any]:
    state: dict[str, Any] = {"step": update}
    if "optimizer.written" in entries:
        state["written"] = int(entries["optimizer.written"])
    if f"{name}.bias" in entries:
        state["bias"] = entries[f"{name}.bias"]
    prefix = f"{name}."
    for key, tensor in arrays.items():
        # `h.0.ln_1.weight.m`, not `h.0.ln_1.weight_other.m`.
        if key.startswith(prefix) and "." not in key[len(prefix) :]:
            state[key[len(prefix) :]] = tensor
    return state


def _few(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ValueError(f"{path}: expected SHA-256 {expected}, found {found}")


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(body[start:end]), dtype=dtype) if end > start else torch.empty(0, dtype=dtype)
        tensors[name] = flat.view(entry["shape"])
    return tensors


def _write(path: Path, tensors: dict[str, Tensor], like: Path) -> None:
    """Writes tensors in the order and under the header of another file with tensors of the same names and shapes."""
    data = like.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if entries.keys() != tensors.keys():
        raise ValueError(f"{like}: expected the tensors {_few(tensors)}, found {_few(entries)}")
    body = bytearray(len(data) - 8 - length)
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        found = _state.bytes_of(tensors[name])
        if entry["dtype"] != NAMES[tensors[name].dtype] or len(found) != end - start:
            raise ValueError(f"{like}, {name}: expected {entry['dtype']} in {end - start} bytes, found {len(found)}")
        body[start:end] = found
    path.write_bytes(data[: 8 + length] + bytes(body))
