"""Where the native half finds CUDA's run-time compiler, and kernels that were compiled before."""

import importlib.util
import os
from pathlib import Path


def announce() -> None:
    """Names the folders of PyTorch's own CUDA libraries and of this package's kernels, unless somebody else did."""
    here = Path(__file__).parent
    kernels = here / "kernels"
    if kernels.is_dir():
        os.environ.setdefault("PACKED_ADAMW_KERNELS", str(kernels))
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or []] if spec else []
    candidates = [root / name for root in roots for name in ("cu13/lib", "cuda_nvrtc/lib")]
    folders = [str(folder) for folder in candidates if folder.is_dir()]
    if folders:
        os.environ.setdefault("PACKED_ADAMW_CUDA_LIBRARIES", os.pathsep.join(folders))
