"""Two processes over gloo on CPU, or over NCCL on two GPUs: replicas agree, and shards have the bits of the whole."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from packed_adamw import PackedAdamW, _shards
from test_optimizer import FORMATS, gradients, model


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


def all_replicas(rank, device, states):
    for state in states:
        replicas(rank, device, state)


def test_replicas_stay_the_same():
    # Two of these draw random numbers.
    in_two_processes(all_replicas, ["e4", "e4s", "block8", "ustate1q"])


def wide(device):
    """Shards of two, each a multiple of 16,384 elements or of 64; one of a whole tensor that is small."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 256, bias=False), torch.nn.Linear(256, 128), torch.nn.LayerNorm(128)
    return torch.nn.Sequential(*layers).to(device)


def shards(rank, device, state, network, clip_norm):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole, sharded = network(device), network(device)
    mesh = dist.device_mesh.init_device_mesh(device.split(":")[0], (2,))
    fully_shard(sharded, mesh=mesh)
    settings = dict(lr=1e-2, state=state, weight_decay=0.1, clip_norm=clip_norm)
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


def all_shards(rank, device, cases):
    for state, network, clip_norm in cases:
        shards(rank, device, state, network, clip_norm)


def test_shards_have_the_bits_of_the_whole():
    # Small tensors of formats of blocks are f32, so what is left to cut fits blocks, or blocks are small.
    states = [*FORMATS, "block8:block=64,min=64", "n4l4:m_block=16,v_block=32,min=32", "ustate1q:halves=v"]
    in_two_processes(all_shards, [(state, wide, None) for state in states])


def only_wide(device):
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 256, bias=False), torch.nn.Linear(256, 128, bias=False)
    return torch.nn.Sequential(*layers).to(device)


def test_shards_at_borders_of_chunks_are_clipped_to_the_bits_of_the_whole():
    in_two_processes(all_shards, [(state, only_wide, 0.01) for state in FORMATS])


def awkward(rank, device, clip_norm):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    whole, sharded = model(device), model(device)
    mesh = dist.device_mesh.init_device_mesh(device.split(":")[0], (2,))
    fully_shard(sharded, mesh=mesh)
    settings = dict(lr=1e-2, clip_norm=clip_norm)
    one = PackedAdamW(whole.parameters(), state="fp32", **settings)
    two = PackedAdamW(sharded.parameters(), state="block8:min=0", **settings)
    for step in range(3):
        gradients(whole, step)
        for parameter, own in zip(whole.parameters(), sharded.parameters()):
            own.grad = distribute_tensor(parameter.grad, own.device_mesh, own.placements)
        one.step()
        if step == 0:
            with pytest.warns(UserWarning, match="its bits are not those of one process"):
                two.step()
        else:
            two.step()
    # The norm is that of all shards: otherwise steps would be scaled by some 1.4.
    for parameter, own in zip(whole.parameters(), sharded.parameters()):
        torch.testing.assert_close(parameter, own.full_tensor(), rtol=1e-2, atol=3e-3)


def all_awkward(rank, device, clip_norms):
    for clip_norm in clip_norms:
        _shards._warned.clear()
        awkward(rank, device, clip_norm)


def test_shards_across_blocks_are_tensors_by_themselves_and_say_so():
    in_two_processes(all_awkward, [None, 0.01])



def conversion(rank, device, state):
    """An optimizer of shards that goes on from another's moments, beside one of the whole tensors."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    whole, sharded = wide(device), wide(device)
    mesh = dist.device_mesh.init_device_mesh(device.split(":")[0], (2,))
    fully_shard(sharded, mesh=mesh)
    plain = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    cut = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    pairs = list(zip(whole.parameters(), sharded.parameters()))

    def step(one, two, seed):
        gradients(whole, seed)
        for parameter, own in pairs:
            own.grad = distribute_tensor(parameter.grad, own.device_mesh, own.placements)
        one.step()
        two.step()

    for seed in range(3):
        step(plain, cut, seed)
    one, two = PackedAdamW.from_adamw(plain, state=state), PackedAdamW.from_adamw(cut, state=state)
    for seed in range(3, 6):
        step(one, two, seed)
    for parameter, own in pairs:
        assert torch.equal(parameter, own.full_tensor()), state


def all_conversions(rank, device, states):
    for state in states:
        conversion(rank, device, state)


def test_shards_go_on_from_another_optimizer_as_the_whole_does():
    in_two_processes(all_conversions, FORMATS)
