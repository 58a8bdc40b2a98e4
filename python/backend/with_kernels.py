"""Builds the package with maturin, and its CUDA kernels with the extension that maturin has built.

Kernels are machine code for a few architectures, in `packed_adamw/kernels`, where a wheel takes them from and an editable
installation finds them. `-C kernels=sm_90,sm_120` names other architectures, `-C kernels=none` wants no kernels. Without
NVRTC, which is a build requirement where NVIDIA has it, there are none either, and every machine compiles those that it uses.
"""

import importlib.util
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import maturin
from maturin import (  # noqa: F401, hooks that need no more
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PACKAGE = Path(__file__).parents[1] / "packed_adamw"
KERNELS = PACKAGE / "kernels"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    # A wheel has kernels of its own sources, or none.
    shutil.rmtree(KERNELS, ignore_errors=True)
    wheel = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(Path(wheel_directory) / wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith((".so", ".pyd")))
            has_kernels = write_kernels(archive.extract(name, folder), config_settings)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory) if has_kernels else wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    wheel = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    shutil.rmtree(KERNELS, ignore_errors=True)
    (extension,) = (path for path in PACKAGE.glob("_native.*") if path.suffix in (".so", ".pyd"))
    write_kernels(extension, config_settings)
    return wheel


def write_kernels(extension, config_settings):
    """Writes kernels with an extension, and says whether there are any."""
    wanted = (config_settings or {}).get("kernels", "")
    if wanted == "none":
        return False
    loaded("packed_adamw._libraries", PACKAGE / "_libraries.py").announce()
    native = loaded("packed_adamw._native", extension)
    architectures = wanted.split(",") if wanted else native.carried_architectures()
    # pip shows what a build says only with `-v`.
    print(f"compiling kernels for {', '.join(architectures)}, which takes some minutes", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        compiler = native.write_kernels(str(KERNELS), architectures)
    except (OSError, ValueError) as refused:
        # Whoever names architectures wants to know that they cannot be had.
        if wanted:
            raise
        shutil.rmtree(KERNELS, ignore_errors=True)
        print(f"no kernels in the package, they are compiled on first use: {refused}", file=sys.stderr)
        return False
    seconds = time.monotonic() - start
    print(f"kernels for {', '.join(architectures)} by {compiler} in {seconds:.0f} s", file=sys.stderr)
    return True


def loaded(name, path):
    """A module of the package without the package, which needs torch."""
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
