"""Loads an exported folder with Hugging Face transformers and prints what it computes, as JSON.

usage: by_transformers.py FOLDER "[id, ...]" TEXT [SAVED]
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, ids, text = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0]
if len(sys.argv) > 4:
    # Back the other way: what transformers itself saves.
    model.save_pretrained(sys.argv[4])
    tokenizer.save_pretrained(sys.argv[4])
print(
    json.dumps(
        {
            "kind": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "logits": logits.tolist(),
            "encoded": tokenizer.encode(text, add_special_tokens=False),
            "decoded": tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)),
            "end": tokenizer.eos_token_id,
        }
    )
)
