"""Going on from the moments of other optimizers."""

import pytest
import torch

from packed_adamw import PackedAdamW
from test_optimizer import DEVICES, FORMATS, equal, gradients, model, run, same

#: Largest relative error of a stored first moment and of a stored RMS, by format.
BOUNDS = {
    "fp32": (0.0, 1e-7),
    "fp16": (2**-10, 2**-10),
    "e4": (2**-11, 2**-12),
    "e4s": (2**-10, 2**-11),
    "block8": (0.03, 0.03),
    "block8-original": (0.03, 0.03),
    "ustate1q": (0.9, 0.2),
    "ustate1q-original": (0.9, 0.2),
    "n4l4": (0.3, 0.2),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", FORMATS)
def test_from_torch(state, device):
    network = model(device)
    theirs = torch.optim.AdamW(network.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.2)
    run(network, theirs, 5)
    ours = PackedAdamW.from_adamw(theirs, state=state)
    group = ours.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (3e-3, (0.9, 0.98), 0.2)
    for parameter, error in ours.conversion_errors.items():
        first, rms = BOUNDS[state]
        assert error.first <= first and error.rms <= rms, (parameter.shape, error)
    assert all(s["step"] == 5 for s in ours.state_dict()["state"].values())
    run(network, ours, 1, first=6)
    assert all(s["step"] == 6 for s in ours.state_dict()["state"].values())


def test_fp32_goes_on_as_torch_would():
    one, two = model(), model()
    settings = dict(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    straight = torch.optim.AdamW(one.parameters(), **settings)
    run(one, straight, 8)
    first = torch.optim.AdamW(two.parameters(), **settings)
    run(two, first, 4)
    run(two, PackedAdamW.from_adamw(first, state="fp32"), 4, first=5)
    for a, b in zip(one.parameters(), two.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


def other_optimizer(name, network):
    if name == "bitsandbytes":
        library = pytest.importorskip("bitsandbytes")
        return library.optim.AdamW8bit(network.parameters(), lr=1e-3, min_8bit_size=1024)
    if name == "torchao":
        library = pytest.importorskip("torchao.optim")
        return library.AdamW8bit(network.parameters(), lr=1e-3)
    library = pytest.importorskip("turboadam")
    return library.TurboAdam(network.parameters(), lr=1e-3)


@pytest.mark.parametrize("name", ["bitsandbytes", "torchao", "turboadam"])
def test_from_low_bit_optimizers(name):
    network, plain = model(), model()
    theirs = other_optimizer(name, network)
    exact = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    run(network, theirs, 3)
    run(plain, exact, 3)
    ours = PackedAdamW.from_adamw(theirs, state="fp32")
    for a, b in zip(network.parameters(), plain.parameters()):
        m, v = ours.moments(a)
        expected = exact.state[b]
        # Their own storage errs; what is read must be these moments and no others.
        assert (m - expected["exp_avg"]).norm() < 0.9 * expected["exp_avg"].norm()
        assert (v.sqrt() - expected["exp_avg_sq"].sqrt()).norm() < 0.2 * expected["exp_avg_sq"].sqrt().norm()


def test_what_is_no_adamw_is_refused():
    network = model()
    momentum = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    run(network, momentum, 1)
    with pytest.raises((ValueError, KeyError)) as raised:
        PackedAdamW.from_adamw(momentum)
    assert "AdamW" in str(raised.value)
