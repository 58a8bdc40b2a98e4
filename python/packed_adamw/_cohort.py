"""Parameters of one device that have had the same number of updates: one engine, one step."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Iterable, Sequence, Union

import torch
from torch import Tensor

from ._native import Engine
from ._shards import Shard, add_up

#: A stored array: its name, element type and bytes.
Array = tuple[str, str, bytes]
#: A learning rate, or the address of one on a device.
Rate = Union[float, tuple[int]]

#: The dtypes of stored arrays, by the names of safetensors.
DTYPES = {
    "U8": torch.uint8,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.int32,
    "F32": torch.float32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Entries of a stored state that hold for all its tensors.
COMMON_ENTRIES = ("optimizer.update", "optimizer.written")

_data_ptr = Tensor.data_ptr
_is_contiguous = Tensor.is_contiguous
_dtype = attrgetter("dtype")


def local(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that lies here; other tensors themselves."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def is_dense(tensor: Tensor) -> bool:
    """Whether elements fill memory without gaps, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    strides = sorted(zip(tensor.stride(), tensor.shape))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def check_parameter(parameter: Tensor, name: str) -> None:
    """Says in one sentence why a parameter cannot be updated in place."""
    tensor = local(parameter)
    found = None
    if tensor.is_sparse or tensor.layout != torch.strided:
        found = f"layout {tensor.layout}"
    elif tensor.dtype not in (torch.float32, torch.bfloat16):
        found = f"{tensor.dtype}"
    elif tensor.device.type not in ("cpu", "cuda"):
        found = f"device {tensor.device}"
    elif not is_dense(tensor):
        found = f"strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}"
    if found:
        raise ValueError(
            f"parameter {name}: expected a dense torch.float32 or torch.bfloat16 tensor on a CPU or CUDA "
            f"device, found {found}"
        )


class Cohort:
    """An engine over `parameters`, each with its position among all parameters and its group's settings."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        positions: Sequence[int],
        groups: Sequence[dict[str, Any]],
        group_of: Sequence[int],
        gradient_dtypes: Sequence[torch.dtype],
        remainders: dict[Tensor, Tensor],
        options: tuple[float | None, bool, int],
        shards: Sequence[Shard | None] | None = None,
        parts: Sequence[tuple[int, int, int, int] | None] | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.positions = list(positions)
        self.group_of = list(group_of)
        self.device = local(parameters[0]).device
        if is_capturing(self.device):
            raise RuntimeError("expected a step outside of a capture before the first one inside, found none")
        # Positions in `param_groups` of the groups that have tensors here.
        self.groups = sorted(set(group_of))
        self.options = options
        self.shards = list(shards or [None] * len(parameters))
        self._sharing = next((shard.group for shard in self.shards if shard is not None), None)
        self._is_plain = all(
            not hasattr(parameter, "to_local") and parameter.is_contiguous() for parameter in parameters
        )
        self.gradient_dtypes = list(gradient_dtypes)
        self._remainders = [remainders.get(parameter) for parameter in parameters]
        self._remainder_addresses = [
            0 if remainder is None else remainder.data_ptr() for remainder in self._remainders
        ]
        self._settings = [self._settings_of(groups[g]) for g in self.groups]
        tensors = [
            (
                str(position),
                local(parameter).numel(),
                self.groups.index(group),
                local(parameter).dtype == torch.bfloat16,
                gradient_dtype == torch.bfloat16,
                part,
            )
            for parameter, position, group, gradient_dtype, part in zip(
                parameters, positions, group_of, gradient_dtypes, parts or [None] * len(parameters)
            )
        ]
        biases = [groups[g]["bias"] for g in self.groups]
        native_groups = [
            (groups[g]["state"], *settings, None if bias == "auto" else bias)
            for g, settings, bias in zip(self.groups, self._settings, biases)
        ]
        device = -1 if self.device.type == "cpu" else self.device.index
        self.engine = Engine(device, current_stream(self.device), tensors, native_groups, *options)

    @staticmethod
    def _settings_of(group: dict[str, Any]) -> tuple[tuple[float, float], float, float]:
        beta1, beta2 = group["betas"]
        return (float(beta1), float(beta2)), float(group["eps"]), float(group["weight_decay"])

    def plain_gradients(self) -> list[Tensor] | None:
        """The gradients, if every parameter has one and all are as they most often are: dense, contiguous like their
        parameters, of the dtypes that the engine was made for. This is what a step spends the host's time on."""
        if not self._is_plain:
            return None
        # That one may be missing is seen below.
        gradients: list[Any] = [parameter.grad for parameter in self.parameters]
        try:
            if list(map(_dtype, gradients)) == self.gradient_dtypes and all(map(_is_contiguous, gradients)):
                return gradients
        except (AttributeError, TypeError, RuntimeError):
            # One is missing, or not strided.
            pass
        return None

    def step(self, groups: Sequence[dict[str, Any]], gradients: Sequence[Tensor]) -> None:
        """One update from `gradients`, which have the dtypes that the engine was made for."""
        rates: list[Rate] = []
        for number, position in enumerate(self.groups):
            group = groups[position]
            settings = self._settings_of(group)
            if settings != self._settings[number]:
                self.engine.set_group(number, *settings)
                self._settings[number] = settings
            rates.append(self._rate(group))
        parameters = self.parameters if self._is_plain else map(local, self.parameters)
        addresses = (
            list(map(_data_ptr, parameters)), self._remainder_addresses, list(map(_data_ptr, gradients)),
        )
        if self._sharing is None:
            self.engine.step(current_stream(self.device), addresses, rates)
            return
        self.engine.measure(current_stream(self.device), addresses, rates)
        add_up(self.engine.measured(), self.device, self._sharing)
        self.engine.update_parts(addresses)
        add_up(self.engine.spreads(), self.device, self._sharing)
        self.engine.finish()

    def _rate(self, group: dict[str, Any]) -> Rate:
        rate = group["lr"]
        if not isinstance(rate, Tensor):
            return float(rate)
        if rate.device != self.device or self.device.type == "cpu":
            return float(rate)
        if rate.dtype != torch.float32:
            raise ValueError(
                f"lr: expected a torch.float32 tensor on {self.device}, or a number, found {rate.dtype}"
            )
        return (rate.data_ptr(),)

    def save(self) -> tuple[list[Array], dict[str, str]]:
        return self.engine.save()

    def load(self, arrays: Iterable[Array], entries: dict[str, str]) -> None:
        """Takes over those arrays and entries that are about tensors here."""
        names = {str(position) for position in self.positions}
        own = [array for array in arrays if array[0].split(".")[0] in names]
        kept = {f"{name}.bias" for name in names} | set(COMMON_ENTRIES)
        self.engine.load(own, [(key, value) for key, value in entries.items() if key in kept])
