"""Milliseconds of `optimizer.step()` in PyTorch on a CUDA device, ours and its peers', in one table.

    python benchmarks/step.py [--sizes 1gi,gpt2-124m,reference-12m] [--optimizers e4,block8,torch-fused]
        [--dtype float32|bfloat16] [--json FILE]

Eager: the host's time included, over steps one after the other. A step on the device alone is that of a captured graph.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import torch
from torch import nn


def transformer(vocabulary, context, channels, layers):
    """Lengths of the tensors of a GPT-2."""
    lengths = [vocabulary * channels, context * channels]
    for _ in range(layers):
        c = channels
        lengths += [c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c]
    return lengths + [channels, channels]


SIZES = {
    "1gi": [1 << 30],
    "gpt2-124m": transformer(50_257, 1_024, 768, 12),
    "reference-12m": transformer(12_096, 1_152, 320, 6),
}


def optimizer_of(name, parameters):
    if name == "torch-fused":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    if name == "torch-foreach":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    if name == "bitsandbytes":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-4)
    if name == "turboadam":
        import turboadam

        return turboadam.TurboAdam(parameters, lr=1e-4)
    from packed_adamw import PackedAdamW

    return PackedAdamW(parameters, lr=1e-4, state=name)


def eager(optimizer, steps):
    """Median over five runs of milliseconds a step, from the first call to the end of the device's work."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return statistics.median(times)


def host(optimizer):
    """Microseconds until `step` returns, with nothing before it to wait for."""
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def captured(optimizer, steps):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(steps):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def can_capture(name):
    return name not in ("torch-fused", "torch-foreach", "bitsandbytes", "turboadam")


def measure(size, name, dtype):
    lengths = SIZES[size]
    parameters = [nn.Parameter(torch.randn(n, device="cuda", dtype=dtype) * 0.02) for n in lengths]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    optimizer = optimizer_of(name, parameters)
    start = time.perf_counter()
    optimizer.step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    torch.cuda.empty_cache()
    state = before - torch.cuda.mem_get_info()[0]
    steps = 10 if size == "1gi" else 100
    for _ in range(3):
        optimizer.step()
    row = {
        "size": size,
        "optimizer": name,
        "eager_ms": eager(optimizer, steps),
        "host_us": host(optimizer),
        "first_step_s": first,
        "state_bytes_a_parameter": state / sum(lengths),
    }
    # Not every peer's step can be captured.
    row["captured_ms"] = captured(optimizer, steps) if can_capture(name) else float("nan")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--optimizers", default="e4,block8,ustate1q,n4l4,fp32,torch-fused")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("skipped: no CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    columns = ("eager_ms", "captured_ms", "host_us", "first_step_s", "state_bytes_a_parameter")
    print(f"{'size':14} {'optimizer':14}" + "".join(f"{name:>24}" for name in columns))
    rows = []
    for size in arguments.sizes.split(","):
        for name in arguments.optimizers.split(","):
            row = measure(size, name, getattr(torch, arguments.dtype))
            rows.append(row)
            print(f"{size:14} {name:14}" + "".join(f"{row[column]:24.4f}" for column in columns), flush=True)
            # Optimizers of PyTorch are freed with the cycles that they are part of.
            gc.collect()
            torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
