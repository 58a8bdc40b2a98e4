"""Writes gpt.txt: loss, logits and gradients of a small GPT by PyTorch's own operations, in f64.

Usage: python gpt.py > gpt.txt      (needs torch; a CPU is enough)

The parameters come from integers, so that the test makes the same ones without reading them:
element i of the flat buffer is (((i + 1) * 2654435761) mod 2^32 / 2^32 - 1/2) / 2, plus 1 for gains.
"""

import torch
import torch.nn.functional as F

V, CONTEXT, C, L, H = 13, 9, 12, 2, 3
B, T = 2, 8
IGNORED = 2**32 - 1
SCALE = torch.tensor(1 / 13, dtype=torch.float32).item()
TOKENS = [(7 * i + 3) % V for i in range(B * T)]
TARGETS = [IGNORED if i in (5, 9, 15) else (5 * i + 1) % V for i in range(B * T)]


def slots():
    yield "wte.weight", (V, C)
    yield "wpe.weight", (CONTEXT, C)
    for layer in range(L):
        h = f"h.{layer}."
        yield from ((h + "ln_1.weight", (C,)), (h + "ln_1.bias", (C,)))
        yield from ((h + "attn.c_attn.weight", (C, 3 * C)), (h + "attn.c_attn.bias", (3 * C,)))
        yield from ((h + "attn.c_proj.weight", (C, C)), (h + "attn.c_proj.bias", (C,)))
        yield from ((h + "ln_2.weight", (C,)), (h + "ln_2.bias", (C,)))
        yield from ((h + "mlp.c_fc.weight", (C, 4 * C)), (h + "mlp.c_fc.bias", (4 * C,)))
        yield from ((h + "mlp.c_proj.weight", (4 * C, C)), (h + "mlp.c_proj.bias", (C,)))
    yield from (("ln_f.weight", (C,)), ("ln_f.bias", (C,)))


def parameters():
    made, start = {}, 0
    for name, shape in slots():
        count = torch.Size(shape).numel()
        values = [((i + 1) * 2654435761 % 2**32 / 2**32 - 0.5) / 2 for i in range(start, start + count)]
        gain = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        tensor = (torch.tensor(values, dtype=torch.float64) + gain).float().double().reshape(shape)
        made[name] = tensor.requires_grad_()
        start += count
    return made


def forward(p, tokens):
    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:T]
    for layer in range(L):
        h = f"h.{layer}."

        def linear(name, x):
            return F.linear(x, p[h + name + ".weight"].T, p[h + name + ".bias"])

        def norm(name, x):
            return F.layer_norm(x, (C,), p[h + name + ".weight"], p[h + name + ".bias"])

        heads = [y.view(B, T, H, C // H).transpose(1, 2) for y in linear("attn.c_attn", norm("ln_1", x)).split(C, -1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + linear("attn.c_proj", attended.transpose(1, 2).reshape(B, T, C))
        inside = F.gelu(linear("mlp.c_fc", norm("ln_2", x)), approximate="tanh")
        x = x + linear("mlp.c_proj", inside)
    return F.linear(F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"]), p["wte.weight"])


p = parameters()
logits = forward(p, torch.tensor(TOKENS).view(B, T))
targets = torch.tensor([-1 if id == IGNORED else id for id in TARGETS])
losses = F.cross_entropy(logits.view(-1, V), targets, ignore_index=-1, reduction="none")
(losses.sum() * SCALE).backward()

named = [("losses", losses), ("logits", logits)] + [(name, p[name].grad) for name, _ in slots()]
for name, tensor in named:
    print(name, *(f"{value:.12e}" for value in tensor.detach().flatten().tolist()))
