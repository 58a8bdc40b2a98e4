"""`PackedAdamW`, a `torch.optim.Optimizer`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Iterable, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import _convert, _state
from ._cohort import Array, Cohort, check_parameter, local
from ._shards import Shard, clip, clips_inside, exact_shard
from ._native import default_bias, formats


class Report(NamedTuple):
    """What the last step met, over the parameters of one device."""

    #: Updates that the parameters have had.
    update: int
    #: Norm of all gradients together, before clipping; NaN where it is not measured.
    gradient_norm: float
    #: What gradients were multiplied by.
    clip_scale: float
    #: Elements left as they were, since their gradient, moments or parameter is not finite.
    nonfinite: int
    #: Elements whose first moment was clamped at the largest number of its format.
    saturated_m: int
    #: Elements whose RMS was clamped so.
    saturated_r: int
    #: Whether the whole update was dropped.
    skipped: bool


class PackedAdamW(Optimizer):
    """AdamW with decoupled weight decay, whose moments persist in a packed format.

    Args:
        params: parameters, or groups of them; a group may set `lr`, `betas`, `eps`, `weight_decay`, `state`, `bias`.
        lr: learning rate; a number, or an f32 tensor on the device of the parameters.
        betas: shares of the first and second moment that survive an update.
        eps: what is added to the denominator.
        weight_decay: decoupled decay.
        state: how moments persist: one of `packed_adamw.formats()`.
        bias: exponent bias of formats that have one: a number, or "auto" to choose from the first gradient.
        clip_norm: clips the gradient to this global norm, inside of the step. Gradients themselves stay, but where
            parameters lie on several devices or have had different numbers of updates: then they are clipped in place.
        nonfinite: "stop" leaves elements as they are whose gradient, moments or parameter is not finite, and
            `report` counts them; "skip" drops the whole update then.
        capturable: accepted for the sake of those who pass it; every step on CUDA can be captured, after one outside.
        seed: seed of stochastic rounding.

    A step on CUDA is queued on the current stream, waits for nothing and allocates nothing. bf16 parameters keep their
    missing 16 bits beside the moments, so small updates are not lost; whoever overwrites such a parameter overwrites its
    upper half.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        state: str = "e4",
        bias: int | str | None = None,
        clip_norm: float | None = None,
        nonfinite: str = "stop",
        capturable: bool = True,
        seed: int = 0,
    ) -> None:
        if nonfinite not in ("stop", "skip"):
            raise ValueError(f'nonfinite: expected "stop" or "skip", found {nonfinite!r}')
        if clip_norm is not None and not 0 < clip_norm < float("inf"):
            raise ValueError(f"clip_norm: expected a number above 0, found {clip_norm}")
        self._options = (clip_norm, nonfinite == "skip", seed)
        self._cohorts: list[Cohort] = []
        self._remainders: dict[Tensor, Tensor] = {}
        #: Of an optimizer that goes on from another's moments: how far each parameter's are from those.
        self.conversion_errors: dict[Tensor, _convert.ConversionError] = {}
        bias = default_bias() if bias is None else bias
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, state=state, bias=bias,
            capturable=capturable,
        )
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        names = [name for name, _, _ in formats()]
        plain = str(group["state"]).split(":")[0].split("(")[0]
        if plain not in names:
            self.param_groups.pop()
            raise ValueError(f"state: expected one of {', '.join(names)}, found {group['state']!r}")
        bias = group["bias"]
        if bias != "auto" and not isinstance(bias, int):
            self.param_groups.pop()
            raise ValueError(f'bias: expected a number or "auto", found {bias!r}')
        for parameter in group["params"]:
            try:
                check_parameter(parameter, f"{self._positions()[parameter]}")
            except ValueError:
                self.param_groups.pop()
                raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ready = self._ready()
        clip_norm = self._options[0]
        if clip_norm is not None and any(cohort.options[0] is None for cohort, _ in ready):
            parameters = [p for cohort, _ in ready for p in cohort.parameters]
            clip(parameters, [gradient for _, gradients in ready for gradient in gradients], clip_norm)
        for cohort, gradients in ready:
            cohort.step(self.param_groups, gradients)
        return loss

    def report(self) -> list[Report]:
        """What the last step met, for parameters of each device and number of updates. Waits for the step."""
        return [Report(*cohort.engine.report()) for cohort in self._cohorts]

    def state_bytes(self) -> int:
        """Bytes of the stored moments, and of what bf16 parameters keep beside them."""
        remainders = sum(tensor.numel() * 2 for tensor in self._remainders.values())
        return sum(cohort.engine.state_bytes() for cohort in self._cohorts) + remainders

    def moments(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """The first and second moment of a parameter, decoded to f32 on the CPU."""
        for cohort in self._cohorts:
            for number, own in enumerate(cohort.parameters):
                if own is parameter:
                    shape = local(parameter).shape
                    decoded = cohort.engine.moments(number)
                    m, v = (torch.frombuffer(bytearray(b), dtype=torch.float32) for b in decoded)
                    return m.view(shape), v.view(shape)
        raise KeyError("expected a parameter that has had an update")

    # Which parameters are updated together.

    def _positions(self) -> dict[Tensor, int]:
        parameters = (p for group in self.param_groups for p in group["params"])
        return {parameter: position for position, parameter in enumerate(parameters)}

    def _ready(self) -> list[tuple[Cohort, list[Tensor]]]:
        """Every cohort whose parameters have gradients, with those."""
        fresh: dict[Any, list[Tensor]] = {}
        for parameter in self._strangers():
            if parameter.grad is not None:
                fresh.setdefault(self._kin(parameter), []).append(parameter)
        if fresh:
            self._cohorts += [self._cohort(parameters) for parameters in fresh.values()]
            self._agree_on_clipping()
        ready = ((cohort, cohort.plain_gradients()) for cohort in list(self._cohorts))
        found = (
            (cohort, gradients) if gradients is not None else self._checked(cohort) for cohort, gradients in ready
        )
        return [pair for pair in found if pair is not None]

    def _shard(self, parameter: Tensor) -> Shard | None:
        """The shard of a parameter that is sharded, if moments of shards are those of the whole."""
        if not hasattr(parameter, "to_local"):
            return None
        position = self._positions()[parameter]
        group = next(group for group in self.param_groups if any(parameter is p for p in group["params"]))
        return exact_shard(parameter, group, str(position))

    def _kin(self, parameter: Tensor) -> tuple[Any, ...]:
        """What parameters that are updated together have in common."""
        shard = self._shard(parameter)
        return local(parameter).device, None if shard is None else shard.group

    def _strangers(self) -> list[Tensor]:
        """The parameters that have had no update."""
        count = sum(len(group["params"]) for group in self.param_groups)
        if count == sum(len(cohort.parameters) for cohort in self._cohorts):
            return []
        known = {parameter for cohort in self._cohorts for parameter in cohort.parameters}
        return [p for group in self.param_groups for p in group["params"] if p not in known]

    def _checked(self, cohort: Cohort) -> tuple[Cohort, list[Tensor]] | None:
        """A cohort, or what goes in its place, with gradients that its engine can read; None without gradients."""
        has_gradient = [parameter.grad is not None for parameter in cohort.parameters]
        if not any(has_gradient):
            return None
        if not all(has_gradient):
            cohort = self._split(cohort)
        pairs = ((parameter, parameter.grad) for parameter in cohort.parameters)
        gradients = [self._usable(parameter, grad) for parameter, grad in pairs if grad is not None]
        dtypes = [gradient.dtype for gradient in gradients]
        if dtypes != cohort.gradient_dtypes:
            cohort = self._again(cohort, dtypes, cohort.options)
        return cohort, gradients

    @staticmethod
    def _usable(parameter: Tensor, gradient: Tensor) -> Tensor:
        """The gradient as the engine reads it: of f32 or bf16, in the order of the parameter's memory."""
        if gradient.layout is not torch.strided:
            raise ValueError(
                f"gradient of shape {tuple(gradient.shape)}: expected a dense tensor, found layout "
                f"{gradient.layout}; torch.optim.SparseAdam takes sparse ones"
            )
        gradient, parameter = local(gradient), local(parameter)
        if gradient.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"gradient of shape {tuple(gradient.shape)}: expected torch.float32 or torch.bfloat16, "
                f"found {gradient.dtype}"
            )
        if gradient.stride() == parameter.stride() or (
            gradient.is_contiguous() and parameter.is_contiguous()
        ):
            return gradient
        return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)

    def _cohort(
        self,
        parameters: list[Tensor],
        gradient_dtypes: list[torch.dtype] | None = None,
        options: tuple[float | None, bool, int] | None = None,
    ) -> Cohort:
        positions = self._positions()
        group_of = {p: number for number, group in enumerate(self.param_groups) for p in group["params"]}
        for parameter in parameters:
            self.state[parameter] = {}
            tensor = local(parameter)
            if tensor.dtype == torch.bfloat16 and parameter not in self._remainders:
                self._remainders[parameter] = torch.zeros(
                    tensor.numel(), dtype=torch.int16, device=tensor.device
                )
        if gradient_dtypes is None:
            gradient_dtypes = [local(p if p.grad is None else p.grad).dtype for p in parameters]
        shards = [self._shard(parameter) for parameter in parameters]
        options = options or self._options
        if not clips_inside(shards):
            options = (None, *options[1:])
        return Cohort(
            parameters,
            [positions[parameter] for parameter in parameters],
            self.param_groups,
            [group_of[parameter] for parameter in parameters],
            gradient_dtypes,
            self._remainders,
            options,
            shards,
            self._parts(parameters, shards, positions),
        )

    def _parts(
        self, parameters: list[Tensor], shards: list[Shard | None], positions: dict[Tensor, int]
    ) -> list[tuple[int, int, int, int] | None]:
        """What random numbers go by: the places of whole tensors among all, where parameters do not have them by
        themselves."""
        is_all = [positions[parameter] for parameter in parameters] == list(range(len(parameters)))
        if is_all and not any(shards):
            return [None] * len(parameters)
        place = {p: number for group in self.param_groups for number, p in enumerate(group["params"])}
        parts: list[tuple[int, int, int, int] | None] = []
        for parameter, shard in zip(parameters, shards):
            start, whole = (shard.start, shard.whole) if shard else (0, local(parameter).numel())
            parts.append((positions[parameter], place[parameter], start, whole))
        return parts

    def _made_of(
        self,
        saved: tuple[list[Array], dict[str, str]],
        parameters: list[Tensor],
        dtypes: list[torch.dtype],
        options: tuple[float | None, bool, int],
    ) -> Cohort:
        """A cohort with the moments of some parameters of another."""
        cohort = self._cohort(parameters, dtypes, options)
        cohort.load(*saved)
        return cohort

    def _replace(self, cohort: Cohort, successor: Cohort) -> None:
        self._cohorts = [successor if own is cohort else own for own in self._cohorts]

    def _again(
        self, cohort: Cohort, dtypes: list[torch.dtype], options: tuple[float | None, bool, int]
    ) -> Cohort:
        """A cohort anew, for gradients of other dtypes or with other options."""
        again = self._made_of(cohort.save(), cohort.parameters, dtypes, options)
        self._replace(cohort, again)
        return again

    def _split(self, cohort: Cohort) -> Cohort:
        """Two cohorts in the place of one: with gradients, which is returned, and without."""
        saved = cohort.save()
        dtype_of = dict(zip(cohort.parameters, cohort.gradient_dtypes))
        active = [p for p in cohort.parameters if p.grad is not None]
        idle = [p for p in cohort.parameters if p.grad is None]
        going, resting = (
            self._made_of(saved, part, [dtype_of[p] for p in part], cohort.options) for part in (active, idle)
        )
        self._replace(cohort, going)
        self._cohorts.append(resting)
        self._agree_on_clipping()
        # By identity: tensors compare element by element.
        return next(own for own in self._cohorts if own.parameters[0] is active[0])

    def _agree_on_clipping(self) -> None:
        """Clips inside of the step where one engine has all gradients, and before it elsewhere."""
        clip_norm, skips, seed = self._options
        is_inside = len(self._cohorts) == 1 and clips_inside(self._cohorts[0].shards)
        wanted = (clip_norm if is_inside else None, skips, seed)
        for cohort in list(self._cohorts):
            if cohort.options != wanted:
                self._again(cohort, cohort.gradient_dtypes, wanted)

    # What is saved.

    def state_dict(self) -> dict[str, Any]:
        """Parameter groups, and for every parameter plain tensors and numbers: how many updates it has had, and the
        arrays of its format."""
        self.state.update(_state.exported(self._cohorts, self._remainders))
        try:
            return super().state_dict()
        finally:
            for parameter in self.state:
                self.state[parameter] = {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` of an optimizer with the same parameters and formats returned."""
        groups = state_dict["param_groups"]
        saved_formats = [group.get("state") for group in groups]
        own_formats = [group["state"] for group in self.param_groups]
        if len(groups) == len(own_formats) and saved_formats != own_formats:
            raise ValueError(f"state: expected the formats {own_formats}, found {saved_formats}")
        super().load_state_dict({"state": {}, "param_groups": groups})
        order = [number for group in groups for number in group["params"]]
        parameters = list(self._positions())
        self._restore(
            {parameters[order.index(number)]: state for number, state in state_dict["state"].items()}
        )

    def _restore(self, states: dict[Tensor, dict[str, Any]]) -> None:
        """Makes cohorts of saved states."""
        self._cohorts, self._remainders = [], {}
        self.state.clear()
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for parameter, state in states.items():
            if state:
                key = (*self._kin(parameter), state["step"], state.get("written", state["step"]))
                alike.setdefault(key, []).append(parameter)
        positions = self._positions()
        for parameters in alike.values():
            parameters.sort(key=positions.__getitem__)
            cohort = self._cohort(parameters)
            cohort.load(*_state.imported(cohort, states))
            for parameter in parameters:
                remainder = states[parameter].get("remainder")
                if remainder is not None and parameter in self._remainders:
                    self._remainders[parameter].copy_(remainder)
            self._cohorts.append(cohort)
        if self._cohorts:
            self._agree_on_clipping()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["state"] = _state.exported(self._cohorts, self._remainders)
        state["_options"] = self._options
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("state")
        self._cohorts, self._remainders, self.conversion_errors = [], {}, {}
        super().__setstate__({**state, "state": defaultdict(dict)})
        self._restore(saved)

    @classmethod
    def from_adamw(cls, optimizer: Optimizer, **arguments: Any) -> PackedAdamW:
        """An optimizer of the same parameters that goes on from the moments of another: of `torch.optim.Adam` and
        `AdamW`, or of AdamW in 8 or 4 bits of bitsandbytes and torchao, or of turboadam.

        `arguments` are those of `PackedAdamW` that shall not be as in the other. How far the stored moments are from
        the given ones is in `conversion_errors` of what is returned.
        """
        return _convert.from_adamw(cls, optimizer, arguments)
