#!/usr/bin/env python3
"""Writes src/halftone/data/unicode_nfc_tables.cpp from Python's unicodedata (Python 3.11: Unicode 14)."""
import pathlib
import sys
import unicodedata

# Combining marks and one composition added after Unicode 9: the tokenizers package (0.23.3) normalises by the tables of Unicode 9 and
# leaves these unchanged. Found by comparing its NFC with unicodedata's on every code point in context.
YOUNGER = (
    "7FD 898-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 "
    "11070 1133B 1145E 11839-1183A 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 16FF0-16FF1 "
    "1E130-1E136 1E2AE 1E2EC-1E2EF"
)


def code_points(ranges):
    for part in ranges.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def rows(items, per_line):
    return "".join("    " + ", ".join(items[i : i + per_line]) + ",\n" for i in range(0, len(items), per_line))


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"expected Unicode 14.0.0 (Python 3.11), this Python has {unicodedata.unidata_version}")
    decompositions, classes = [], []
    younger = set(code_points(YOUNGER))
    for code in sorted(set(range(0x110000)) - younger):
        character = chr(code)
        mapping = unicodedata.decomposition(character)
        if mapping and not mapping.startswith("<"):
            parts = [int(part, 16) for part in mapping.split()] + [0]
            composes = int(unicodedata.normalize("NFC", character) == character)
            decompositions.append(f"{{0x{code:X}, 0x{parts[0]:X}, 0x{parts[1]:X}, {composes}}}")
        combining = unicodedata.combining(character)
        if combining:
            if classes and classes[-1][1] == code - 1 and classes[-1][2] == combining:
                classes[-1][1] = code
            else:
                classes.append([code, code, combining])
    class_rows = [f"{{0x{a:X}, 0x{b:X}, {c}}}" for a, b, c in classes]
    path = pathlib.Path(__file__).parent.parent / "src/halftone/data/unicode_nfc_tables.cpp"
    path.write_text(
        "// Written by tools/make_unicode_tables.py from the Unicode Character Database; the characters of Unicode 9.\n"
        '#include "halftone/data/unicode_nfc_tables.h"\n\n'
        "namespace halftone::nfc_tables {\n// clang-format off\n\n"
        f"const Decomposition kDecompositions[{len(decompositions)}] = {{\n{rows(decompositions, 5)}}};\n"
        f"const size_t kDecompositionCount = {len(decompositions)};\n\n"
        f"const ClassRange kClasses[{len(class_rows)}] = {{\n{rows(class_rows, 6)}}};\n"
        f"const size_t kClassCount = {len(class_rows)};\n\n"
        "// clang-format on\n}  // namespace halftone::nfc_tables\n"
    )
    print(f"{path}: {len(decompositions)} decompositions, {len(class_rows)} class ranges")


if __name__ == "__main__":
    main()
