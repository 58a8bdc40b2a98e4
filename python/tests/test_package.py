"""The package as a whole: quick to import, typed, and with examples that run."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import packed_adamw
from test_optimizer import FORMATS

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*arguments, **variables):
    command = [sys.executable, *map(str, arguments)]
    folder = str(Path(packed_adamw.__file__).parents[1])
    path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_takes_no_time_beyond_torch():
    code = "import time, torch; t = time.process_time(); import packed_adamw; print(time.process_time() - t)"
    assert min(float(run("-c", code)) for _ in range(3)) < 0.05


@pytest.mark.parametrize("types", ["float32", "bfloat16", "both"])
@pytest.mark.parametrize("state", FORMATS)
def test_no_first_step_waits_for_a_compiler(state, types, tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if not (Path(packed_adamw.__file__).parent / "kernels").is_dir():
        pytest.skip("no kernels in the package: it was built without NVRTC")
    monkeypatch.setenv("PACKED_ADAMW_KERNEL_CACHE", str(tmp_path))
    dtypes = [torch.float32, torch.bfloat16] if types == "both" else [getattr(torch, types)]
    for clip_norm, nonfinite, tensors in ((None, "stop", 70), (1.0, "stop", 170), (None, "skip", 400)):
        if (nonfinite, types) == ("skip", "both"):
            continue
        parameters = [
            nn.Parameter(torch.ones(5000, device="cuda", dtype=dtypes[n % len(dtypes)])) for n in range(tensors)
        ]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.01)
        # PyTorch's own part of it imports its compiler when it is first called.
        optimizer = packed_adamw.PackedAdamW(parameters, state=state, clip_norm=clip_norm, nonfinite=nonfinite)
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        assert time.perf_counter() - start < 1
    assert not list(tmp_path.iterdir()), "nothing was compiled"


def test_types_are_sound():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("no mypy")
    folder = Path(packed_adamw.__file__).parent
    if not (folder.parent / "pyproject.toml").is_file():
        folder = EXAMPLES.parent / "packed_adamw"
    assert (folder / "py.typed").is_file()
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("compiled", [False, True])
def test_a_small_gpt_learns(compiled):
    if compiled and sys.platform != "linux":
        pytest.skip("torch.compile wants a C++ compiler")
    steps = 2 if compiled else 50
    told = run(EXAMPLES / "nano_gpt.py", "--steps", steps, *(["--compile"] if compiled else []), "--state", "block8")
    first = float(re.search(r"step +1  mean loss ([0-9.]+)", told)[1])
    assert first == pytest.approx(5.6, abs=0.2)
    if not compiled:
        assert float(re.search(r"step +50  mean loss ([0-9.]+)", told)[1]) < first - 1


def test_the_trainer_of_transformers_takes_it(tmp_path, monkeypatch):
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip("no transformers, or no accelerate, which its Trainer wants")
    monkeypatch.chdir(tmp_path)
    told = run(EXAMPLES / "trainer.py")
    assert float(re.search(r"loss ([0-9.]+) after 64 steps", told)[1]) < 2.5


def test_memory_is_measured_before_and_after():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    told = run(EXAMPLES / "memory.py", "100")
    rows = {words[0]: float(words[-1]) for line in told.splitlines()[2:] if (words := line.split())}
    assert rows["torch.optim.AdamW"] == pytest.approx(8, abs=0.1)
    for name, bits, _ in packed_adamw.formats():
        assert rows[name] == pytest.approx(bits / 8, abs=0.1)
