"""The moments of other optimizers, and an optimizer that goes on from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._cohort import local
from ._shards import Shard

if TYPE_CHECKING:
    from .optimizer import PackedAdamW


class ConversionError(NamedTuple):
    """How far the stored moments of a parameter are from those that were given: norm of the difference over norm."""

    #: Of the first moment.
    first: float
    #: Of the square root of the second moment.
    rms: float


def from_adamw(cls: type[PackedAdamW], optimizer: Optimizer, arguments: dict[str, Any]) -> PackedAdamW:
    """See `PackedAdamW.from_adamw`."""
    kept = ("params", "lr", "betas", "eps", "weight_decay")
    groups = [{key: group[key] for key in kept if key in group} for group in optimizer.param_groups]
    for group in groups:
        group.update({key: value for key, value in arguments.items() if key in kept})
    converted = cls(groups, **{key: value for key, value in arguments.items() if key not in kept})
    given: dict[Tensor, tuple[Tensor, Tensor, int]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                given[parameter] = moments_of(state, parameter, group)
    converted._restore(_states(converted, given))
    converted.conversion_errors = {
        parameter: _error(converted.moments(parameter), moments) for parameter, moments in given.items()
    }
    return converted


def _states(converted: PackedAdamW, given: dict[Tensor, tuple[Tensor, Tensor, int]]) -> dict[Tensor, dict[str, Any]]:
    """Saved states with those moments, stored on the processor by the engine itself."""
    from . import _state
    from ._cohort import Cohort

    states: dict[Tensor, dict[str, Any]] = {}
    positions = converted._positions()
    group_of = {p: n for n, group in enumerate(converted.param_groups) for p in group["params"]}
    for update in sorted({update for _, _, update in given.values()}):
        parameters = [p for p, (_, _, own) in given.items() if own == update]
        # Stand-ins of the same shapes in the processor's memory; only their sizes matter.
        stand_ins = {p: torch.nn.Parameter(torch.empty(local(p).numel())) for p in parameters}
        shards = [converted._shard(p) for p in parameters]
        cohort = Cohort(
            list(stand_ins.values()),
            [positions[p] for p in parameters],
            converted.param_groups,
            [group_of[p] for p in parameters],
            [torch.float32] * len(parameters),
            {},
            (None, False, converted._options[-1]),
            parts=converted._parts(parameters, shards, positions),
        )
        for number, (parameter, shard) in enumerate(zip(parameters, shards)):
            m, v, _ = given[parameter]
            add = partial(_added_up, shard, local(parameter).device)
            cohort.engine.set_moments(number, update, _bytes(m), _bytes(v), add)
        saved = _state.exported([cohort], {})
        states.update({p: saved[stand_in] for p, stand_in in stand_ins.items()})
    return states


def _added_up(shard: Shard | None, device: torch.device, numbers: list[float]) -> list[float]:
    """Sums over all who have a shard of a tensor."""
    if shard is None:
        return numbers
    sums = torch.tensor(numbers, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(sums, group=shard.group)
    return sums.tolist()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().float().cpu().contiguous().view(-1).numpy().tobytes()


def _error(stored: tuple[Tensor, Tensor], given: tuple[Tensor, Tensor, int]) -> ConversionError:
    def relative(found: Tensor, wanted: Tensor) -> float:
        wanted = wanted.float().cpu().view(found.shape)
        norm = wanted.double().norm()
        return ((found.double() - wanted.double()).norm() / norm).item() if norm > 0 else 0.0

    return ConversionError(relative(stored[0], given[0]), relative(stored[1].sqrt(), given[1].sqrt()))


def moments_of(state: dict[str, Any], parameter: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor, int]:
    """First moment, second moment and number of updates, from a parameter's state in another optimizer."""
    shape = local(parameter).shape
    if "step" not in state:
        raise ValueError(
            f"expected a state of AdamW from torch, bitsandbytes, torchao or turboadam, found the entries {sorted(state)}"
        )
    step = int(state["step"])
    quant = state.get("__bnb_optimizer_quant_state__", state)
    if "state1" in quant:
        first = _blockwise(quant, "1").view(shape)
        return first, _blockwise(quant, "2").view(shape), step
    if "ustate" in state or "v_state" in state:
        first, second = _turboadam(state, group, shape, step)
        return first, second, step
    if "exp_avg" in state:
        # torch's own, and torchao's, whose tensors know how to decode themselves.
        first, second = (_plain(state[key]).view(shape) for key in ("exp_avg", "exp_avg_sq"))
        return first, second, step
    raise ValueError(
        f"expected a state of AdamW from torch, bitsandbytes, torchao or turboadam, found the entries {sorted(state)}"
    )


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.dequantize() if hasattr(tensor, "codes") or tensor.is_quantized else tensor
    return local(tensor).float()


def _blockwise(state: dict[str, Any], number: str) -> Tensor:
    """A moment of bitsandbytes: f32, or codes of a map with an absmax for every block."""
    codes: Tensor = state[f"state{number}"]
    if codes.dtype != torch.uint8:
        return codes.float()
    absmax: Tensor = state[f"absmax{number}"]
    flat = codes.reshape(-1)
    values: Tensor = state[f"qmap{number}"][flat.long()]
    # 256 since version 0.44, 2048 before.
    block = next(size for size in (256, 2048) if -(-flat.numel() // size) == absmax.numel())
    return values * absmax.repeat_interleave(block)[: flat.numel()]


def _turboadam(state: dict[str, Any], group: dict[str, Any], shape: torch.Size, step: int) -> tuple[Tensor, Tensor]:
    """Moments of turboadam, decoded by it."""
    from turboadam import oneq, ustate

    second = oneq.decompress_v(state["v_state"]) if "v_state" in state else state["exp_avg_sq"]
    second = second.float().view(shape)
    if "ustate" not in state:
        return state["exp_avg"].float().view(shape), second
    beta1, beta2 = group["betas"]
    first = ustate.reconstruct_first_moment(state["ustate"], second.view(-1), step, beta1, beta2, group["eps"])
    return first.float().view(shape), second


__all__ = ["ConversionError", "from_adamw", "moments_of"]
