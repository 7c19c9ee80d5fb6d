#!/usr/bin/env python3
"""Draws `halftone bench roofline --csv FILE` as heat maps: tools/plot_roofline.py OUT.svg FILE

A panel for every M and recipe, predicted above measured: K to the right, N upwards, each cell the speed of a linear layer's
forward and backward relative to bf16. Orange is slower than bf16, blue faster.
"""
import csv
import sys

CELL, GAP, LEFT, TOP = 34, 14, 150, 46


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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = open(sys.argv[2]).read().splitlines()
    head = [line[2:] for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if not rows:
        sys.exit(f"{sys.argv[2]}: no measurements")
    values = lambda key: sorted({int(r[key]) for r in rows})
    ms, ks, ns = values("m"), values("k"), values("n")
    recipes = list(dict.fromkeys(r["recipe"] for r in rows))
    cells = {(r["recipe"], int(r["m"]), int(r["k"]), int(r["n"])): r for r in rows}
    panel_w, panel_h = len(ks) * CELL, len(ns) * CELL
    width = LEFT + len(ms) * (panel_w + GAP) + 30
    height = TOP + len(recipes) * 2 * (panel_h + GAP) + len(recipes) * GAP + 44
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="16">linear layer, forward + backward: speed relative to bf16</text>']
    for i, m in enumerate(ms):
        x = LEFT + i * (panel_w + GAP)
        svg.append(f'<text x="{x + panel_w / 2}" y="{TOP - 10}" text-anchor="middle">M = {short(m)} tokens</text>')
    y = TOP
    for recipe in recipes:
        for kind in ("predicted", "measured"):
            svg.append(f'<text x="8" y="{y + panel_h / 2 - 4}" font-weight="bold">{recipe}</text>')
            svg.append(f'<text x="8" y="{y + panel_h / 2 + 12}">{kind}</text>')
            for j, n in enumerate(reversed(ns)):
                svg.append(f'<text x="{LEFT - 4}" y="{y + j * CELL + CELL / 2 + 4}" text-anchor="end" font-size="10">{short(n)}</text>')
            for i, m in enumerate(ms):
                for a, k in enumerate(ks):
                    for j, n in enumerate(reversed(ns)):
                        row = cells.get((recipe, m, k, n))
                        if row is None:
                            continue
                        x, ratio = LEFT + i * (panel_w + GAP) + a * CELL, float(row[kind])
                        svg.append(f'<rect x="{x}" y="{y + j * CELL}" width="{CELL - 1}" height="{CELL - 1}" fill="{color(ratio)}" stroke="#bbb"/>'
                                   f'<text x="{x + CELL / 2}" y="{y + j * CELL + CELL / 2 + 4}" text-anchor="middle" font-size="10">{ratio:.2f}</text>')
            y += panel_h + GAP
        y += GAP
    for i in range(len(ms)):
        for a, k in enumerate(ks):
            svg.append(f'<text x="{LEFT + i * (panel_w + GAP) + a * CELL + CELL / 2}" y="{y - GAP}" text-anchor="middle" font-size="10">{short(k)}</text>')
    svg.append(f'<text x="{LEFT}" y="{y + 4}" font-size="10">K (inputs) to the right, N (outputs) upwards</text>')
    if head:
        svg.append(f'<text x="8" y="{height - 8}" font-size="8" fill="#555">{head[0].replace("&", "&amp;").replace("<", "&lt;")}</text>')
    open(sys.argv[1], "w").write("\n".join(svg) + "\n</svg>\n")


main()
