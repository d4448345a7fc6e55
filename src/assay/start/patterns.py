"""Guesses patterns for metrics from the output of a script."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from assay.show.formatting import clean, shorten

_PAIR = re.compile(
    r"(?P<before>(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)[ ])?"
    r"(?P<name>[A-Za-z][\w/.-]*)(?P<between>[\"']?\s*[:=]?\s*\[?)"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?![\w.])",
    re.IGNORECASE,
)
_STEPS = ("step", "global_step", "iteration", "iter", "it", "epoch")  # the first one that is printed is the position
_METRIC = r"loss|acc|err|score|reward|perplexity|ppl|bleu|f1|auc|mse|mae|psnr"
_NOT = ("time", "eta", "elapsed", "took", "seconds", "sec", "version", "seed")
_MOST = 8


class Guess(NamedTuple):
    metric: str
    pattern: str
    line: str  # the first matching line as it is shown: a long one from the name on
    lines: int


def guess_patterns(lines: Iterable[str], params: Collection[str]) -> list[Guess]:
    """Return the position first, then metrics in the order of the output. Parameters are not metrics."""
    found: dict[str, Guess] = {}
    decimal: set[str] = set()
    for line in lines:
        for match in _PAIR.finditer(line):
            name = (match["before"] or "") + match["name"]
            if not match["between"] or name.endswith((".", "-")):
                continue
            between = re.sub(r"(?:\\ )+", r"\\s+", re.escape(match["between"])).replace(r"\s+", " ", 1)
            shown = shorten(clean(line[match.start() if len(line) > 60 else 0 :].strip()), 60, front=60)
            known = found.get(name) or Guess(name, f"{name}{between}({{number}})", shown, 0)
            found[name] = known._replace(lines=known.lines + 1)
            decimal |= {name} if "." in match["number"] or "e" in match["number"].lower() else set()
    step = next((each for word in _STEPS for each in found if each.lower() == word), None)
    position = []
    if step is not None:
        name, pattern = "epoch" if step.lower() == "epoch" else "step", found[step].pattern
        position = [found[step]._replace(metric=name, pattern=pattern.replace("({number})", r"(\d+)"))]
    metrics = [each for each in found.values() if _is_metric(each.metric, decimal, params)]
    return [*position, *(_separate(each, found) for each in metrics[:_MOST])]


def _is_metric(name: str, decimal: Collection[str], params: Collection[str]) -> bool:
    word = name.lower()
    if word in (*_STEPS, *_NOT) or word.replace("_", "-") in {each.lower().replace("_", "-") for each in params}:
        return False
    return name in decimal or re.search(_METRIC, word) is not None


def _separate(guess: Guess, found: Collection[str]) -> Guess:
    """Exclude longer names that end with this one: `loss` must not match `val loss`."""
    metric = guess.metric.lower().replace(" ", "_")
    if any(other != guess.metric and other.endswith(guess.metric) for other in found):
        longer = [re.escape(other[: -len(guess.metric)]) for other in found if other.endswith(guess.metric)]
        guards = "".join(f"(?<!{each})" for each in longer if each)
        return guess._replace(metric=metric, pattern=guards.replace("\\ ", " ") + guess.pattern)
    return guess._replace(metric=metric)
