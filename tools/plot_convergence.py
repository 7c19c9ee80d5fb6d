#!/usr/bin/env python3
"""Draws what bench/convergence.py measured as an SVG: tools/plot_convergence.py OUT.svg CONVERGENCE.json

Above the training losses, below how far each run's lies above bfloat16's of the same seed, per cent; both over windows of
10 logged steps. What is off the lower panel's scale is in the table.
"""
import json

from _input import Parser, fail, figures_of, read, write

COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]
DASHES = ["", "5 3", "2 2"]
WIDTH, LEFT, RIGHT, TOP, WINDOW = 920, 50, 220, 14, 10
PANELS = [(TOP, 230), (TOP + 272, 230)]  # top, height
SPAN = 3.0  # per cent, in the lower panel


def smooth(curve):
    out = []
    for i in range(len(curve)):
        window = [loss for _, loss in curve[max(0, i - WINDOW + 1) : i + 1]]
        out.append((curve[i][0], sum(window) / len(window)))
    return out


def panel(svg, place, lines, low, high, ticks, label, last):
    top, height = place
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda v: top + height * (high - v) / (high - low)
    for tick in ticks:
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for step in range(0, last + 1, max(1, last // 5)):
        svg.append(f'<text x="{x(step):.1f}" y="{top + height + 14}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{LEFT}" y="{top + height + 28}">{label}</text>')
    for i, (name, line) in enumerate(lines.items()):
        style = f'stroke="{COLORS[i % len(COLORS)]}" stroke-dasharray="{DASHES[i // len(COLORS)]}"'
        parts, inside = [], False
        for s, v in line:  # a line that leaves the panel is interrupted until it returns
            if low <= v <= high:
                parts += [] if inside else [[]]
                parts[-1].append(f"{x(s):.1f},{y(v):.1f}")
            inside = low <= v <= high
        for part in parts:
            svg.append(f'<polyline points="{" ".join(part)}" fill="none" {style} stroke-width="1.4"/>')
        if top == TOP:
            at = TOP + 10 + 20 * i
            svg.append(f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 40}" y1="{at - 4}" y2="{at - 4}" {style} stroke-width="2"/>'
                       f'<text x="{WIDTH - RIGHT + 46}" y="{at}">{name}</text>')


def draw(path):
    runs = {n: smooth(r["curve"]) for n, r in json.loads(read(path)).items() if r["loss"] is not None}
    if not runs:
        fail(f"{path}: no run with a loss")
    last = max(s for line in runs.values() for s, _ in line)
    values = [v for line in runs.values() for _, v in line]
    low, high = int(min(values)), int(max(values)) + 1
    base = dict(runs["bf16"])
    relative = {n: [(s, 100 * (v / base[s] - 1)) for s, v in line if s in base] for n, line in runs.items()}
    height = PANELS[1][0] + PANELS[1][1] + 36
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    panel(svg, PANELS[0], runs, low, high, range(low, high + 1), "training loss, nats per token, over optimizer steps", last)
    panel(svg, PANELS[1], relative, -1.0, SPAN, [-1, 0, 1, 2, 3], "training loss against bf16's of seed 42, per cent", last)
    return "\n".join(svg) + "\n</svg>\n"


def main():
    parser = Parser(__doc__)
    parser.add_argument("out", metavar="OUT.svg")
    parser.add_argument("file", metavar="CONVERGENCE.json")
    args = parser.parse_args()
    with figures_of(args.file):
        svg = draw(args.file)
    write(args.out, svg)


main()
