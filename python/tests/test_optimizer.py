"""The contract of torch.optim.Optimizer, and the arithmetic against torch's own AdamW."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from packed_adamw import PackedAdamW, formats

FORMATS = [name for name, _, _ in formats()]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def model(device="cpu", dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(40, 130), nn.GELU(), nn.Linear(130, 70), nn.LayerNorm(70), nn.Linear(70, 3))
    return made.to(device=device, dtype=dtype)


def gradients(network, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        gradient = torch.randn(parameter.shape, generator=generator) * 0.1
        parameter.grad = gradient.to(parameter.device, parameter.dtype)


def run(network, optimizer, steps, first=1):
    for step in range(first, first + steps):
        gradients(network, step)
        optimizer.step()


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters()))


def equal(left, right):
    """Whether two state dictionaries hold the same bits."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def whole(optimizer, parameter, position=0):
    """A parameter in f32, with the bits that bf16 ones keep beside the moments."""
    if parameter.dtype == torch.float32:
        return parameter.detach()
    remainder = optimizer.state_dict()["state"][position]["remainder"].view(parameter.shape)
    # The upper half was rounded up where the remainder, as a number with a sign, is below zero.
    upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
    return (upper + remainder.to(torch.int32)).view(torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_fp32_state_follows_torch(device):
    ours, theirs = model(device), model(device)
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    packed = PackedAdamW(ours.parameters(), state="fp32", **settings)
    plain = torch.optim.AdamW(theirs.parameters(), **settings)
    run(ours, packed, 20)
    run(theirs, plain, 20)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        # The same formula with other roundings: a few units in the last place of 20 steps of at most lr.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        m, v = packed.moments(a)
        torch.testing.assert_close(m, plain.state[b]["exp_avg"].cpu(), rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(v, plain.state[b]["exp_avg_sq"].cpu(), rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("state", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_format_saves_and_goes_on(state, device):
    straight, stopped = model(device), model(device)
    settings = dict(lr=1e-2, betas=(0.9, 0.99), state=state, clip_norm=1.0, seed=5)
    one, two = (PackedAdamW(network.parameters(), **settings) for network in (straight, stopped))
    run(straight, one, 6)
    run(stopped, two, 3)
    assert same(straight, straight) and not same(straight, stopped)
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    three = PackedAdamW(stopped.parameters(), **{**settings, "lr": 1.0})
    three.load_state_dict(saved)
    assert three.param_groups[0]["lr"] == 1e-2
    run(stopped, three, 3, first=4)
    assert same(straight, stopped)
    assert equal(one.state_dict(), three.state_dict())
    total = sum(parameter.numel() for parameter in straight.parameters())
    assert one.state_bytes() < total * 8 or state == "fp32"


def test_devices_have_the_same_bits():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for state in FORMATS:
        for dtype in (torch.float32, torch.bfloat16):
            here, there = model("cpu", dtype), model("cpu", dtype).to("cuda")
            pair = [
                PackedAdamW(network.parameters(), lr=1e-2, betas=(0.9, 0.95), state=state, clip_norm=0.5)
                for network in (here, there)
            ]
            for network, optimizer in zip((here, there), pair):
                run(network, optimizer, 5)
            for a, b in zip(here.parameters(), there.parameters()):
                assert torch.equal(a, b.cpu()), (state, dtype)
            saved = [optimizer.state_dict()["state"] for optimizer in pair]
            on_cpu = [{k: {n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in v.items()} for k, v in s.items()} for s in saved]
            assert equal(*on_cpu), (state, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_parameters_keep_what_they_lack(device):
    wide, narrow = model(device), model(device)
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.copy_(parameter.bfloat16())
    narrow.bfloat16()
    one = PackedAdamW(wide.parameters(), lr=1e-5, state="fp32")
    two = PackedAdamW(narrow.parameters(), lr=1e-5, state="fp32")
    for step in range(50):
        gradients(narrow, step)
        for a, b in zip(wide.parameters(), narrow.parameters()):
            a.grad = b.grad.float()
        one.step()
        two.step()
    for a, b in zip(wide.parameters(), narrow.parameters()):
        # The nearest bf16 of the same f32; ties go away from zero.
        torch.testing.assert_close(a.bfloat16().float(), b.float(), rtol=2**-8, atol=0)
        assert (a.bfloat16() != b).float().mean() < 0.01


@pytest.mark.parametrize("state", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_in_any_mix(device, state):
    dtypes = [torch.float32, torch.bfloat16]
    if not hasattr(nn.Parameter(torch.ones(1)), "grad_dtype"):
        pytest.skip("this PyTorch has gradients of the dtype of their parameter alone")
    mix = [(own, of_gradient) for own in dtypes for of_gradient in dtypes]
    torch.manual_seed(0)
    # The sequence twice, for tensors that are stored in blocks and for small ones.
    starts = [torch.randn(n).bfloat16() for n in (5000, 100) for _ in mix]
    mixed = [nn.Parameter(start.to(device, own)) for start, (own, _) in zip(starts, 2 * mix)]
    plain = [nn.Parameter(start.float().to(device)) for start in starts]
    one, two = (PackedAdamW(p, lr=1e-2, state=state, clip_norm=1.0) for p in (mixed, plain))
    for parameter, (_, of_gradient) in zip(mixed, 2 * mix):
        parameter.grad_dtype = of_gradient
    for _ in range(4):
        for a, b, (_, of_gradient) in zip(mixed, plain, 2 * mix):
            gradient = (torch.randn(a.shape) * 0.1).bfloat16().to(device)
            a.grad, b.grad = gradient.to(of_gradient), gradient.float()
        one.step()
        two.step()
    for position, (a, b) in enumerate(zip(mixed, plain)):
        assert torch.equal(whole(one, a, position), b), mix[position % 4]


def test_parameters_without_gradients_are_left_alone():
    network, other = model(), model()
    optimizer = PackedAdamW(network.parameters(), lr=1e-2, state="e4", weight_decay=0.5)
    reference = PackedAdamW(other.parameters(), lr=1e-2, state="e4", weight_decay=0.5)
    parameters, others = list(network.parameters()), list(other.parameters())
    before = parameters[0].detach().clone()
    for step in range(1, 4):
        gradients(network, step)
        parameters[0].grad = None
        optimizer.step()
    assert torch.equal(parameters[0], before)
    assert 0 not in optimizer.state_dict()["state"] or not optimizer.state_dict()["state"][0]
    # Its first update comes late, and is a first one all the same; the others rest meanwhile.
    network.zero_grad()
    parameters[0].grad = torch.full_like(before, 0.1)
    optimizer.step()
    others[0].grad = torch.full_like(before, 0.1)
    reference.step()
    assert torch.equal(parameters[0], others[0])
    run(network, optimizer, 1, first=9)
    saved = optimizer.state_dict()["state"]
    steps = [saved[position]["step"] for position in range(len(parameters))]
    assert steps == [2] + [4] * (len(parameters) - 1)


def test_some_gradients_stop_coming():
    network, other = model(), model()
    settings = dict(lr=1e-2, state="n4l4", betas=(0.9, 0.99))
    optimizer = PackedAdamW(network.parameters(), **settings)
    run(network, optimizer, 2)
    kept = [parameter.detach().clone() for parameter in network.parameters()]
    gradients(network, 3)
    for parameter in list(network.parameters())[:2]:
        parameter.grad = None
    optimizer.step()
    after = list(network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(after[:2], kept[:2]))
    assert not any(torch.equal(a, b) for a, b in zip(after[2:], kept[2:]))
    saved = optimizer.state_dict()["state"]
    assert [saved[position]["step"] for position in range(len(kept))] == [2, 2] + [3] * (len(kept) - 2)
    resumed = PackedAdamW(other.parameters(), **settings)
    other.load_state_dict(network.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    run(network, optimizer, 2, first=7)
    run(other, resumed, 2, first=7)
    assert same(network, other)


def test_gradients_stop_coming_where_others_came_late():
    network = model()
    parameters = list(network.parameters())
    optimizer = PackedAdamW(parameters, lr=1e-2, clip_norm=1.0)
    # Three parameters alone, then all, then all but two: three numbers of updates, two of them of three parameters.
    for step, ready in enumerate((slice(0, 3), slice(None), slice(0, -2)), start=1):
        network.zero_grad()
        gradients(network, step)
        for parameter in set(parameters) - set(parameters[ready]):
            parameter.grad = None
        optimizer.step()
    saved = optimizer.state_dict()["state"]
    steps = [saved[position]["step"] for position in range(len(parameters))]
    assert steps == [3, 3, 3, 2, 2, 2, 1, 1]


def test_groups_schedulers_hooks_and_closures():
    network = model()
    parameters = list(network.parameters())
    optimizer = PackedAdamW(
        [
            {"params": parameters[:3], "state": "block8", "weight_decay": 0.0},
            {"params": parameters[3:6], "bias": "auto"},
        ],
        lr=1e-2,
        state="e4",
    )
    optimizer.add_param_group({"params": parameters[6:], "lr": 1e-3, "state": "fp16"})
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))

    def closure():
        optimizer.zero_grad(set_to_none=True)
        loss = network(torch.ones(2, 40)).square().sum()
        loss.backward()
        return loss

    losses = []
    for _ in range(9):
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert losses[-1] < losses[0] and len(seen) == 9
    # The betas cycle with the schedule, and a state saved under some is loaded under others.
    other = copy.deepcopy(network)
    twin = PackedAdamW(
        [
            {"params": list(other.parameters())[:3], "state": "block8"},
            {"params": list(other.parameters())[3:6], "bias": "auto"},
            {"params": list(other.parameters())[6:], "state": "fp16"},
        ]
    )
    twin.load_state_dict(optimizer.state_dict())
    run(network, optimizer, 2)
    run(other, twin, 2)
    assert same(network, other)


def test_deep_copies_and_pickles_go_on():
    network = model()
    optimizer = PackedAdamW(network.parameters(), lr=1e-2, state="e4s", clip_norm=1.0)
    run(network, optimizer, 3)
    copied_network, copied = copy.deepcopy((network, optimizer))
    pickled_network, pickled = pickle.loads(pickle.dumps((network, optimizer)))
    for other, own in ((copied_network, copied), (pickled_network, pickled)):
        assert set(map(id, own.param_groups[0]["params"])) == set(map(id, other.parameters()))
        run(other, own, 2, first=4)
    run(network, optimizer, 2, first=4)
    assert same(network, copied_network) and same(network, pickled_network)


def test_scaled_gradients():
    network = model()
    optimizer = PackedAdamW(network.parameters(), lr=1e-2, state="e4")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    scaler.scale(network(torch.ones(2, 40)).square().sum()).backward()
    next(network.parameters()).grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before))
    optimizer.zero_grad()
    scaler.scale(network(torch.ones(2, 40)).square().sum()).backward()
    scaler.step(optimizer)
    assert not same(network, model())


def test_elements_that_are_not_finite():
    for nonfinite in ("stop", "skip"):
        network = model()
        optimizer = PackedAdamW(network.parameters(), lr=1e-2, nonfinite=nonfinite)
        before = [parameter.detach().clone() for parameter in network.parameters()]
        gradients(network, 1)
        list(network.parameters())[2].grad[3, 4] = float("nan")
        optimizer.step()
        (report,) = optimizer.report()
        assert report.nonfinite == 1 and report.skipped == (nonfinite == "skip")
        changed = [not torch.equal(a, b) for a, b in zip(network.parameters(), before)]
        assert all(changed) if nonfinite == "stop" else not any(changed)
        assert list(network.parameters())[2][3, 4] == before[2][3, 4]


def test_clipping_inside_of_a_step():
    network, other = model(), model()
    clipped = PackedAdamW(network.parameters(), lr=1e-2, state="fp32", clip_norm=0.25)
    plain = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.01)
    for step in range(4):
        gradients(network, step)
        gradients(other, step)
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.25)
        clipped.step()
        plain.step()
        assert clipped.report()[0].gradient_norm == pytest.approx(norm.item(), rel=1e-6)
    for a, b in zip(network.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


def test_memory_formats_and_views():
    weight = nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))
    twin = nn.Parameter(weight.detach().contiguous())
    one, two = PackedAdamW([weight], state="fp32"), PackedAdamW([twin], state="fp32")
    for step in range(3):
        gradient = torch.randn(8, 4, 3, 3)
        weight.grad = gradient.clone() if step % 2 else gradient.to(memory_format=torch.channels_last)
        twin.grad = gradient.to(memory_format=torch.channels_last) if step == 1 else gradient.clone()
        one.step()
        two.step()
    assert torch.equal(weight, twin)
    wide = nn.Parameter(torch.zeros(6))
    wide.grad = torch.ones(()).expand(6)
    optimizer = PackedAdamW([wide], lr=0.5, weight_decay=0.0)
    optimizer.step()
    assert torch.all(wide < -0.49)


def refused(message, make):
    with pytest.raises(ValueError) as raised:
        make()
    text = str(raised.value)
    assert message in text and "\n" not in text, text


def test_what_cannot_be_updated_is_named():
    refused("expected one of fp32", lambda: PackedAdamW([nn.Parameter(torch.ones(2))], state="e5"))
    refused("torch.float64", lambda: PackedAdamW([nn.Parameter(torch.ones(2).double())]))
    refused("torch.complex64", lambda: PackedAdamW([nn.Parameter(torch.ones(2, dtype=torch.complex64))]))
    refused("strides (2,)", lambda: PackedAdamW([nn.Parameter(torch.ones(8)[::2])]))
    refused("clip_norm", lambda: PackedAdamW([nn.Parameter(torch.ones(2))], clip_norm=0.0))
    refused("nonfinite", lambda: PackedAdamW([nn.Parameter(torch.ones(2))], nonfinite="no"))
    refused("bias", lambda: PackedAdamW([nn.Parameter(torch.ones(2))], bias=1.5))
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = PackedAdamW(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    refused("SparseAdam", optimizer.step)
    weight = nn.Parameter(torch.ones(4))
    optimizer = PackedAdamW([weight], betas=(1.5, 0.9))
    weight.grad = torch.ones(4)
    refused("beta1", optimizer.step)


def test_a_state_of_another_kind_is_refused():
    network = model()
    optimizer = PackedAdamW(network.parameters(), state="e4")
    run(network, optimizer, 1)
    saved = optimizer.state_dict()
    refused("expected the formats ['block8']", lambda: PackedAdamW(model().parameters(), state="block8").load_state_dict(saved))
    section = next(k for k, v in saved["state"][0].items() if isinstance(v, torch.Tensor))
    saved["state"][0][section] = saved["state"][0][section][:-1]
    refused("5200", lambda: PackedAdamW(model().parameters(), state="e4").load_state_dict(saved))
