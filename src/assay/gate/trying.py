"""`assay try` runs base and head with the same seeds until a look decides; `assay tries --confirm` repeats tries."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence

from assay.errors import UsageError
from assay.gate.paired_test import (
    Judged,
    SeedPair,
    build_schedule,
    check_libraries,
    choose_kept,
    is_near_zero,
    is_one_pair,
    judge_look,
    measure_chance,
)
from assay.gate.passes import digest_command, digest_environment
from assay.gate.tries_ledger import Confirmation, Try, TrySide, hide_try, load_tries, record_try
from assay.gate.try_runs import Result, Runner, TryPlace, describe_failure, refuse_missing
from assay.show.console import Console
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import asdict, replace
from assay.values.secrets import HIDDEN
from assay.values.series import mean_and_sd

BASE, HEAD = "base", "head"
_PROBE = 2  # pairs that show whether both sides run
_FRESH, _RANGES = 1000, 1_000_000  # a confirmation uses one of `_RANGES` ranges of `_FRESH` seeds
_ONE_PAIR = "the seed changes nothing on the base and the head: all pairs are one pair; is it used?"
_OUTSIDE = "what git does not have is on neither side: name data and programs by absolute paths"


def try_idea(asked: Try, place: TryPlace, console: Console) -> Try:
    """Run pairs until a look decides or all pairs have run; record the result."""
    if asked.a.key == asked.b.key:
        reason = "both sides have the same code, command and environment: nothing was run"
        return _record(replace(asked, verdict="same", reason=reason), place)
    check_libraries()
    hidden, known = hide_try(asked), load_tries(place.location)
    counts = [each.most for each in known if replace(hidden, most=each.most).key == each.key and each.most < asked.most]
    if counts:  # the boundary allows only for the looks of one call
        before = ", ".join(f"--seeds {count}" for count in sorted(counts))
        risk = "each call looks again, so a wrong `better` is more likely than 2.5%; confirm it: assay tries --confirm"
        asked = replace(asked, notes=(*asked.notes, f"asked before with {before}: {risk}"))
    return _record(_Trial(asked, Runner(place, console)).run(), place)


def _record(found: Try, place: TryPlace) -> Try:
    """Record a try, with the confirmation from its earlier record if the verdict has not changed."""
    found = replace(found, at=time.time())
    before = next((each for each in load_tries(place.location) if each.key == hide_try(found).key), None)
    if before is not None and before.verdict == found.verdict:
        found = replace(found, confirmation=before.confirmation)
    record_try(place.location, found)
    return found


class _Trial:
    def __init__(self, asked: Try, runner: Runner) -> None:
        self.asked, self.runner = asked, runner
        self.location = runner.place.location

    def run(self) -> Try:
        """Run two pairs to see whether both sides run, then as many pairs as the looks need."""
        schedule = build_schedule(self.asked.most)
        if spent := self._run_pairs(_PROBE):
            return self._build(Judged("undecided", 0), spent)
        if self._check_sides():
            return self._build(Judged("worse", _PROBE, failed_b=_PROBE), "the idea does not run, the base does")
        judged = Judged("undecided", 0)
        for count, level in schedule:
            if spent := self._run_pairs(count):
                return self._build(judged, f"{spent} before it was decided")
            self._check_zero(pairs := self._list_pairs(count))
            judged = judge_look(pairs, level, self.asked.question)
            if is_one_pair(pairs):  # further pairs would have the same values
                return self._build(replace(judged, verdict="undecided", interval=None), _ONE_PAIR)
            if judged.verdict != "undecided":
                break
            if count != self.asked.most:
                change = "cannot be compared"
                if judged.effect is not None and judged.interval is not None:
                    change = describe_change(judged.effect, judged.relative, judged.interval, "interval")
                self.runner.console.message(f"{count} pairs: {self.asked.metric.name} {change}; not decided yet")
        return self._build(judged, explain(judged))

    def _run_pairs(self, count: int) -> str:
        """Run pairs; return why some of the pairs were not run, or an empty string."""
        asked = self.asked
        wanted = [(side, seed, asked.metric) for seed in range(1, count + 1) for side in (asked.a, asked.b)]
        return self.runner.run(wanted, {asked.a.key: BASE, asked.b.key: HEAD})

    def _list_results(self, side: TrySide) -> list[Result]:
        """Return the results of a side in the order of seeds."""
        found = ((side.key, seed, self.asked.metric) for seed in range(1, self.asked.most + 1))
        return [self.runner.results[key] for key in found if key in self.runner.results]

    def _list_pairs(self, count: int) -> list[SeedPair]:
        """Return the pairs of the seeds with which both sides ran."""
        asked, found, seeds = self.asked, self.runner.results, range(1, count + 1)
        both = ([found.get((side.key, seed, asked.metric)) for side in (asked.a, asked.b)] for seed in seeds)
        return [SeedPair(seed, a.value, b.value) for seed, (a, b) in zip(seeds, both, strict=True) if a and b]

    def _check_sides(self) -> bool:
        """Raise UsageError if the base does not run or a side has no metric; return whether only the head fails."""
        a, b = self._list_results(self.asked.a), self._list_results(self.asked.b)
        if all(result.is_failed for result in a):
            line, command = describe_failure(a[0], self.location)
            raise UsageError(f"the base {self.asked.a.title} does not run: {line}", f"see {command}; {_OUTSIDE}")
        for title, results in ((BASE, a), (HEAD, b)):
            ended = [result for result in results if not result.is_failed]
            if ended and all(result.value is None for result in ended):
                refuse_missing(self.asked.metric, ended[0], f"the {title}", self.location)
        return all(result.is_failed for result in b) and not any(result.is_failed for result in a)

    def _check_zero(self, pairs: Sequence[SeedPair]) -> None:
        """Raise UsageError for values near zero: a fraction of such values is meaningless."""
        values = [pair.a for pair in pairs if pair.a is not None and not pair.is_bad_a]
        if self.asked.question.change is None and is_near_zero(values):
            mean = render_number(mean_and_sd(values)[0] or 0.0)
            message = f"{self.asked.metric.name} of the base is near zero ({mean} on average): a fraction of it"
            raise UsageError(f"{message} means nothing", "give the smallest difference that matters: --min-change 0.01")

    def _build(self, judged: Judged, reason: str) -> Try:
        pairs = self._list_pairs(self.asked.most)
        results = [result for side in (self.asked.a, self.asked.b) for result in self._list_results(side)]
        return replace(
            self.asked,
            **{name: value for name, value in asdict(judged).items() if name not in ("failed_a", "failed_b")},
            reason=reason,
            values=tuple((pair.seed, pair.a, pair.b) for pair in pairs),
            runs=len(results),
            new_runs=sum(result.is_new for result in results),
            seconds=sum(result.seconds for result in results),
            notes=(*self.asked.notes, *self._describe(pairs)),
        )

    def _describe(self, pairs: Sequence[SeedPair]) -> list[str]:
        if notes := [*self._describe_bad(BASE, self.asked.a), *self._describe_bad(HEAD, self.asked.b)]:
            notes.append("a side that failed counts as worse, by the largest difference that there is")
        elif len(pairs) > 1 and all(pair.a == pair.b for pair in pairs):
            notes.append("equal, though the code differs: an editable install would lead both sides to your own files")
        elif len(pairs) > 1 and not is_one_pair(pairs):
            values = (BASE, {pair.a for pair in pairs}), (HEAD, {pair.b for pair in pairs})
            single = "its runs are one run, perhaps a lucky one; is it used?"
            notes += [f"the seed changes nothing on the {title}: {single}" for title, got in values if len(got) == 1]
        return notes

    def _describe_bad(self, title: str, side: TrySide) -> Iterator[str]:
        results = self._list_results(side)
        if failed := [result for result in results if result.is_failed]:
            line, command = describe_failure(failed[0], self.location)
            yield f"{render_count(len(failed), 'run')} of the {title} failed: {line} (see {command})"
        ended = [result.value for result in results if not result.is_failed]
        if lost := sum(value is None or not math.isfinite(value) for value in ended):
            yield f"{render_count(lost, 'run')} of the {title} ended without a finite value"


def describe_change(effect: float, relative: float | None, interval: tuple[float, float], name: str) -> str:
    """Describe a change as `-0.012 (-2.4%), interval -0.02 to -0.004`."""
    share = f" ({relative:+.2%})" if relative is not None else ""
    return f"{render_signed(effect)}{share}, {name} {' to '.join(map(render_signed, interval))}"


def render_signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{render_number(value, 3)}"


def explain(judged: Judged) -> str:
    """Explain the verdict."""
    if judged.effect is None or judged.interval is None or judged.threshold is None:
        return f"{judged.failed_b} runs of the head and {judged.failed_a} of the base failed, or have no finite value"
    smallest = f"what matters ({render_number(judged.threshold, 3)})"
    if judged.verdict in ("better", "worse"):
        return f"the interval excludes 0, and the change is larger than {smallest}"
    if judged.verdict == "same":
        equal = " and equal bit for bit" if judged.effect == 0 and judged.interval == (0, 0) else ""
        return f"the whole interval is smaller than {smallest}{equal}"
    if judged.interval[0] > 0 or judged.interval[1] < 0:
        return f"the interval excludes 0, and the change is not larger than {smallest}"
    return f"after {render_count(judged.pairs, 'pair')} the interval still has 0 and more than {smallest} in it"


def confirm_tries(place: TryPlace, pairs: int | None, console: Console) -> list[Try]:
    """Repeat with fresh seeds every try whose verdict is `better`, choose which to keep, and return all tries."""
    found = load_tries(place.location)
    if not (chosen := [each for each in found if each.verdict == "better"]):
        console.message("nothing was better: there is nothing to confirm")
        return found
    if hidden := next((each for each in chosen if HIDDEN in "".join((*each.a.words, *each.b.words))), None):
        raise UsageError(f"{hidden.idea!r} cannot be repeated: its command has a secret, which is not recorded")
    check_libraries()
    machine = digest_environment(os.getcwd())

    def renew(side: TrySide) -> TrySide:
        return replace(side, machine=digest_command(machine, side.environment, side.words))

    now = [replace(each, a=renew(each.a), b=renew(each.b)) for each in chosen]
    repeated = [_repeat(each, Runner(replace(place, timeout_s=each.timeout_s), console), pairs) for each in now]
    chances = [measure_chance(mine, each.question) for each, mine in zip(chosen, repeated, strict=True)]
    kept: dict[str, Confirmation] = {}
    for each, mine, p, is_kept in zip(chosen, repeated, chances, choose_kept(chances), strict=True):
        effect, _ = mean_and_sd([pair.change for pair in mine if pair.change is not None])
        kept[each.key] = Confirmation(len(mine), effect, p, is_kept)
        record_try(place.location, replace(each, confirmation=kept[each.key]))
    return [replace(each, confirmation=kept.get(each.key)) for each in found]


def _repeat(asked: Try, runner: Runner, pairs: int | None) -> list[SeedPair]:
    """Repeat a try with seeds of its own: with shared seeds, one unlucky base would favour all ideas at once."""
    first = _FRESH * (1 + int(asked.key, 16) % _RANGES) + 1
    seeds = range(first, first + (pairs or asked.most))
    titles = {asked.a.key: f"{asked.idea}, {BASE}", asked.b.key: f"{asked.idea}, {HEAD}"}
    runner.run([(side, seed, asked.metric) for seed in seeds for side in (asked.a, asked.b)], titles)
    values = [[runner.results[side.key, seed, asked.metric].value for side in (asked.a, asked.b)] for seed in seeds]
    return [SeedPair(seed, *both) for seed, both in zip(seeds, values, strict=True)]
