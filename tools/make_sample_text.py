#!/usr/bin/env python3
"""Writes tests/assets/c4_test/data.json: a small corpus of our own for debug runs, one {"text": ...} per line.

    python3 tools/make_sample_text.py

Short made-up pieces (letters, recipes, workshop notes, sums, dialogues) from a grammar, the same on every run.
"""
import json
import pathlib
import random

PEOPLE = "Ada Bruno Clara Dmitri Elif Farah Goro Hana Ivo Jorge Kaja Lena Mateo Nour Olga Pavel Rosa Sami Tove Yusuf".split()
TOWNS = "Arle Bexmoor Caldwick Dunmere Estrova Fenholt Grauburg Halden Iverna Jundal Korsby Lowell Marsk Nidre Ostrava".split()
THINGS = "press plate screen lens copper dot ink roller paper proof letter drum frame table lamp ledger".split()
MATERIALS = "copper zinc glass birch linen wax slate brass cotton clay".split()
COLOURS = "cyan magenta yellow black grey white brown green purple".split()
FOODS = "barley onion carrot lentil apple plum walnut cheese rye egg cabbage parsley pepper bean mushroom".split()
PLACES = ["the old harbour", "the market square", "the north gate", "the mill by the river", "the railway yard", "the school on the hill",
          "the lighthouse", "the paper works", "the botanical garden", "the bridge of boats"]
WEATHER = ["a thin rain fell since dawn", "the wind came from the sea", "fog lay over the roofs", "the sun was low and red",
           "snow had closed the pass", "it was so still that smoke stood upright"]
VERBS = ["cleaned", "measured", "turned", "repaired", "lifted", "marked", "weighed", "painted", "copied", "wrapped"]
REASONS = ["because the light was failing", "so that nobody would notice", "as the manual demands", "without saying a word",
           "although it was Sunday", "to win a bet", "before the others woke", "for the third time that week"]
SCRIPTS = ["Guten Morgen, wie geht es Ihnen?", "Où est la gare, s'il vous plaît ?", "Добрый день, меня зовут {p}.", "¿Cuánto cuesta el papel?",
           "今日はいい天気ですね。", "Hyvää huomenta ja kiitos.", "Καλημέρα σας.", "günaydın, nasılsınız?"]


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return items[self.r.randrange(len(items))]

    def some(self, items, n):
        return self.r.sample(items, n)

    def sentence(self):
        p, q = self.some(PEOPLE, 2)
        return self.pick([
            lambda: f"{p} {self.pick(VERBS)} the {self.pick(THINGS)} {self.pick(REASONS)}.",
            lambda: f"Near {self.pick(PLACES)}, {self.pick(WEATHER)}, and {p} waited for {q}.",
            lambda: f"The {self.pick(THINGS)} was made of {self.pick(MATERIALS)}, not of {self.pick(MATERIALS)}, as {p} had claimed.",
            lambda: f"\"If the {self.pick(THINGS)} breaks,\" said {q}, \"we still have the {self.pick(THINGS)} from {self.pick(TOWNS)}.\"",
            lambda: f"In {self.r.randrange(1790, 1990)} the town of {self.pick(TOWNS)} had {self.r.randrange(3, 98)} printers and one {self.pick(THINGS)}.",
            lambda: f"One {self.pick(COLOURS)} dot beside a single {self.pick(COLOURS)} one looks {self.pick(COLOURS)} from across the room.",
            lambda: f"Nobody in {self.pick(TOWNS)} remembered who {self.pick(VERBS)} the first {self.pick(THINGS)}.",
            lambda: f"{p} and {q} walked to {self.pick(PLACES)}; {self.pick(WEATHER)}.",
        ])()

    def paragraph(self, low=3, high=7):
        return " ".join(self.sentence() for _ in range(self.r.randint(low, high)))

    def letter(self):
        p, q = self.some(PEOPLE, 2)
        return f"Dear {p},\n\n{self.paragraph()}\n\n{self.paragraph(2, 4)}\n\nYours,\n{q}"

    def recipe(self):
        foods = self.some(FOODS, self.r.randint(3, 6))
        lines = [f"- {self.r.randrange(1, 9) * 50} g {food}" for food in foods]
        steps = [f"{i + 1}. {verb} the {food} for {self.r.randrange(2, 45)} minutes."
                 for i, (verb, food) in enumerate(zip(self.some(["Boil", "Chop", "Roast", "Stir", "Soak", "Press"], len(foods)), foods))]
        return f"# {foods[0].title()} as in {self.pick(TOWNS)}\n\n" + "\n".join(lines) + "\n\n" + "\n".join(steps)

    def sums(self):
        lines = []
        for _ in range(self.r.randint(6, 14)):
            a, b = self.r.randrange(2, 400), self.r.randrange(2, 60)
            lines.append(self.pick([f"{a} + {b} = {a + b}", f"{a} - {b} = {a - b}", f"{a} * {b} = {a * b}",
                                    f"{a} divided by {b} is {a // b}, remainder {a % b}."]))
        return "\n".join(lines)

    def dialogue(self):
        p, q = self.some(PEOPLE, 2)
        return "\n".join(f"{(p, q)[i % 2]}: {self.sentence() if self.r.random() < 0.8 else self.pick(SCRIPTS).format(p=p)}"
                         for i in range(self.r.randint(4, 10)))

    def story(self):
        return f"{self.pick(TOWNS)}, {self.pick(WEATHER)}.\n\n" + "\n\n".join(self.paragraph() for _ in range(self.r.randint(2, 5)))

    def note(self):
        return self.sentence()

    def table(self):
        rows = [f"| {town} | {self.r.randrange(100, 99999):,} | {self.pick(COLOURS)} |" for town in self.some(TOWNS, self.r.randint(4, 9))]
        return "| town | sheets printed | ink |\n|---|---|---|\n" + "\n".join(rows)

    def document(self):
        return self.pick([self.letter, self.recipe, self.sums, self.dialogue, self.story, self.story, self.note, self.table])()


def main():
    writer = Writer(2)
    path = pathlib.Path(__file__).resolve().parent.parent / "tests" / "assets" / "c4_test" / "data.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(280):
            out.write(json.dumps({"text": writer.document()}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
