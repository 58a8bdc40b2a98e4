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
from ._cohort import NAMES
from ._native import join
from .optimizer import PackedAdamW

#: The section that belongs to a tensor as a whole: every part has all of it.
OF_TENSOR = "m_scales"
#: The name of a rank's part of the moments.
_PART = re.compile(r"optimizer-(\d+)-of-(\d+)\.safetensors")
PARAMETERS, OPTIMIZER, MANIFEST = "parameters.safetensors", "optimizer.safetensors", "manifest.json"


def load(checkpoint: str | os.PathLike[str], model: nn.Module, optimizer: PackedAdamW) -> int:
    """Overwrites the parameters of `model` and the moments of `optimizer`, which is over them, with those of a
    checkpoint; returns how many updates it has had."""
    folder = Path(checkpoint)
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in (PARAMETERS, *_optimizer_files(folder, manifest)):
        _check(folder / name, manifest["files"][name]["sha256"])
    weights = _File(folder / PARAMETERS).tensors()
    arrays, entries = _moments(folder, manifest)
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
    files = _optimizer_files(source, manifest)
    _write([new / PARAMETERS], weights, [_File(source / PARAMETERS)])
    _write([new / name for name in files], arrays, [_File(source / name).later(updates) for name in files])
    # Edited as text, since numbers must stay written as they are.
    for name in (PARAMETERS, *files):
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


def _optimizer_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """The files with the moments: one, or one of each rank that had a part of them."""
    names = [name for name in manifest["files"] if name == OPTIMIZER or _PART.fullmatch(name)]
    count = {int(match[2]) for name in names if (match := _PART.fullmatch(name))}
    if names != [OPTIMIZER] and count != {len(names)}:
        raise ValueError(f"{folder}: expected {OPTIMIZER}, or a part of every rank, found {_few(names) or 'neither'}")
    return sorted(names)


class _File:
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        self.path, self.head, self.body = path, data[: 8 + length], memoryview(data)[8 + length :]
        #: What the file says besides: what its tensors are parts of.
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self.entries: dict[str, dict[str, Any]] = header

    def bytes_of(self, name: str) -> bytes:
        start, end = self.entries[name]["data_offsets"]
        return bytes(self.body[start:end])

    def later(self, updates: int) -> _File:
        """The same file as of a later update, where it says of which one it is."""
        text = self.head[8:].decode()
        for key in ("optimizer.update", "optimizer.written"):
            if key in self.metadata:
                text = _set(text, rf'("{re.escape(key)}":")\d+', int(self.metadata[key]) + updates)
        # A header fills words of eight bytes.
        header = text.rstrip(" ").encode()
        header += b" " * (-len(header) % 8)
        self.head = struct.pack("<Q", len(header)) + header
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: _state.tensor_of(entry["dtype"], self.bytes_of(name)).view(entry["shape"])
            for name, entry in self.entries.items()
        }


def _moments(folder: Path, manifest: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The arrays of all moments, and what belongs to them: of a file, or of the parts of a whole."""
    files = [_File(folder / name) for name in _optimizer_files(folder, manifest)]
    if len(files) == 1 and files[0].path.name == OPTIMIZER:
        return files[0].tensors(), manifest["optimizer"]
    parts = [
        ([(name, entry["dtype"], file.bytes_of(name)) for name, entry in file.entries.items()], file.metadata)
        for file in files
    ]
    arrays, entries = join(parts)
    return {name: _state.tensor_of(element, data) for name, element, data in arrays}, entries


def _write(paths: list[Path], tensors: dict[str, Tensor], like: list[_File]) -> None:
    """Writes tensors in the order and under the headers of other files with tensors of the same names and shapes, or
    with parts of them."""
    bodies = [bytearray(len(file.body)) for file in like]
    if like[0].entries.keys() != tensors.keys():
        raise ValueError(f"{like[0].path}: expected the tensors {_few(tensors)}, found {_few(like[0].entries)}")
    for name, tensor in tensors.items():
        found = _state.bytes_of(tensor)
        owner, _, section = name.rpartition(".")
        # Parts lie one after the other in the whole, but for what belongs to a tensor as a whole.
        order = sorted(range(len(like)), key=lambda n: _first_element(like[n], owner))
        at = 0
        for file, body in ((like[n], bodies[n]) for n in order):
            start, end = file.entries[name]["data_offsets"]
            at = 0 if section == OF_TENSOR else at
            if file.entries[name]["dtype"] == NAMES[tensor.dtype]:
                body[start:end] = found[at : at + end - start]
            at += end - start
        dtype = like[0].entries[name]["dtype"]
        if dtype != NAMES[tensor.dtype] or at != len(found):
            raise ValueError(f"{like[0].path}, {name}: expected {dtype} in {at} bytes, found {len(found)}")
    for path, file, body in zip(paths, like, bodies):
        path.write_bytes(file.head + bytes(body))


def _first_element(file: _File, name: str) -> tuple[int, int]:
    """Where the part of a tensor in a file begins and ends."""
    start, end = file.metadata.get(f"{name}.part", "0..0").split(" ")[0].split("..")
    return int(start), int(end)
