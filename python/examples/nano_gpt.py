"""A small GPT on the text of this repository, trained with packed AdamW. Needs torch alone.

    python examples/nano_gpt.py [--state e4] [--compile] [--steps 300]
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from packed_adamw import PackedAdamW

CONTEXT, CHANNELS, LAYERS, HEADS = 128, 128, 4, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(2))
        self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 4 * CHANNELS), nn.GELU(), nn.Linear(4 * CHANNELS, CHANNELS))

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, CHANNELS))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(256, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(CHANNELS)

    def forward(self, ids, targets):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        logits = self.norm(self.blocks(x)) @ self.token.weight.T
        return functional.cross_entropy(logits.view(-1, 256), targets.reshape(-1))


parser = argparse.ArgumentParser()
parser.add_argument("--state", default="e4")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--compile", action="store_true")
arguments = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
documents = sorted(Path(__file__).parents[2].glob("docs/*.md"))
text = torch.tensor(list(b"\n".join(path.read_bytes() for path in documents)), device=device)
model = Gpt().to(device)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else None
optimizer = PackedAdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), state=arguments.state, clip_norm=1.0)
loss_of = torch.compile(model) if arguments.compile else model
losses = []
for step in range(1, arguments.steps + 1):
    starts = torch.randint(len(text) - CONTEXT - 1, (16,), device=device)
    windows = text[starts[:, None] + torch.arange(CONTEXT + 1, device=device)]
    loss = loss_of(windows[:, :-1], windows[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step == 1 or step % 50 == 0:
        recent = torch.stack(losses[-50:]).mean()
        print(f"step {step:4}  mean loss {recent:.4f}  state {optimizer.state_bytes():,} bytes", flush=True)
