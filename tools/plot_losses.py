#!/usr/bin/env python3
"""Draws training losses of several runs as an SVG: tools/plot_losses.py OUT.svg NAME=FILE ... (metrics.jsonl or a console log).

Losses are averaged over windows of 5 logged steps.
"""
import json
import re
import sys

COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 320, 46, 34, 14


def losses(path):
    points = []
    for line in open(path, errors="replace"):
        if line.startswith("{"):
            record = json.loads(line)
            if record.get("kind") == "train":
                points.append((record["step"], record["loss_metrics/global_avg_loss"]))
        elif match := re.search(r"INFO - step:\s*(\d+)\s*loss:\s*(\d+\.\d+)", line):
            points.append((int(match[1]), float(match[2])))
    return [(points[i][0], sum(y for _, y in points[max(0, i - 4) : i + 1]) / (i - max(0, i - 4) + 1)) for i in range(len(points))]


def main():
    out, runs = sys.argv[1], [(a.split("=", 1)[0], losses(a.split("=", 1)[1])) for a in sys.argv[2:]]
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
        svg.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[i]}" stroke-width="1.6"/>')
        svg.append(f'<text x="{WIDTH - 90}" y="{TOP + 18 + 18 * i}" fill="{COLORS[i]}">{name}</text>')
    open(out, "w").write("\n".join(svg) + "\n</svg>\n")


main()
