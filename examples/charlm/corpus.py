#!/usr/bin/env python3
"""Write the text that charlm learns from: the day book of an assay office that never was.

    python corpus.py > corpus.txt

The same seed gives the same text on every machine, so nobody has to keep a download alive. The sentences agree in
number, refer back to what came before and do small sums: there is something to learn at every distance.
"""

from __future__ import annotations

import random
import sys

SEED = 1478
SIZE_CHARS = 80_000

MAKERS = ("Ann Weller", "Tobias Crane", "Maud Ferris", "Hugh Pell", "the widow Larkin", "old Jasper Dunn")
METALS = ("gold", "silver", "copper", "tin", "pewter")
PIECES = ("ring", "spoon", "cup", "chain", "plate", "coin", "clasp", "bell")
TOUCHES = ("the scale", "the touchstone", "the furnace", "the cold flame", "the fine file")
MOODS = ("slowly", "with care", "twice over", "without a word", "before noon", "by candle light")
WEATHER = (
    "Rain on the slates.",
    "A bright cold morning.",
    "Fog from the river.",
    "Wind in the flue.",
    "Still and warm.",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"


def was_or_were(count: int) -> str:
    return "was" if count == 1 else "were"


def entry_sentences(rng: random.Random) -> list[str]:
    """One visitor: what was brought, how it was tried, what was found."""
    maker, metal, piece = rng.choice(MAKERS), rng.choice(METALS), rng.choice(PIECES)
    good, bad = rng.randint(1, 6), rng.randint(0, 6)
    count = good + bad
    it, they = ("it", "It") if count == 1 else ("them", "They")
    sentences = [
        f"{maker[0].upper()}{maker[1:]} brought {NUMBERS[count - 1]} {plural(piece, count)} of {metal}.",
        f"We tried {it} on {rng.choice(TOUCHES)}, {rng.choice(MOODS)}.",
    ]
    if bad == 0:
        return [*sentences, f"{they} {was_or_were(count)} true {metal}, and we set the mark."]
    some = f"{NUMBERS[good - 1].capitalize()} {was_or_were(good)} true"
    return [*sentences, f"{some} and {NUMBERS[bad - 1]} {was_or_were(bad)} not."]


def day_text(rng: random.Random, number: int) -> str:
    lines = [f"{DAYS[number % len(DAYS)]}, leaf {number + 1}. {rng.choice(WEATHER)}"]
    lines += [" ".join(entry_sentences(rng)) for _ in range(rng.randint(2, 4))]
    return "\n".join(lines) + "\n\n"


def corpus_text(seed: int = SEED, size: int = SIZE_CHARS) -> str:
    rng = random.Random(seed)
    days: list[str] = []
    length = 0
    while length < size:
        days.append(day_text(rng, len(days)))
        length += len(days[-1])
    return "".join(days)


if __name__ == "__main__":
    sys.stdout.write(corpus_text())
