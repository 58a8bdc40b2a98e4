"""Sharded parameters: which run of elements of the whole tensor lies here, and sums over all who have one."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any, Iterable, NamedTuple

import torch
from torch import Tensor

from ._native import block_elements, formats

#: Elements of a chunk of the gradient norm; parts that are cut at multiples of it have the norm of the whole.
CHUNK = 16_384
#: Parameters that were warned of.
_warned: set[str] = set()


class Shard(NamedTuple):
    """A run of elements of a whole tensor, of which every process of a group has one."""

    #: The processes that have the others.
    group: Any
    #: The position of its first element in the whole tensor.
    start: int
    #: The elements of the whole tensor.
    whole: int
    #: What all runs begin and end at multiples of, the end of the tensor excepted.
    border: int


def shard_of(parameter: Tensor) -> Shard | None:
    """The shard that a distributed tensor has here, where it is cut along its first dimension in one dimension of
    a mesh, as FSDP2 does; None for other tensors."""
    if not hasattr(parameter, "to_local") or parameter.dim() == 0:
        return None
    from torch.distributed.tensor import DTensor, Replicate, Shard as ShardedAlong

    assert isinstance(parameter, DTensor), "only these have a part here"
    mesh, placements = parameter.device_mesh, parameter.placements
    cut = [n for n, placement in enumerate(placements) if not isinstance(placement, Replicate)]
    along = placements[cut[0]] if len(cut) == 1 else None
    # Shards that are strided are of a type below this one.
    if not isinstance(along, ShardedAlong) or type(along) is not ShardedAlong or along.dim != 0:
        return None
    dimension, rows = cut[0], parameter.shape[0]
    ranks, rank = mesh.size(dimension), mesh.get_local_rank(dimension)
    if ranks == 1:
        return None
    whole = parameter.numel()
    row_elements = whole // rows if rows else 0
    # As `torch.chunk` cuts.
    own_rows = -(-rows // ranks)
    first = min(rank * own_rows, rows)
    local = parameter.to_local()
    if local.numel() != (min(first + own_rows, rows) - first) * row_elements or not local.is_contiguous():
        return None
    return Shard(mesh.get_group(dimension), first * row_elements, whole, own_rows * row_elements)


def exact_shard(parameter: Tensor, settings: dict[str, Any], name: str) -> Shard | None:
    """The shard of a parameter, if its moments are bit for bit those of the whole tensor's. Else it is kept like a
    tensor by itself, and whoever would see a difference is told so once. All processes decide alike."""
    shard = shard_of(parameter)
    state = settings["state"]
    has_bias = {format: has_bias for format, _, has_bias in formats()}[str(state).split(":")[0]]
    border = CHUNK if settings["bias"] == "auto" and has_bias else block_elements(state, parameter.numel())
    if shard is not None and shard.border % border == 0:
        return shard
    is_cut = hasattr(parameter, "to_local") and parameter.to_local().numel() != parameter.numel()
    # Elements that stand alone and are rounded to nearest are the same anywhere.
    is_plain = border == 1 and state != "e4s"
    if is_cut and not is_plain and name not in _warned:
        _warned.add(name)
        found = "is not a run of elements" if shard is None else f"has {shard.border} elements"
        warnings.warn(
            f"parameter {name}: a shard {found}, where {state} asks for multiples of {border}; its moments are "
            "kept like those of a tensor by itself, so its bits are not those of one process",
            stacklevel=4,
        )
    return None


def clips_inside(shards: Iterable[Shard | None]) -> bool:
    """Whether the gradient norm of all shards is that of the whole tensors."""
    return all(shard is None or shard.border % CHUNK == 0 for shard in shards)


class _Numbers:
    """Numbers in the memory of a CUDA device."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,), "typestr": "<f8", "data": (address, False), "version": 3,
        }


def add_up(place: tuple[int, int] | None, device: torch.device, group: Any) -> None:
    """Replaces the f64 numbers at an address, as many as are said, by their sums over a group."""
    if place is None:
        return
    address, length = place
    if device.type == "cuda":
        numbers = torch.as_tensor(_Numbers(address, length), device=device)
    else:
        memory = (ctypes.c_double * length).from_address(address)
        numbers = torch.frombuffer(memory, dtype=torch.float64)
    torch.distributed.all_reduce(numbers, group=group)


@torch.no_grad()
def clip(parameters: list[Tensor], gradients: list[Tensor], clip_norm: float) -> None:
    """Clips gradients in place; those of distributed parameters by the norm of all their shards."""
    squares: Any = 0.0
    by_kind: dict[bool, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_kind.setdefault(hasattr(parameter, "to_local"), []).append(parameter.grad)
    for is_distributed, own in by_kind.items():
        norm = torch.nn.utils.get_total_norm(own)
        norm = norm.full_tensor() if is_distributed and hasattr(norm, "full_tensor") else norm
        squares = squares + norm.double() ** 2
    scale = (clip_norm / squares.sqrt()).clamp(max=1.0).float()
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
