"""Writes torch-adamw-f32.txt and torch-adamw-f64.txt beside this script:
trajectories of torch.optim.AdamW on the CPU, one parameter at a time, no foreach,
no fused kernel.

Run it with any Python that has torch: python make_torch_trajectories.py
Rows of f32: update, then the bits of g, and of p, m, v before and after it.
Rows of f64: the start and the gradients of one element, then p, m, v at the end.
"""

import pathlib
import struct

import torch

CASES = [
    # lr, beta1, beta2, eps, weight_decay
    (1e-3, 0.9, 0.999, 1e-8, 0.01),
    (6e-4, 0.9, 0.95, 1e-8, 0.1),
    (3e-2, 0.5, 0.9, 1e-3, 0.0),
    (1e-4, 0.0, 0.99, 1e-6, 1.0),
]
ELEMENTS = 24
UPDATES = 10


def bits(number, double):
    if double:
        return struct.pack(">d", number).hex()
    return struct.pack(">f", number).hex()


def run(case, dtype):
    lr, beta1, beta2, eps, weight_decay = case
    torch.manual_seed(20)
    start = torch.randn(ELEMENTS, dtype=torch.float32) * 0.5
    scale = torch.exp(2 * torch.randn(ELEMENTS, dtype=torch.float32)) * 1e-3
    p = start.to(dtype).clone().requires_grad_(True)
    optimizer = torch.optim.AdamW(
        [p], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay,
        foreach=False, fused=False,
    )
    zero = torch.zeros(ELEMENTS, dtype=dtype)
    m, v = zero.clone(), zero.clone()
    for update in range(1, UPDATES + 1):
        gradient = (torch.randn(ELEMENTS, dtype=torch.float32) * scale).to(dtype)
        before = (p.detach().clone(), m.clone(), v.clone())
        p.grad = gradient.clone()
        optimizer.step()
        state = optimizer.state[p]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        yield update, gradient, before, (p.detach().clone(), m.clone(), v.clone())


def header(case):
    return "case " + " ".join(repr(number) for number in case)


def f32_text():
    lines = [f"# torch {torch.__version__.split('+')[0]}: update g p0 m0 v0 p m v"]
    for case in CASES:
        lines.append(header(case))
        for update, gradient, before, after in run(case, torch.float32):
            for i in range(ELEMENTS):
                numbers = [gradient[i], *(t[i] for t in before), *(t[i] for t in after)]
                row = " ".join(bits(n.item(), False) for n in numbers)
                lines.append(f"{update} {row}")
    return "\n".join(lines) + "\n"


def f64_text():
    lines = [f"# torch {torch.__version__.split('+')[0]}: p0, gradients, p m v at the end"]
    for case in CASES:
        lines.append(header(case))
        steps = list(run(case, torch.float64))
        for i in range(ELEMENTS):
            numbers = [steps[0][2][0][i]]
            numbers += [gradient[i] for _, gradient, _, _ in steps]
            numbers += [t[i] for t in steps[-1][3]]
            lines.append(" ".join(bits(n.item(), True) for n in numbers))
    return "\n".join(lines) + "\n"


here = pathlib.Path(__file__).parent
(here / "torch-adamw-f32.txt").write_text(f32_text())
(here / "torch-adamw-f64.txt").write_text(f64_text())
