#!/usr/bin/env python3
"""Draws `halftone bench roofline --csv FILE` as heat maps: tools/plot_roofline.py OUT.svg FILE

A panel for every recipe and M, predicted beside measured: K to the right, N upwards, each cell the speed of a linear layer's
forward and backward relative to bf16. Orange is slower than bf16, blue faster.
"""
import csv

from _input import Parser, fail, figures_of, read, write

CELL, GAP, LEFT, TOP = 34, 14, 160, 46


def color(ratio):
    """White at 1, blue at 1.6 and above, orange at 0.6 and below."""
    if ratio >= 1:
        t, end = min((ratio - 1) / 0.6, 1), (31, 119, 180)
    else:
        t, end = min((1 - ratio) / 0.4, 1), (255, 127, 14)
    return "#%02x%02x%02x" % tuple(round(255 + (e - 255) * t) for e in end)


def short(size):
    size = int(size)
    return f"{size // 1024}k" if size % 1024 == 0 else str(size)


def draw(path):
    lines = read(path).splitlines()
    head = [line[2:] for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if not rows:
        fail(f"{path}: no measurements")
    values = lambda key: sorted({int(r[key]) for r in rows})
    ms, ks, ns = values("m"), values("k"), values("n")
    recipes = list(dict.fromkeys(r["recipe"] for r in rows))
    cells = {(r["recipe"], int(r["m"]), int(r["k"]), int(r["n"])): r for r in rows}
    panel_w, panel_h = len(ks) * CELL, len(ns) * CELL
    kinds = ("predicted", "measured")
    half = len(ms) * (panel_w + GAP) + GAP  # all panels of one kind
    width, height = LEFT + len(kinds) * half, TOP + len(recipes) * (panel_h + GAP) + 50
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    text = lambda x, y, words, more="": svg.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>')
    corner = lambda kind, i: LEFT + kinds.index(kind) * half + i * (panel_w + GAP)
    text(8, 16, "speed relative to bf16")
    for kind in kinds:
        text(corner(kind, 0), 16, kind, 'font-weight="bold"')
        for i, m in enumerate(ms):
            text(corner(kind, i) + panel_w / 2, TOP - 8, f"M = {short(m)} tokens", 'text-anchor="middle"')
    for r, recipe in enumerate(recipes):
        top = TOP + r * (panel_h + GAP)
        text(8, top + panel_h / 2 + 4, recipe, 'font-weight="bold"')
        for j, n in enumerate(reversed(ns)):
            text(LEFT - 4, top + j * CELL + CELL / 2 + 4, short(n), 'text-anchor="end" font-size="10"')
        for kind in kinds:
            for i, m in enumerate(ms):
                for a, k in enumerate(ks):
                    for j, n in enumerate(reversed(ns)):
                        row = cells.get((recipe, m, k, n))
                        if row is None:
                            continue
                        x, y, ratio = corner(kind, i) + a * CELL, top + j * CELL, float(row[kind])
                        svg.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{color(ratio)}" stroke="#bbb"/>')
                        text(x + CELL / 2, y + CELL / 2 + 4, f"{ratio:.2f}", 'text-anchor="middle" font-size="10"')
    bottom = TOP + len(recipes) * (panel_h + GAP)
    for kind in kinds:
        for i in range(len(ms)):
            for a, k in enumerate(ks):
                text(corner(kind, i) + a * CELL + CELL / 2, bottom, short(k), 'text-anchor="middle" font-size="10"')
    text(LEFT, bottom + 18, "K (inputs) to the right, N (outputs) upwards", 'font-size="10"')
    if head:
        text(8, height - 8, head[0].replace("&", "&amp;").replace("<", "&lt;"), 'font-size="8" fill="#555"')
    return "\n".join(svg) + "\n</svg>\n"


def main():
    parser = Parser(__doc__)
    parser.add_argument("out", metavar="OUT.svg")
    parser.add_argument("file", metavar="FILE", help="CSV of halftone bench roofline")
    args = parser.parse_args()
    with figures_of(args.file):
        svg = draw(args.file)
    write(args.out, svg)


main()
