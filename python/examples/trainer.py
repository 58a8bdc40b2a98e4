"""A tiny GPT-2 of Hugging Face transformers, whose Trainer takes packed AdamW through `optimizers=`.

    python examples/trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, get_linear_schedule_with_warmup

from packed_adamw import PackedAdamW


class Sequences(torch.utils.data.Dataset):
    """Counting modulo 50, from anywhere."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.arange(index, index + 32) % 50
        return {"input_ids": ids, "labels": ids}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=64, n_layer=2, n_head=2))
optimizer = PackedAdamW(model.parameters(), lr=3e-3, state="block8")
schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=5, num_training_steps=64)
settings = TrainingArguments(
    output_dir="trainer-example", per_device_train_batch_size=16, num_train_epochs=4, logging_steps=16,
    report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(model, settings, train_dataset=Sequences(), optimizers=(optimizer, schedule))
result = trainer.train()
last = trainer.state.log_history[-2]["loss"]
print(f"loss {last:.4f} after {result.global_step} steps, {optimizer.state_bytes():,} bytes of state")
