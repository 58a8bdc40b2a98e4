"""What only a CUDA device shows: captured graphs, streams, no waiting and no allocation. Skipped without one."""

import copy

import pytest
import torch
from torch import nn

from packed_adamw import PackedAdamW
from test_optimizer import FORMATS, equal, gradients, model, run, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(network, optimizer, inputs, steps):
    """Steps of a whole training loop, eager."""
    for k in range(steps):
        optimizer.zero_grad(set_to_none=True)
        network(inputs[k]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("state", FORMATS)
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_every_replay_of_a_captured_step_is_another_update(state, clip_norm):
    eager, captured = model("cuda"), model("cuda")
    rate = torch.tensor(1e-2, device="cuda")
    settings = dict(state=state, clip_norm=clip_norm, betas=(0.9, 0.95))
    one = PackedAdamW(eager.parameters(), lr=rate, **settings)
    two = PackedAdamW(captured.parameters(), lr=rate, **settings)
    inputs = torch.randn(9, 16, 40, device="cuda")
    trained(eager, one, inputs, 9)
    fixed = inputs[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        trained(captured, two, inputs, 3)
    torch.cuda.current_stream().wait_stream(side)
    two.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured(fixed).square().mean().backward()
        two.step()
    for k in range(3, 8):
        fixed.copy_(inputs[k])
        graph.replay()
    # An eager step after replays reads its own gradients.
    two.zero_grad(set_to_none=True)
    captured(inputs[8]).square().mean().backward()
    two.step()
    assert same(eager, captured)
    assert equal(one.state_dict(), two.state_dict())
    assert two.state_dict()["state"][0]["step"] == 9


def test_a_capture_before_the_first_step_is_refused():
    network = model("cuda")
    optimizer = PackedAdamW(network.parameters())
    gradients(network, 1)
    with pytest.raises(RuntimeError, match="outside of a capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    torch.cuda.synchronize()


def steps_beside_a_sleeping_device(network, optimizer, kept):
    """By how much free memory changed over steps that neither wait for the device nor ask PyTorch for memory."""
    torch.cuda.synchronize()
    allocated, (free, _) = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)
        for step in range(12):
            for parameter, gradient in zip(network.parameters(), kept[step % 2]):
                parameter.grad = gradient
            optimizer.step()
        # The device sleeps still, so nobody has waited for it.
        assert not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    return torch.cuda.mem_get_info()[0] - free


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_waits_for_nothing_and_allocates_nothing(clip_norm):
    network = model("cuda")
    optimizer = PackedAdamW(network.parameters(), clip_norm=clip_norm)
    run(network, optimizer, 3)
    # Gradients that lie elsewhere in every other step, as in a loop that sets them to None.
    kept = [[parameter.grad for parameter in network.parameters()]]
    kept.append([gradient.clone() for gradient in kept[0]])
    torch.cuda._sleep(1)
    # Other programs may take and free memory of the device meanwhile, but not in every round.
    changes = [steps_beside_a_sleeping_device(network, optimizer, kept) for _ in range(5)]
    assert 0 in changes


def test_learning_rates_on_the_device():
    network, other = model("cuda"), model("cuda")
    rate = torch.tensor(1e-2, device="cuda")
    one = PackedAdamW(network.parameters(), lr=rate)
    two = PackedAdamW(other.parameters(), lr=float(rate))
    run(network, one, 2)
    run(other, two, 2)
    rate.fill_(2e-3)
    two.param_groups[0]["lr"] = rate.item()
    run(network, one, 2, first=3)
    run(other, two, 2, first=3)
    assert same(network, other)
    one.param_groups[0]["lr"] = torch.tensor(1e-2, dtype=torch.float64, device="cuda")
    with pytest.raises(ValueError, match="torch.float32 tensor"):
        one.step()


def test_two_kinds_of_memory_in_one_model():
    here, there = model("cpu"), model("cuda", seed=1)
    network = nn.ModuleList([here, there])
    optimizer = PackedAdamW(network.parameters(), lr=1e-2, state="block8", clip_norm=1.0)
    run(network, optimizer, 3)
    assert [report.update for report in optimizer.report()] == [3, 3]
    other = copy.deepcopy(network)
    resumed = PackedAdamW(other.parameters(), lr=1e-2, state="block8", clip_norm=1.0)
    resumed.load_state_dict(optimizer.state_dict())
    run(network, optimizer, 2, first=4)
    run(other, resumed, 2, first=4)
    assert same(network, other)
