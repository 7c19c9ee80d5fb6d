#!/usr/bin/env python3
"""Prints a CSV of `halftone bench mm|quantize|linear|roofline` as the Markdown tables of docs/benchmarks: tools/bench_tables.py FILE ..."""
import csv
import statistics

from _input import Parser, fail, figures_of, read

BARS = {"fp8_tensorwise": 1.45, "fp8_rowwise": 1.40, "int8": 1.40, "mxfp4": 1.35, "mxfp8_e4m3": 0.85, "mxfp8_e5m2": 0.85, "nvfp4": 0.85}  # on an H200


def table(head, rows):
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def unique(rows, *keys):
    return list(dict.fromkeys(tuple(r[k] for k in keys) for r in rows))


def number(text):
    """Whole from 100 on, else three digits."""
    value = float(text)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def mm(rows):
    """A table a layout: microseconds, TFLOP/s and in brackets the ratio to bf16."""
    for (layout,) in unique(rows, "layout"):
        shapes = unique(rows, "m", "n", "k")
        lines = []
        for (name,) in unique(rows, "format"):
            found = {(r["m"], r["n"], r["k"]): r for r in rows if r["format"] == name and r["layout"] == layout}
            cells = [f"{r['us']}, {number(r['tflops'])} ({float(r['vs_bf16']):.2f})" if (r := found.get(s)) and r["us"] else "n/a" for s in shapes]
            if any(c != "n/a" for c in cells):
                lines.append([name, *cells])
        heads = [f"{m}³" if m == n == k else f"{m}x{n}x{k}" for m, n, k in shapes]
        yield layout, table(["format", *heads], lines)


def quantize(rows):
    """GB/s and share of a copy."""
    for size in unique(rows, "rows", "cols", "type"):
        here = [r for r in rows if (r["rows"], r["cols"], r["type"]) == size]
        lines = []
        for (name,) in unique(here, "scheme"):
            found = {r["direction"]: r for r in here if r["scheme"] == name}
            lines.append([name] + [f"{float(r['gbs']):.0f} ({float(r['share']):.0%})" if (r := found.get(d)) else "" for d in ("row", "transposed", "both")])
        yield f"{size[0]} x {size[1]} {size[2]}", table(["scheme", "row", "transposed", "both"], lines)


def linear(rows):
    for m, n, k in unique(rows, "m", "n", "k"):
        columns = ["forward_ms", "backward_ms", "both_ms", "forward_ratio", "backward_ratio", "both_ratio"]
        lines = [[r["recipe"], *(r[c] for c in columns), f"{BARS[r['recipe']]:.2f}" if r["recipe"] in BARS else "", number(r['tflops'])]
                 for r in rows if (r["m"], r["n"], r["k"]) == (m, n, k)]
        yield f"{m} x {n} x {k}", table(["recipe", "forward ms", "backward ms", "both ms", "forward", "backward", "both", "bar", "TFLOP/s"], lines)


def roofline(rows):
    lines = []
    for (recipe,) in unique(rows, "recipe"):
        points = [(float(r["measured"]), float(r["predicted"]), f"{r['m']}x{r['k']}x{r['n']}") for r in rows if r["recipe"] == recipe]
        most = max(points)
        lines.append([recipe, f"{sum(a >= 1 for a, _, _ in points)} of {len(points)}", f"{sum((a >= 1) == (b >= 1) for a, b, _ in points)} of {len(points)}",
                      f"{statistics.median(abs(b / a - 1) for a, b, _ in points):.0%}", f"{most[0]:.2f} at {most[2]}"])
    yield "", table(["recipe", "faster than bf16", "model agrees", "median error of the ratio", "maximum, at M x K x N"], lines)


def main():
    parser = Parser(__doc__)
    parser.add_argument("files", metavar="FILE", nargs="+")
    for path in parser.parse_args().files:
        lines = read(path).splitlines() or [""]
        kind = lines[0].split(":")[0].removeprefix("# halftone bench ")
        if kind not in ("mm", "quantize", "linear", "roofline"):
            fail(f"{path}: expected a CSV of halftone bench, found '{lines[0][:60]}'")
        rows = list(csv.DictReader(lines[1:]))
        if not rows or any(None in row.values() for row in rows):
            fail(f"{path}: expected rows with a value in each column, found {'one with fewer' if rows else 'none'}; is the file complete?")
        with figures_of(path):
            tables = list(globals()[kind](rows))
        print(lines[0][2:] + "\n")
        for name, text in tables:
            print(name + "\n\n" + text if name else text)


if __name__ == "__main__":
    main()
