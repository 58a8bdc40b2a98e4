"""From a run of `packed-adamw train` to PyTorch and back. Needs the program, named by PACKED_ADAMW_PROGRAM."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from packed_adamw import PackedAdamW, runs
from test_optimizer import FORMATS

PROGRAM = os.environ.get("PACKED_ADAMW_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="PACKED_ADAMW_PROGRAM names no program")
SETTINGS = [
    "run.updates=40", "run.validate_every=20", "run.checkpoint_every=20", "run.keep_last=9", "run.validation_windows=8",
    "run.sample_tokens=0", "data.stories_bytes=400_000", "data.stories_vocabulary=512", "model.context=32",
    "model.channels=32",
]


def train(folder, *arguments, processes=1):
    command = [PROGRAM, "train", "--output-dir", str(folder), "--device", "cpu", *arguments]
    if processes > 1:
        command[1:1] = ["launch", "--devices", str(processes), "--"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Twin(nn.Module):
    """The parameters of a checkpoint, by name and in its order; no network."""

    def __init__(self, checkpoint):
        super().__init__()
        self.shapes = {name: tensor.shape for name, tensor in runs._File(checkpoint / runs.PARAMETERS).tensors().items()}
        self.values = {name: nn.Parameter(torch.zeros(shape)) for name, shape in self.shapes.items()}

    def named_parameters(self, *_):
        return ((f"transformer.{name}", value) for name, value in self.values.items())


def checkpoint_of(folder, update):
    return folder / "checkpoints" / f"update-{update:08}"


def run_in(state, folder, processes=1):
    settings = [*SETTINGS, f'optimizer.state="{state}"']
    if processes > 1:
        settings += ["run.sharded=true", f"run.accumulation={processes}"]
    train(folder, *(word for setting in settings for word in ("--set", setting)), processes=processes)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_in("e4", tmp_path_factory.mktemp("runs") / "run")


def optimizer_over(checkpoint, state="e4"):
    twin = Twin(checkpoint)
    _, entries = runs._moments(checkpoint, json.loads((checkpoint / runs.MANIFEST).read_text()))
    groups = {}
    for name, value in twin.values.items():
        groups.setdefault(entries[f"{name}.hyperparameters"], []).append(value)
    made = []
    for text, parameters in groups.items():
        words = text.split()
        settings = dict(zip(words[::2], map(float, words[1::2])))
        made.append(
            dict(params=parameters, betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"],
                 weight_decay=settings["weight_decay"])
        )
    return twin, PackedAdamW(made, lr=1e-3, state=state, clip_norm=1.0)


@pytest.mark.parametrize("state", FORMATS)
def test_there_and_back(state, tmp_path):
    run = run_in(state, tmp_path / "run")
    source = checkpoint_of(run, 20)
    twin, optimizer = optimizer_over(source, state)
    assert runs.load(source, twin, optimizer) == 20
    # Written again without an update, every file has the bytes that it had.
    runs.save(tmp_path / "same", twin, optimizer, source, updates=0, tokens=0)
    for path in source.iterdir():
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes(), path.name
    for value in twin.values.values():
        value.grad = torch.full_like(value, 1e-3)
    optimizer.step()
    moved = checkpoint_of(run, 21)
    latest = run / "checkpoints" / "latest"
    latest.write_text(latest.read_text().replace("40", "20"))
    runs.save(moved, twin, optimizer, source, updates=1, tokens=8 * 32)
    shutil.rmtree(checkpoint_of(run, 40))
    done = subprocess.run([PROGRAM, "inspect", str(moved)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    train(run, "--resume")
    last, again = optimizer_over(checkpoint_of(run, 40), state)
    assert runs.load(checkpoint_of(run, 40), last, again) == 40


@pytest.fixture(scope="module", params=["e4", "ustate1q", "n4l4"])
def divided(request, tmp_path_factory):
    """A run whose ranks divided the moments among them."""
    return request.param, run_in(request.param, tmp_path_factory.mktemp("runs") / "run", processes=3)


def test_there_and_back_with_divided_moments(divided, tmp_path):
    state, run = divided
    source = checkpoint_of(run, 20)
    parts = sorted(path.name for path in source.glob("optimizer*"))
    assert parts == [f"optimizer-{rank:05}-of-00003.safetensors" for rank in (1, 2, 3)]
    twin, optimizer = optimizer_over(source, state)
    assert runs.load(source, twin, optimizer) == 20
    runs.save(tmp_path / "same", twin, optimizer, source, updates=0, tokens=0)
    for path in source.iterdir():
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes(), path.name
    # What PyTorch writes is read again, by one process and by PyTorch.
    for value in twin.values.values():
        value.grad = torch.full_like(value, 1e-3)
    optimizer.step()
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    moved = checkpoint_of(copy, 21)
    latest = copy / "checkpoints" / "latest"
    latest.write_text(latest.read_text().replace("40", "20"))
    runs.save(moved, twin, optimizer, source, updates=1, tokens=3 * 8 * 32)
    last, again = optimizer_over(moved, state)
    assert runs.load(moved, last, again) == 21
    for (m, v), (other_m, other_v) in (
        (optimizer.moments(one), again.moments(other)) for one, other in zip(twin.values.values(), last.values.values())
    ):
        assert torch.equal(m, other_m) and torch.equal(v, other_v)
    shutil.rmtree(checkpoint_of(copy, 40))
    train(copy, "--resume")
    assert runs.load(checkpoint_of(copy, 40), *optimizer_over(checkpoint_of(copy, 40), state)) == 40


def test_missing_and_mixed_parts_are_told(divided, tmp_path):
    state, run = divided
    source = checkpoint_of(run, 20)
    twin, optimizer = optimizer_over(source, state)

    def changed(name, change):
        copy = tmp_path / name
        shutil.copytree(source, copy)
        manifest = json.loads((copy / runs.MANIFEST).read_text())
        change(manifest["files"])
        (copy / runs.MANIFEST).write_text(json.dumps(manifest))
        return copy

    second, third = (f"optimizer-{rank:05}-of-00003.safetensors" for rank in (2, 3))
    with pytest.raises(ValueError, match="a part of every rank, found optimizer-00001"):
        runs.load(changed("less", lambda files: files.pop(second)), twin, optimizer)
    # One part in the place of another.
    twice = changed("twice", lambda files: files.update({second: files[third]}))
    (twice / second).write_bytes((twice / third).read_bytes())
    with pytest.raises(ValueError, match="parts"):
        runs.load(twice, twin, optimizer)
    (twice / second).unlink()
    with pytest.raises(FileNotFoundError, match="optimizer-00002"):
        runs.load(twice, twin, optimizer)


def test_a_damaged_checkpoint_is_refused(run, tmp_path):
    source = checkpoint_of(run, 20)
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    data = bytearray((copy / runs.PARAMETERS).read_bytes())
    data[-1] ^= 1
    (copy / runs.PARAMETERS).write_bytes(data)
    twin, optimizer = optimizer_over(source)
    with pytest.raises(ValueError, match="expected SHA-256"):
        runs.load(copy, twin, optimizer)
    other = PackedAdamW(twin.values.values(), state="block8")
    with pytest.raises(ValueError, match="expected the format block8, found e4"):
        runs.load(source, twin, other)
