#!/usr/bin/env python3
"""Several processes as one run of halftone train on the CPU: their losses are those of one process, checkpoints are read by any number of
them, and whatever ends one process ends all, each with one line, within the time-out. As the test distributed_processes it runs every mesh
and number of processes; arguments name cases. HALFTONE_DEVICE=cuda HALFTONE_PROCESSES=4 processes.py restarts: on GPUs."""
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from _program import conclude, expect, path_of, source

program = path_of("halftone")
torchrun = shutil.which("torchrun", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
MODEL = {"dim": 64, "n_layers": 3, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 96}
ROWS = 24  # per step
DEVICE, PROCESSES = os.environ.get("HALFTONE_DEVICE", "cpu"), int(os.environ.get("HALFTONE_PROCESSES", "2"))
EVERY = os.environ.get("HALFTONE_EVERY_MESH") == "1"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    """The same run by any number of processes."""

    def __init__(self, work, name, *options, steps=12):
        self.folder = os.path.join(work, name)
        self.options = ["train", "--config", "recipes/llama3_debug.toml", "--device", DEVICE, "--model.hf_assets_path",
                        os.path.join(source, "tests/assets/tokenizer"), "--model.overrides", json.dumps(MODEL), "--training.dataset", "text",
                        "--training.dataset_path", os.path.join(source, "docs/*.md"), "--training.seq_len=32", "--training.global_batch_size",
                        str(ROWS), "--training.local_batch_size=1", "--training.steps", str(steps), "--lr_scheduler.warmup_steps=2",
                        "--lr_scheduler.total_steps=100", "--optimizer.lr=1e-2", "--debug.seed=42", "--metrics.log_freq=1",
                        "--training.mixed_precision_param=float32", "--quantize.scheme=none", "--comm.train_timeout_seconds=20",
                        "--checkpoint.enable", "--checkpoint.interval=4", "--checkpoint.last_save_model_only=false", "--job.dump_folder",
                        self.folder, *options]

    def start(self, world, *more, port=None, only=None, each=lambda rank: [], **settings):
        """Processes `only`, by default all."""
        port = port or free_port()
        processes = []
        for rank in only if only is not None else range(world):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            processes.append(subprocess.Popen([program, *self.options, *more, *each(rank)], cwd=source, env=environment, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings))
        return processes

    def __call__(self, world, *more, seconds=60, **settings):
        return finish(self.start(world, *more, **settings), 0, seconds)

    def losses(self, kind="train"):
        name = {"train": "loss_metrics/global_avg_loss", "validate": "validation_metrics/loss"}[kind]
        lines = map(json.loads, open(os.path.join(self.folder, "metrics.jsonl")))
        return {line["step"]: line[name] for line in lines if line["kind"] == kind}

    def steps(self):
        folder = os.path.join(self.folder, "checkpoint")
        return sorted(int(n[5:]) for n in os.listdir(folder) if n[5:].isdigit()) if os.path.isdir(folder) else []


def finish(processes, status=None, seconds=60):
    """What each said on standard error and its status; at most one line each."""
    said = []
    end = time.time() + seconds
    for p in processes:
        try:
            out, err = p.communicate(timeout=max(1, end - time.time()))
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            expect(False, f"{p.args[-3:]}: a process did not end: {out[-300:]} {err}")
        said.append((p.returncode, err.strip()))
        if status is not None:
            expect(p.returncode == status, f"{p.args[-3:]}: status {p.returncode}, expected {status}: {out[-300:]} {err}")
        expect(len(err.strip().splitlines()) <= 1, f"more than one line: {err}")
    return said


def expect_error(processes, text, what, seconds=40):
    """All end with status 2, and one of them with that text."""
    said = finish(processes, seconds=seconds)
    expect(all(s != 0 for s, _ in said), f"{what}: a process ended well: {said}")
    expect(any(text in line for _, line in said), f"{what}: expected '{text}' in {said}")


def close(a, b, bound, what):
    expect(a.keys() == b.keys(), f"{what}: steps {sorted(a)} and {sorted(b)}")
    worst = max((abs(a[s] / b[s] - 1) for s in a.keys() & b.keys()), default=1)
    expect(worst <= bound, f"{what}: losses differ by {worst}")
    return worst


def as_one(work):
    """Losses of one process; checkpoints of 4 are read by others, of DDP too, and each goes on as one process does."""
    one = Run(work, "one")
    one(1)
    for name, options in [("fsdp", []), ("ddp", ["--parallelism.data_parallel_replicate_degree=2"])]:
        two = Run(work, name, *options)
        two(2)
        print(f"{name}: losses of 2 processes within {close(two.losses(), one.losses(), 1e-5, name):.1e} of one's")
    saved = Run(work, "saved", steps=8)
    saved(4)
    for world, name in [(3, "fsdp"), (2, "ddp")] + EVERY * [(1, "fsdp"), (2, "fsdp"), (8, "fsdp"), (3, "ddp")]:
        resumed = Run(work, f"{name} {world}", *([f"--parallelism.data_parallel_replicate_degree={world}"] if name == "ddp" else []))
        shutil.copytree(saved.folder, resumed.folder)
        resumed(world)
        close(resumed.losses(), one.losses(), 1e-5, f"saved by 4, read by {world} ({name})")
    # A step that does not change the weights: loaded by 3 ranks, they are the bytes that 4 saved.
    still = Run(work, "still", "--optimizer.lr=1e-30", steps=9)
    shutil.copytree(saved.folder, still.folder)
    still(3)
    first, again = tensors(saved, 8), tensors(still, 9)
    weights = [n for n in first if not n.startswith("optim.")]
    expect(first.keys() == again.keys() and all(first[n] == again[n] for n in weights), "weights saved by 4 and read by 3 are others")


# Every token goes to all experts: no near-tie in the selection that the summation order could flip. Larger steps make these few weights
# chaotic.
EXPERTS = ["--model.name=qwen3_moe", "--model.overrides", json.dumps(dict(MODEL, num_experts=4, experts_per_token=4, expert_ffn_dim=32)),
           "--optimizer.lr=1e-3"]
MESHES = {"tp": ["--parallelism.tensor_parallel_degree=2"],
          "pp": ["--parallelism.pipeline_parallel_degree=2", "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"]}
if EVERY:  # parallel_test covers each of them, one rank per process
    MESHES |= {"cp": ["--parallelism.context_parallel_degree=2"], "ep": [*EXPERTS, "--parallelism.expert_parallel_degree=2"],
               "tp of experts": [*EXPERTS, "--parallelism.tensor_parallel_degree=2"],
               "ep, tp of experts": [*EXPERTS, "--parallelism.expert_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
                                     "--parallelism.expert_tensor_parallel_degree=2"]}


def model_of(options):
    return EXPERTS if options[:len(EXPERTS)] == EXPERTS else []


def world_of(name):
    return 4 if name.startswith("ep, tp") else 2


def on_meshes(work):
    """What one mesh saves another goes on with, validation included: losses stay those of one process."""
    every = ["--validation.enable", "--validation.freq=4", "--validation.steps=-1", "--validation.dataset", "text", "--validation.dataset_path",
             os.path.join(source, "README.md"), "--validation.seq_len=32", "--training.local_batch_size=2"]
    alone = {}
    for name, options in MESHES.items():
        model = model_of(options)
        if str(model) not in alone:
            one, begun = Run(work, f"one{len(alone)}", *every, *model), Run(work, f"begun{len(alone)}", *every, *model, steps=8)
            finish(one.start(1) + begun.start(1), 0)
            alone[str(model)] = one, begun
        one, begun = alone[str(model)]
        run, world = Run(work, name, *every, *options, steps=8), world_of(name)
        run(world)
        worst = close(run.losses(), {s: l for s, l in one.losses().items() if s <= 8}, 1e-5, name)
        close(run.losses("validate"), {s: l for s, l in one.losses("validate").items() if s <= 8}, 1e-5, f"{name}: validation")
        print(f"{name}: losses of {world} processes within {worst:.1e} of one's")
        for then, saved, more in [(1, run, model), (world, begun, options)]:
            resumed = Run(work, f"{name} then {then}", *every, *more)
            shutil.copytree(saved.folder, resumed.folder)
            resumed(then)
            close(resumed.losses(), one.losses(), 1e-5, f"saved on {name if then == 1 else 'one'}, read on {name if then == world else 'one'}")
    # The quantisation report covers all stages, in layer order.
    reports = []
    for name, world, options in [("report of one", 1, []), ("report of pp", 2, MESHES["pp"])]:
        run = Run(work, name, "--quantize.scheme=int8", "--metrics.log_quantization", *options, steps=1)
        run(world)
        lines = map(json.loads, open(os.path.join(run.folder, "metrics.jsonl")))
        reports.append([line for line in lines if line["kind"] == "quantization"][0])
    one, stages = reports
    layers = [[key for key in report if key.endswith("fwd/amax")] for report in reports]
    expect(list(one) == list(stages) and len(layers[0]) == 2 * (3 * 7 + 1), f"report: of {layers[1]}, in one process of {layers[0]}")
    expect(all(key in stages and abs(stages[key] / one[key] - 1) < 1e-3 for key in layers[0]), "report: other figures than in one process")


def phases(work):
    """Another recipe from step 7 on: ranks switch together, and a run that is stopped before or behind it goes on bit for bit."""
    switch = ["--quantize.phases", json.dumps([{"from": 7, "scheme": "nvfp4", "preset": "alto"}])]
    for name, options in {"fsdp": [], **MESHES}.items():
        batch, world = [] if name == "fsdp" else ["--training.local_batch_size=2"], world_of(name)
        one, plain, run, stopped = (Run(work, f"{name}, {kind}", *batch, *more) for kind, more in
                                    [("one", switch + model_of(options)), ("plain", options), ("phases", switch + options),
                                     ("stopped", switch + options)])
        finish(one.start(1) + plain.start(world), 0)
        run(world)
        for steps in (5, 8, 12):
            stopped(world, f"--training.steps={steps}")
        losses, expected, without = run.losses(), one.losses(), plain.losses()
        first = {step: loss for step, loss in losses.items() if step < 7}
        expect(first == {step: without[step] for step in first}, f"phases, {name}: steps before the switch are others")
        effect = min(abs(losses[step] / without[step] - 1) for step in range(7, 13))
        worst = close(losses, expected, 5e-3, f"phases, {name}")
        expect(effect > 3 * worst, f"phases, {name}: the switch changes losses by {effect}, other ranks by {worst}")
        expect(stopped.losses() == losses, f"phases, {name}: stopped at steps 5 and 8 it is another run")
        print(f"phases, {name}: losses within {worst:.1e} of one process's; the switch changes them by {effect:.1e} or more")


def tensors(run, step):
    """Every tensor's bytes from all files of a step, chunks in order."""
    folder = os.path.join(run.folder, "checkpoint", f"step-{step}")
    index = json.load(open(os.path.join(folder, "index.json")))
    result = {}
    for name, tensor in index["tensors"].items():
        for chunk in sorted(tensor["chunks"], key=lambda c: c["offset"]):
            data = open(os.path.join(folder, chunk["file"]), "rb").read()
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + size])
            key = name if chunk["shape"] == tensor["shape"] else name + "@" + ",".join(map(str, chunk["offset"]))
            begin, end = header[key]["data_offsets"]
            result[name] = result.get(name, b"") + data[8 + size + begin:8 + size + end]
    return result


def rollback(work):
    """A step whose loss is far above the others' is judged by all together: they go back, as one process does."""
    random.seed(1)
    row, bad = 33, {24, 25}  # tokens per row; steps of noise among steps that are easy to learn
    ids = [random.randrange(300, 1900) if i // (2 * row) + 1 in bad else 300 + i % 4 for i in range(200 * row)]
    data = os.path.join(work, "rows.bin")
    with open(data, "wb") as file:
        file.write(struct.pack(f"<{len(ids)}H", *ids))
    options = ["--training.dataset=bin", "--training.dataset_path", data, "--training.global_batch_size=2", "--training.nonfinite=rollback",
               "--training.spike_factor=2", "--training.dataloader.shuffle=false"]
    one, two = Run(work, "one", *options, steps=32), Run(work, "two", *options, steps=32)
    finish(one.start(1) + two.start(2), 0)
    for run in (one, two):
        text = open(os.path.join(run.folder, "metrics.jsonl")).read()
        expect(text.count("rolling back to the checkpoint of step") == 2, f"{run.folder}: not two rollbacks: {text[-2000:]}")
    close(two.losses(), one.losses(), 1e-4, "rolled back")


def alarms(work):
    """Every rank acts on a figure that only some of them have: with a pipeline another one measures each block."""
    grown = ["--alarms.freq=2", "--alarms.residual_norm.threshold=1e-3", "--alarms.residual_norm.action=stop"]
    for name, options in (("data", []), ("tensor", ["--parallelism.tensor_parallel_degree=2"]),
                          ("pipeline", ["--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=12"])):
        run = Run(work, "alarm_" + name, *grown, *options)
        for status, said in finish(run.start(2)):
            expect(status == 3 and "alarm residual_norm at step 2: " in said and "(3 of 3 above it, first layers.0)" in said,
                   f"alarms, {name}: {status}: {said}")
        expect(list(run.losses()) == [1], f"alarms, {name}: steps {run.losses()}")
    # Measuring changes nothing, and a pipeline's figures are those of one process: its rows are the same.
    figures = []
    for name, world, options in (("one", 1, ["--training.local_batch_size=24"]), ("two", 2, ["--parallelism.pipeline_parallel_degree=2",
                                                                                           "--training.local_batch_size=12"])):
        run = Run(work, "measured_" + name, "--alarms.freq=2", "--alarms.residual_norm.threshold=inf",
                  "--alarms.attention_logit.threshold=inf", *options, steps=2)
        run(world)
        lines = map(json.loads, open(os.path.join(run.folder, "metrics.jsonl")))
        figures.append([{k: v for k, v in line.items() if k.startswith("alarms/")} for line in lines if line["kind"] == "alarms"][0])
    expect(figures[0].keys() == figures[1].keys() and len(figures[0]) == 6, f"alarms: {figures}")
    for name in figures[0]:
        expect(abs(figures[0][name] - figures[1][name]) <= 1e-3 * figures[0][name], f"alarms: {name}: {figures}")


def troubles(work):
    run = Run(work, "trouble", steps=2000)
    # A killed process: the flight recorder keeps as many operations as it was told, where it was told.
    processes = run.start(2, "--comm.trace_buf_size=5", "--comm.save_traces_folder=flight", "--comm.save_traces_file_prefix=r_")
    while not run.steps():
        time.sleep(0.1)
    processes[1].kill()
    begun = time.time()
    said = finish(processes)
    expect(said[0][0] == 2 and "rank 1" in said[0][1], f"killed: {said}")
    print(f"killed: the other ended after {time.time() - begun:.1f} s: {said[0][1]}")
    flight = [json.loads(line) for line in open(os.path.join(run.folder, "flight/r_0.jsonl"))]
    expect(len(flight) == 1 + 5 and all("operation" in line for line in flight[1:]), f"flight recorder: {flight[:8]}")
    # Another configuration, in time and place.
    expect_error(run.start(2, each=lambda rank: [f"--optimizer.lr={1 + rank}e-3"]), "optimizer.lr = 0.002 here, 0.001 there", "mismatch")
    expect_error(run.start(2, "--parallelism.data_parallel_shard_degree=3"), "must equal the number of processes", "degrees")
    expect_error(run.start(2, each=lambda rank: ["--training.steps=many"] if rank else []), "training.steps", "one bad option")
    # Two jobs in one folder, and on one port.
    port, steps = free_port(), len(run.steps())
    first = run.start(2, "--checkpoint.keep_latest_k=0", port=port)
    while len(run.steps()) == steps and all(p.poll() is None for p in first):
        time.sleep(0.1)
    expect_error(run.start(2), "is in use: ", "two jobs in one folder")
    expect_error(Run(work, "other").start(2, port=port), f"port {port}", "two jobs on one port")
    expect(all(p.poll() is None for p in first), "the first job suffered from others")
    # SIGTERM to one rank: all finish the step, save it and end.
    first[1].terminate()
    said = finish(first)
    expect([s for s, _ in said] == [143, 143], f"SIGTERM: {said}")
    last = max(run.losses())
    expect(run.steps()[-1] == last, f"SIGTERM: the last step {last} is not saved: {run.steps()[-3:]}")
    # A rank that cannot write: its disk is full.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000))
    full = Run(work, "full", steps=20)
    port = free_port()
    processes = full.start(2, port=port, only=[0]) + full.start(2, port=port, only=[1], preexec_fn=limit)
    expect_error(processes, "saving", "full disk")
    expect(not full.steps(), "full disk: a step is there")
    # A step with a missing file: the previous one is used.
    step = run.steps()[-1]
    folder = os.path.join(run.folder, "checkpoint", f"step-{step}")
    os.remove(os.path.join(folder, next(n for n in sorted(os.listdir(folder)) if n.startswith("model-1"))))
    processes = run.start(2, "--checkpoint.load_step", str(step))
    expect_error(processes, "model-1", "a missing shard")


def restarts(work, in_step=True):
    """torchrun starts a run again of which one process was killed in a step, then another in a save. The others tell which, and losses, weights
    and states are those of a run without."""
    options = ["--debug.deterministic", "--training.mixed_precision_param", "float32" if DEVICE == "cpu" else "bfloat16"]
    one, run = (Run(work, name, *options, steps=24) for name in ("whole", "restarted"))
    one(PROCESSES, seconds=120)
    said = open(os.path.join(work, "said"), "w+")
    agent = subprocess.Popen([torchrun, "--no-python", "--standalone", f"--nproc_per_node={PROCESSES}", "--max-restarts=2",
                              "--monitor-interval=0.1", program, *run.options], cwd=source, env=dict(os.environ, OMP_NUM_THREADS="1"),
                             stdout=said, stderr=subprocess.STDOUT)

    def wait_for(reached, seconds=60):
        end = time.time() + seconds
        while not (found := reached()) and agent.poll() is None and time.time() < end:
            time.sleep(0.0002)
        return found

    def processes():
        """By rank."""
        all = subprocess.run(["pgrep", "-P", str(agent.pid), "halftone"], capture_output=True, text=True).stdout.split()
        ranks = [re.search(rb"\0RANK=(\d+)", open(f"/proc/{pid}/environ", "rb").read()) for pid in all]
        return {int(rank[1]): int(pid) for rank, pid in zip(ranks, all) if rank}

    def saving(pid, rank):
        """Whether that process is writing its part of a step; it is stopped then."""
        for folder in glob.glob(os.path.join(run.folder, "checkpoint/step-*.tmp")):
            os.kill(pid, signal.SIGSTOP)
            if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, f"part-{rank}.json")):
                return folder
            os.kill(pid, signal.SIGCONT)
        return None

    def kill(rank, pid, where):
        os.kill(pid, signal.SIGKILL)
        begun = time.time()
        told = wait_for(lambda: f"rank {rank} has failed: its process ended" in open(said.name).read())
        expect(told, f"{where}: nobody says that rank {rank} was killed: {open(said.name).read()[-2000:]}")
        print(f"rank {rank} of {PROCESSES} killed {where}: told after {time.time() - begun:.1f} s")

    expect(wait_for(lambda: len(run.steps()) > 0 and max(run.losses(), default=0) >= 6), "no step 6")
    last = PROCESSES - 1
    if in_step:
        kill(last, processes()[last], "in a step")
        newest = run.steps()[-1]
        expect(wait_for(lambda: run.steps()[-1] > newest), "it was not started again")
    victim, pid = last // 2, processes().get(last // 2)
    folder = wait_for(lambda: saving(pid, victim))
    expect(folder and not os.path.exists(folder.removesuffix(".tmp")), f"no save to kill rank {victim} in: {run.steps()}")
    kill(victim, pid, f"while it writes {os.path.basename(str(folder))}")
    agent.wait(timeout=120)
    expect(agent.returncode == 0, f"torchrun: {open(said.name).read()[-2000:]}")
    expect(run.losses() == one.losses(), "the restarted run is another one")
    expect(tensors(run, 24) == tensors(one, 24), "the restarted run ends with other weights or states")
    expect(not glob.glob(os.path.join(run.folder, "checkpoint/*.tmp")), "half a step is left")


def nothing_learned(work):
    """All ranks end with the same status and reason, and the checkpoint is there."""
    run = Run(work, "nothing", "--training.nonfinite=skip", "--training.z_loss=1e38", steps=2)
    for _, line in finish(run.start(2), status=3):
        expect("no step updated a weight: all 2 updates were skipped" in line, f"a rank says {line}")
    expect(run.steps() == [2], f"nothing learned: steps {run.steps()}")


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t c, struct timespec* t) {
  static int (*next)(clockid_t, struct timespec*);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  int r = next(c, t);
  if (c == CLOCK_REALTIME && strcmp(getenv("RANK"), "1") == 0) t->tv_sec -= 10;
  return r;
}
int unlinkat(int d, const char* path, int flags) {
  static int (*next)(int, const char*, int);
  if (!next) next = dlsym(RTLD_NEXT, "unlinkat");
  if (strstr(path, "safetensors")) usleep(1500000);
  return next(d, path, flags);
}
"""


def hold_ups(work):
    """Hosts with other wall clocks, a rank that pauses in a save, and a slow deletion of an old step end no run, nor does its end wait."""
    compiler = next((c for c in ("gcc", "cc", "clang") if shutil.which(c)), None)
    if compiler is None:
        return print("hold_ups: no C compiler for the shim")
    shim = os.path.join(work, "shim.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-xc", "-", "-o", shim, "-ldl"], input=SHIM, text=True, check=True)
    run = Run(work, "held up", "--comm.train_timeout_seconds=5", "--checkpoint.keep_latest_k=2")
    os.environ["LD_PRELOAD"] = shim
    processes = run.start(2)
    del os.environ["LD_PRELOAD"]
    paused, end = None, time.time() + 60
    while not paused and time.time() < end:
        for folder in glob.glob(os.path.join(run.folder, "checkpoint/step-4.tmp")):
            processes[1].send_signal(signal.SIGSTOP)
            paused = os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "part-1.json"))
            if not paused:
                processes[1].send_signal(signal.SIGCONT)
    expect(paused, "rank 1 was not stopped in a save")
    time.sleep(5.5)  # several heartbeats
    processes[1].send_signal(signal.SIGCONT)
    finish(processes, 0)
    left = sorted(os.listdir(os.path.join(run.folder, "checkpoint")))
    expect(left == ["step-12", "step-8"], f"held up: {left}")


def kills(work, times):
    """SIGKILL of all processes at random moments: the newest step can always be read, no batch is lost or read twice."""
    random.seed(3)
    steps = 20 + 20 * times
    one, run = Run(work, "unkilled", "--checkpoint.interval=1000", steps=steps), Run(work, "killed", "--checkpoint.interval=2", steps=steps)
    one(2, seconds=300)
    at = []
    for _ in range(times):
        processes = run.start(2)
        time.sleep(1.5 + 2 * random.random())
        for p in processes:
            p.kill()
        finish(processes)
        at.append(run.steps()[-1] if run.steps() else 0)
    run(2, seconds=300)
    expect(run.losses() == one.losses(), "killed: the run is another one")
    expect(0 < at[-1] < steps, f"killed: after steps {at} of {steps}")
    print(f"killed {times} times, when the newest steps were {at}: losses are those of a run without")


def main():
    cases = {"as_one": as_one, "on_meshes": on_meshes, "phases": phases, "nothing_learned": nothing_learned, "rollback": rollback, "alarms": alarms, "troubles": troubles, "restarts": restarts,
             "quick_restarts": lambda w: restarts(w, False), "hold_ups": hold_ups, "kills": lambda w: kills(w, int(os.environ.get("KILLS", "2")))}
    quick = ["as_one", "on_meshes", "phases", "nothing_learned", "rollback", "alarms", "troubles", "quick_restarts"]
    for name in sys.argv[1:] or (["as_one", "on_meshes", "phases", "restarts", "hold_ups", "kills"] if EVERY else quick):
        with tempfile.TemporaryDirectory() as work:
            begun = time.time()
            cases[name](work)
            print(f"{name}: {time.time() - begun:.0f} s", flush=True)
    conclude()


main()
