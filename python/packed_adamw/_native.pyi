"""The native half: AdamW over tensors by their addresses."""

from typing import Callable

# Of parameters, of the bits that bf16 ones lack, and of gradients.
_Addresses = tuple[list[int], list[int], list[int]]

def formats() -> list[tuple[str, float, bool]]:
    """Every state format: its name, bits of state a parameter, whether its numbers have an exponent bias."""

def default_bias() -> int:
    """The exponent bias of formats that have one, where none is given."""

def block_elements(name: str, elements: int) -> int:
    """The elements that a format keeps together of a tensor of as many: its parts are cut at multiples of them."""

def join(
    parts: list[tuple[list[tuple[str, str, bytes]], dict[str, str]]],
) -> tuple[list[tuple[str, str, bytes]], dict[str, str]]:
    """The state of whole tensors, of whose parts these are the states."""

def carried_architectures() -> list[str]:
    """The architectures that the kernels of the package are for, unless somebody says otherwise."""

def write_kernels(folder: str, architectures: list[str]) -> str:
    """Compiles the kernels that the package carries into a folder, and says with which compiler. An OSError says that
    there is none."""

class Engine:
    def __init__(
        self,
        device: int,
        stream: int,
        tensors: list[tuple[str, int, int, bool, bool, tuple[int, int, int, int] | None]],
        groups: list[tuple[str, tuple[float, float], float, float, int | None]],
        clip_norm: float | None,
        skip_nonfinite: bool,
        seed: int,
    ) -> None: ...
    def set_group(
        self, position: int, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None: ...
    def step(self, stream: int, addresses: _Addresses, rates: list[float | tuple[int]]) -> None: ...
    def measure(self, stream: int, addresses: _Addresses, rates: list[float | tuple[int]]) -> None: ...
    def measured(self) -> tuple[int, int] | None: ...
    def update_parts(self, addresses: _Addresses) -> None: ...
    def spreads(self) -> tuple[int, int] | None: ...
    def finish(self) -> None: ...
    def report(self) -> tuple[int, float, float, int, int, int, bool]: ...
    def state_bytes(self) -> int: ...
    def save(self) -> tuple[list[tuple[str, str, bytes]], dict[str, str]]: ...
    def load(self, arrays: list[tuple[str, str, bytes]], entries: list[tuple[str, str]]) -> None: ...
    def moments(self, position: int) -> tuple[bytes, bytes]: ...
    def set_moments(
        self, position: int, update: int, m: bytes, v: bytes, add: Callable[[list[float]], list[float]]
    ) -> None: ...
