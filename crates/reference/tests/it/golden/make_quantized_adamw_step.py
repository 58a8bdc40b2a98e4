"""Writes quantized-adamw-step.txt: block-wise 8-bit AdamW on bf16, as a formula in PyTorch.

    python make_quantized_adamw_step.py > quantized-adamw-step.txt

    m = b1 M1[c1] a1 + (1 - b1) g        v = b2 M2[c2] a2 + (1 - b2) g^2
    p = bf16( p (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) )
    a = max |x| of a block,  c = the entry nearest to x / a, of two equally near ones the even

Everything but p is f32. Arrays are hexadecimal bytes as they lie in memory.
"""

import torch


def dynamic_map(signed):
    entries = [0.0, 1.0]
    for i in range(7):
        cells = 2**i if signed else 2 ** (i + 1)
        borders = torch.linspace(0.1, 1, cells + 1, dtype=torch.float32)
        scaled = [10 ** (i - 6) * mean for mean in ((borders[:-1] + borders[1:]) / 2.0).tolist()]
        entries += scaled + ([-entry for entry in scaled] if signed else [])
    return torch.tensor(sorted(entries), dtype=torch.float32)


def quantize(x, entries, block):
    codes, absmaxes = [], []
    for part in x.split(block):
        absmax = part.abs().max()
        absmaxes.append(absmax)
        scaled = part / absmax if absmax > 0 else torch.zeros_like(part)
        distance = (scaled.double()[:, None] - entries.double()[None, :]).abs()
        nearest = distance.argmin(1)
        upper = (nearest + 1).clamp(max=255)
        is_tie = (upper != nearest) & (distance.gather(1, upper[:, None]) == distance.gather(1, nearest[:, None])).flatten()
        codes.append(torch.where(is_tie & (nearest % 2 == 1), upper, nearest).to(torch.uint8))
    return torch.cat(codes), torch.stack(absmaxes)


def dequantize(codes, absmaxes, entries, block):
    return entries[codes.long()] * absmaxes.repeat_interleave(block)[: len(codes)]


def hexed(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).tolist()).hex()


def main():
    torch.manual_seed(0)
    print("# case elements block lr b1 b2 eps wd, then for every update: t, gradient, then what is left: p, codes and absmax of m and v")
    maps = dynamic_map(True), dynamic_map(False)
    for elements, block, wd in [(700, 256, 0.1), (512, 64, 0.0), (2500, 2048, 0.01)]:
        lr, b1, b2, eps = 1e-2, 0.9, 0.95, 1e-8
        print("case", elements, block, lr, b1, b2, eps, wd)
        p = (torch.randn(elements) * 0.1).bfloat16()
        print("start", hexed(p))
        state = [quantize(torch.zeros(elements), entries, block) for entries in maps]
        for t in range(1, 5):
            g = (torch.randn(elements) * 1e-2 * torch.exp(torch.randn(elements))).bfloat16()
            g32, p32 = g.float(), p.float()
            m, v = (dequantize(*half, entries, block) for half, entries in zip(state, maps))
            m = b1 * m + (1 - b1) * g32
            v = b2 * v + (1 - b2) * g32 * g32
            denominator = (v / (1 - b2**t)).sqrt() + eps
            p = (p32 * (1 - lr * wd) - lr * (m / (1 - b1**t)) / denominator).bfloat16()
            state = [quantize(x, entries, block) for x, entries in zip((m, v), maps)]
            print("update", t, hexed(g), hexed(p), *(hexed(part) for half in state for part in half))


main()
