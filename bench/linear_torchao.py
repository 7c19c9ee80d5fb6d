#!/usr/bin/env python3
"""Times torchao's compiled training layers beside a compiled bf16 nn.Linear: the lines to put beside `halftone bench linear`.

    python bench/linear_torchao.py [--shape 16384x14336x4096] [--recipes bf16,fp8_tensorwise,...] [--csv FILE]

Needs a CUDA device, torch 2.11 and torchao 0.17. Every recipe lives in a process of its own: all compile at once, then they
are measured in turns. x[M,K] and w[N,K] are bf16 normal numbers, the gradient of w is bf16; x, w and dy are quantised in every step.
  bf16             nn.Linear
  fp8_tensorwise, fp8_rowwise, fp8_rowwise_with_gw_hp     torchao.float8
  fp8_blockwise    torchao.prototype.blockwise_fp8_training
  int8             torchao.prototype.quantized_training, int8 mixed precision (module swap)
  mxfp8            torchao.prototype.mx_formats, emulated: Hopper has no such units
"""
import argparse
import multiprocessing
import statistics
import time

RECIPES = ["bf16", "fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp", "fp8_blockwise", "int8", "mxfp8"]


def make_layer(recipe, k, n):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16))
    with torch.no_grad():
        model[0].weight.normal_(0, 0.02)
    if recipe in ("fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe[4:]))
    elif recipe == "fp8_blockwise":
        from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

        model[0] = Float8BlockwiseLinear.from_float(model[0])
    elif recipe == "int8":
        from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig
        from torchao.quantization import quantize_

        quantize_(model, Int8MixedPrecisionTrainingConfig(module_swap=True))
    elif recipe == "mxfp8":
        from torchao.prototype.mx_formats.config import MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice, ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_linear import mx_mm
        from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

        class MXLinear(torch.nn.Module):
            def __init__(self, weight):
                super().__init__()
                self.weight = weight

            def forward(self, x):
                e4m3 = torch.float8_e4m3fn
                return mx_mm.apply(x, self.weight, e4m3, e4m3, e4m3, 32, KernelPreference.EMULATED, MXFP8Dim0CastKernelChoice.TORCH,
                                   MXFP8Dim1CastKernelChoice.TORCH, ScaleCalculationMode.RCEIL, False)

        model[0] = MXLinear(model[0].weight)
    return torch.compile(model)


def child(recipe, shape, pipe):
    """Answers every message N with the milliseconds of forward and backward of N steps, or a string that says why not."""
    try:
        import torch

        m, n, k = shape
        torch.manual_seed(1)
        layer = make_layer(recipe, k, n)
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        dy = torch.randn(m, n, device="cuda", dtype=torch.bfloat16) * 1e-3

        def steps(count):
            marks = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
            for a, b, c in marks:
                x.grad = None
                for p in layer.parameters():
                    p.grad = None
                a.record()
                y = layer(x)
                b.record()
                y.backward(dy)
                c.record()
            torch.cuda.synchronize()
            return [(a.elapsed_time(b), b.elapsed_time(c)) for a, b, c in marks]

        steps(3)
        pipe.send(torch.__version__)
        while count := pipe.recv():
            pipe.send(steps(count))
    except Exception as e:  # report a recipe that this version or device does not support, and continue
        pipe.send("failed: " + " ".join(f"{type(e).__name__}: {e}".split())[:160])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="16384x14336x4096", help="MxNxK: tokens x outputs x inputs")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="of each recipe in a round; the first quarter does not count")
    parser.add_argument("--patience", type=int, default=240, help="seconds until a recipe has to be compiled")
    parser.add_argument("--csv")
    a = parser.parse_args()
    shape = [int(s) for s in a.shape.split("x")]
    names = a.recipes.split(",")
    assert "bf16" in names, "--recipes: bf16, the reference, is missing"
    spawn = multiprocessing.get_context("spawn")
    pipes, processes, start = {}, [], time.monotonic()
    for name in names:
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=child, args=(name, shape, theirs), daemon=True))
        processes[-1].start()
    failed, version = {}, ""
    for name in names:
        left = max(0, a.patience - (time.monotonic() - start))
        answer = pipes[name].recv() if pipes[name].poll(left) else f"failed: not compiled after {a.patience} s"
        if answer.startswith("failed"):
            failed[name] = answer
        else:
            version = answer
    ready = [name for name in names if name not in failed]
    times = {name: [] for name in ready}
    for turn in range(-1, a.rounds):
        for name in ready:
            pipes[name].send(a.steps)
            answer = pipes[name].recv()
            if turn >= 0:
                times[name] += answer[len(answer) // 4 :]  # drop the first quarter: the GPU clock settles
    m, n, k = shape
    print(f"torch {version}, M x N x K = {m} x {n} x {k}, all ready after {time.monotonic() - start:.0f} s")
    rows = [["recipe", "forward_ms", "backward_ms", "both_ms", "forward_ratio", "backward_ratio", "both_ratio", "tflops"]]
    reference = None
    for name in ready:
        f, b = (statistics.median(t[i] for t in times[name]) for i in (0, 1))
        reference = reference or (f, b)
        rows.append([name, f"{f:.3f}", f"{b:.3f}", f"{f + b:.3f}", f"{reference[0] / f:.3f}", f"{reference[1] / b:.3f}",
                     f"{sum(reference) / (f + b):.3f}", f"{6e-9 * m * n * k / (f + b):.0f}"])
    for row in rows:
        print("  " + row[0].ljust(24) + "".join(cell.rjust(16) for cell in row[1:]))
    for name, why in failed.items():
        print(f"  {name}: {why}")
    if a.csv:
        with open(a.csv, "w") as file:
            file.write("\n".join(",".join(row) for row in rows) + "\n")
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main()
