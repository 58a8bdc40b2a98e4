"""Two processes over gloo on CPU, or over NCCL on two GPUs: replicas agree, and shards have the bits of the whole."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from packed_adamw import PackedAdamW
from test_optimizer import gradients, model, run

#: Formats whose bits do not depend on where a shard begins.
ELEMENTWISE = ["fp32", "fp16", "e4"]


def start(rank, file, work, *arguments):
    device = f"cuda:{rank}" if torch.cuda.device_count() > 1 else "cpu"
    if device != "cpu":
        torch.cuda.set_device(rank)
    backend = "nccl" if device != "cpu" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=2)
    work(rank, device, *arguments)
    # Nobody leaves while another still listens, and nobody waits for threads of PyTorch that end with the process.
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def in_two_processes(work, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(start, (os.path.join(folder, "store"), work, *arguments), nprocs=2)


def replicas(rank, device, state):
    network = torch.nn.parallel.DistributedDataParallel(model(device))
    alone = model(device)
    settings = dict(lr=1e-2, state=state, clip_norm=1.0)
    optimizer, single = PackedAdamW(network.parameters(), **settings), PackedAdamW(alone.parameters(), **settings)
    inputs = torch.randn(4, 2, 8, 40, generator=torch.Generator().manual_seed(1)).to(device)
    for step in range(4):
        optimizer.zero_grad()
        network(inputs[step, rank]).square().mean().backward()
        optimizer.step()
        single.zero_grad()
        for part in range(2):
            (alone(inputs[step, part]).square().mean() / 2).backward()
        single.step()
    for parameter, own in zip(network.parameters(), alone.parameters()):
        both = [torch.empty_like(parameter) for _ in range(2)]
        dist.all_gather(both, parameter.detach())
        assert torch.equal(*both)
        # Sums in another order than one process has; where that turns a code of 8 bits over, a step changes by some
        # 5% of the rate, four times.
        torch.testing.assert_close(parameter, own, rtol=1e-3, atol=1e-4 if state == "e4" else 4 * 0.05 * 1e-2)


@pytest.mark.parametrize("state", ["e4", "block8"])
def test_replicas_stay_the_same(state):
    in_two_processes(replicas, state)


def shards(rank, device, state):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole, sharded = model(device), model(device)
    mesh = dist.device_mesh.init_device_mesh(device.split(":")[0], (2,))
    fully_shard(sharded, mesh=mesh)
    settings = dict(lr=1e-2, state=state, weight_decay=0.1)
    one, two = PackedAdamW(whole.parameters(), **settings), PackedAdamW(sharded.parameters(), **settings)
    for step in range(4):
        gradients(whole, step)
        for parameter, own in zip(whole.parameters(), sharded.parameters()):
            assert isinstance(own, DTensor)
            own.grad = distribute_tensor(parameter.grad, own.device_mesh, own.placements)
        one.step()
        two.step()
    for parameter, own in zip(whole.parameters(), sharded.parameters()):
        assert torch.equal(parameter, own.full_tensor())
    restored = PackedAdamW(sharded.parameters(), **settings)
    restored.load_state_dict(two.state_dict())
    assert restored.state_bytes() == two.state_bytes() < 0.6 * one.state_bytes()


@pytest.mark.parametrize("state", ELEMENTWISE)
def test_shards_have_the_bits_of_the_whole(state):
    in_two_processes(shards, state)
