"""AdamW whose two moments persist packed, in 32, 16, 8.5 or 6.5 bits a parameter instead of 64.

    from packed_adamw import PackedAdamW

    optimizer = PackedAdamW(model.parameters(), lr=3e-4, state="e4")

The update, the formats and the CUDA kernels are those of the Rust crates beside this package, bit for bit.
"""

from . import _libraries

_libraries.announce()

from ._native import formats
from .optimizer import PackedAdamW, Report

__all__ = ["PackedAdamW", "Report", "formats"]
__version__ = "0.1.0"
