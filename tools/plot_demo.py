#!/usr/bin/env python3
"""Draws what `make train` shows, its losses and its terminal, as the README's SVG: tools/plot_demo.py OUT.svg RUN_FOLDER CONSOLE_LOG

    rm -rf outputs/demo && make train | tee demo.log && tools/plot_demo.py docs/images/demo.svg outputs/demo demo.log

The losses are those of RUN_FOLDER/metrics.jsonl; the terminal shows lines of CONSOLE_LOG's last run without their stamps and some fields.
"""
import html
import json
import os
import re

from _input import Parser, fail, figures_of, read, write

WIDTH, HEIGHT, PLOT = 940, 372, 372  # the terminal begins at PLOT
LEFT, RIGHT, TOP, BOTTOM = 34, 22, 34, 40
COLUMNS, SAMPLE = 86, 9  # characters and lines of the model's output
STAMP = re.compile(r"^\[halftone\] \S+ \S+ - root - INFO - ")


def losses(path):
    train, validation = [], []
    for line in read(path).splitlines():
        record = json.loads(line)
        if record["kind"] == "train":
            train.append((record["step"], record["loss_metrics/global_avg_loss"], record["time"]))
        elif record["kind"] == "validate":
            validation.append((record["step"], record["validation_metrics/loss"]))
    if len(train) < 2:
        fail(f"{path}: expected at least two lines of training losses, found {len(train)}")
    return train, validation


def curve(train, validation):
    last, high = train[-1][0], int(max(y for _, y, _ in train)) + 1
    low = int(min(y for _, y, _ in train))
    x = lambda step: LEFT + (PLOT - LEFT - RIGHT) * step / last
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)
    svg = [f'<text x="{LEFT}" y="18" font-weight="bold">loss, nats per token</text>']
    for v in range(low, high + 1):
        svg.append(f'<line x1="{LEFT}" x2="{PLOT - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>')
    tick = next(t for t in (10, 20, 50, 100, 200, 500, 1000, 10**9) if last / t <= 6)
    for s in range(0, last + 1, tick):
        svg.append(f'<text x="{x(s):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{s}</text>')
    minutes = (train[-1][2] - train[0][2]) / 60
    svg.append(f'<text x="{(LEFT + PLOT - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">optimizer step ({minutes:.1f} minutes)</text>')
    points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v, _ in train)
    svg.append(f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.6"/>')
    for s, v in validation:
        svg.append(f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.5" fill="#d62728"/>')
    svg.append(f'<text x="{PLOT - RIGHT}" y="{TOP + 14}" text-anchor="end" fill="#1f77b4">training</text>')
    svg.append(f'<text x="{PLOT - RIGHT}" y="{TOP + 30}" text-anchor="end" fill="#d62728">validation</text>')
    return svg


def shown_lines(path):
    """The terminal: what the run says about its length, a few steps, the validations, the end and some of the sample."""
    lines = read(path, errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if "INFO - Starting job:" in line]
    if not starts:
        fail(f"{path}: expected the console log of a run (a line 'Starting job: ...'), found none")
    lines = [STAMP.sub("", line) for line in lines[starts[-1]:]]
    steps = [line for line in lines if line.startswith("step:")]
    few = {steps[round(i * (len(steps) - 1) / 5)] for i in range(6)} if steps else set()
    shown = ["$ make train"]
    for i, line in enumerate(lines):
        if line in few or re.match(r"\w+ [\d,]+ ms a step here|Training takes|All \d+ steps take|validate step:|Training completed", line):
            shown.append(re.sub(r"  (grad_norm|memory|tflops|mfu): +\S+", "", line))
        elif line.startswith("A sample of"):
            shown += [""] + lines[i + 2:i + 2 + SAMPLE]
            break
    return [line[:COLUMNS - 1] + "…" if len(line) > COLUMNS else line for line in shown]


def terminal(lines):
    pitch = min(15.0, (HEIGHT - 40) / len(lines))
    svg = [f'<rect x="{PLOT}" width="{WIDTH - PLOT}" height="{HEIGHT}" rx="6" fill="#1e1e1e"/>']
    for i, line in enumerate(lines):
        color = "#7ec699" if line.startswith("$") else "#e6c07b" if line.startswith("validate") else "#d4d4d4"
        svg.append(f'<text x="{PLOT + 14}" y="{26 + i * pitch:.1f}" fill="{color}" font-family="monospace" font-size="10.5" '
                   f'xml:space="preserve">{html.escape(line)}</text>')
    return svg


def main():
    parser = Parser(__doc__)
    parser.add_argument("out", metavar="OUT.svg")
    parser.add_argument("folder", metavar="RUN_FOLDER")
    parser.add_argument("log", metavar="CONSOLE_LOG")
    args = parser.parse_args()
    metrics = os.path.join(args.folder, "metrics.jsonl")
    with figures_of(metrics):
        drawn = curve(*losses(metrics))
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *drawn, *terminal(shown_lines(args.log)), "</svg>"]
    write(args.out, "\n".join(svg) + "\n")


main()
