"""Stored moments as tensors, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._cohort import DTYPES, NAMES, Array, Cohort, local

#: Keys of a parameter's state that are no arrays of its format.
OTHERS = ("step", "written", "bias", "remainder")


def tensor_of(element: str, data: bytes) -> Tensor:
    if not data:
        return torch.empty(0, dtype=DTYPES[element])
    return torch.frombuffer(bytearray(data), dtype=DTYPES[element])


def bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def exported(cohorts: list[Cohort], remainders: dict[Tensor, Tensor]) -> dict[Tensor, dict[str, Any]]:
    """The state of every parameter, on its device."""
    states: dict[Tensor, dict[str, Any]] = {}
    for cohort in cohorts:
        arrays, entries = cohort.save()
        update = int(entries["optimizer.update"])
        written = entries.get("optimizer.written")
        of_name = {str(position): p for position, p in zip(cohort.positions, cohort.parameters)}
        for name, parameter in of_name.items():
            state = states.setdefault(parameter, {"step": update})
            if written is not None:
                state["written"] = int(written)
            bias = entries.get(f"{name}.bias")
            if bias is not None:
                state["bias"] = bias
            if parameter in remainders:
                state["remainder"] = remainders[parameter].clone()
        for name, element, data in arrays:
            owner, section = name.split(".", 1)
            parameter = of_name[owner]
            states[parameter][section] = tensor_of(element, data).to(local(parameter).device)
    return states


def imported(
    cohort: Cohort, states: dict[Tensor, dict[str, Any]]
) -> tuple[list[Array], dict[str, str]]:
    """Arrays and entries of a cohort's parameters, from their states."""
    arrays: list[Array] = []
    entries: dict[str, str] = {}
    for position, parameter in zip(cohort.positions, cohort.parameters):
        state = states[parameter]
        entries["optimizer.update"] = str(state["step"])
        if "written" in state:
            entries["optimizer.written"] = str(state["written"])
        if "bias" in state:
            entries[f"{position}.bias"] = str(state["bias"])
        for section, tensor in state.items():
            if section not in OTHERS:
                element = NAMES.get(tensor.dtype)
                if element is None:
                    raise ValueError(f"state of parameter {position}, {section}: no array has {tensor.dtype}")
                arrays.append((f"{position}.{section}", element, bytes_of(tensor)))
    return arrays, entries
