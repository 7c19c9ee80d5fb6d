#!/usr/bin/env python3
"""Draws training losses of several runs as an SVG: tools/plot_losses.py OUT.svg NAME=FILE ... (metrics.jsonl or a console log).

Losses are averaged over windows of 5 logged steps.
"""
import json
import re

from _input import Parser, fail, figures_of, read, write

COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 320, 46, 34, 14


def losses(path):
    points = []
    for line in read(path, errors="replace").split("\n"):
        if line.startswith("{"):
            record = json.loads(line)
            if record.get("kind") == "train":
                points.append((record["step"], record["loss_metrics/global_avg_loss"]))
        elif match := re.search(r"INFO - step:\s*(\d+)\s*loss:\s*(\d+\.\d+)", line):
            points.append((int(match[1]), float(match[2])))
    if not points:
        fail(f"{path}: expected lines of training losses, found none; is it a metrics.jsonl or a console log?")
    return [(points[i][0], sum(y for _, y in points[max(0, i - 4) : i + 1]) / (i - max(0, i - 4) + 1)) for i in range(len(points))]


def main():
    parser = Parser(__doc__)
    parser.add_argument("out", metavar="OUT.svg")
    parser.add_argument("runs", metavar="NAME=FILE", nargs="+")
    args = parser.parse_args()
    runs = []
    for word in args.runs:
        name, equals, path = word.partition("=")
        if not name or not equals or not path:
            parser.error(f"expected NAME=FILE, found '{word}'")
        with figures_of(path):
            runs.append((name, losses(path)))
    last = max(s for _, run in runs for s, _ in run)
    low, high = (f(y for _, run in runs for _, y in run) for f in (min, max))
    low, high = int(low), int(high) + 1
    x = lambda s: LEFT + (WIDTH - LEFT - 12) * s / last
    y = lambda v: TOP + (HEIGHT - TOP - BOTTOM) * (high - v) / (high - low)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for v in range(low, high + 1):
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/><text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>')
    for s in range(0, last + 1, 200):
        svg.append(f'<text x="{x(s):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{s}</text>')
    svg.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 2}" text-anchor="middle">optimizer step (training loss, nats per token)</text>')
    for i, (name, run) in enumerate(runs):
        path = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in run)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="1.6"/>')
        svg.append(f'<text x="{WIDTH - 90}" y="{TOP + 18 + 18 * i}" fill="{COLORS[i % len(COLORS)]}">{name}</text>')
    write(args.out, "\n".join(svg) + "\n</svg>\n")


main()
