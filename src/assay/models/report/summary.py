"""The result of a model check in sentences that the terminal, Markdown, JUnit and the page share, and as a chart."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence

from assay.models.values.model import FULL_MODEL, WRONG, CaseReport, ModelReport, Step, StepOutcome
from assay.models.values.tensors import TensorComparison
from assay.show import formatting
from assay.system.fast_dataclasses import dataclass
from assay.values.document import Chart, Curve, Panel
from assay.values.verdict import Finding, VerdictKind

_TAIL_WIDTH = 400  # characters of one line of a tool's output
_MOST_NAMES = 6
_LARGE = 1e4  # a larger error is shown by its power of ten
_LONGEST_VERSION = 80
_LEAST_POWER, _MOST_POWER = -20, 20  # powers of ten on the axis
_MOST_TICKS = 9
_MOST_LABELS = 60
_NOTICE = re.compile(r"\s+(?:Copyright\b|\(C\)|©|Licen[sc]e|This is free|This program)", re.IGNORECASE)
_FATAL = "Fatal Python error"  # the first line of faulthandler's output
_PYTHON = re.compile(r"[A-Za-z_][\w.]*\(")  # a call in Python, which is not a shell command


@dataclass(frozen=True, slots=True)
class CaseMetrics:
    """The worst numbers of a case's outputs; None if nothing was compared or measured."""

    local: float | None
    accumulated: float | None
    cosine: float | None
    sqnr_db: float | None
    compile_s: float | None
    run_s: float | None


def build_case_metrics(case: CaseReport) -> CaseMetrics:
    """Build the numbers of a case. The full model has no local error: the error of its outputs has accumulated."""
    local, accumulated = case.local, case.accumulated
    if case.layer is None and not accumulated:
        local, accumulated = (), case.local
    return CaseMetrics(
        local=max(map(_rank_error, local), default=None),
        accumulated=max(map(_rank_error, accumulated), default=None),
        cosine=_least([each.cosine for each in case.local]),
        sqnr_db=_least([each.sqnr_db for each in case.local]),
        compile_s=_measured(case, Step.COMPILE),
        run_s=_measured(case, Step.RUN),
    )


def _measured(case: CaseReport, step: Step) -> float | None:
    """Return the time of a step; None if the step failed, since its time does not show the target's speed."""
    return None if any(each.step is step and not each.is_ok for each in case.steps) else case.seconds(step)


def find_fresh(case: CaseReport, step: Step) -> tuple[float, ...]:
    """Return the seconds that this check measured for each timed execution, or for the step as a whole; none if the
    step's result is from the store or the step failed."""
    for each in reversed(case.steps):
        if each.step is step and each.is_ok and not each.cached and not each.is_copy:
            return each.times_s or (each.elapsed_s,)
    return ()


def _least(values: Sequence[float | None]) -> float | None:
    """Return the smallest value; NaN is worse than any number."""
    found = [value for value in values if value is not None]
    return math.nan if any(map(math.isnan, found)) else min(found, default=None)


def render_error(value: float | None) -> str | None:
    """Render an error with two digits; `0` means equal bit for bit."""
    if value is None:
        return None
    if abs(value) >= _LARGE and math.isfinite(value):
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return formatting.render_number(float(value), 2) if value else "0"


def render_ms(seconds: float | None) -> str | None:
    return None if seconds is None else formatting.render_number(seconds * 1000.0, 3)


def label_of(case: CaseReport, report: ModelReport | None = None) -> str:
    """Return `Conv_3` or `full_model`: the case's name without the model's; `--only` accepts it too."""
    if case.layer is not None:
        return case.layer.label
    if case.name.endswith(FULL_MODEL):
        return FULL_MODEL
    return case.name.removeprefix(f"{report.stem}_") if report else case.name


def ops_of(case: CaseReport) -> str:
    return "+".join(case.layer.ops) if case.layer else ""


def join_names(names: Sequence[str]) -> str:
    """Join names: `Conv_1, Conv_4 and 12 more`."""
    return formatting.join_first(names, _MOST_NAMES - (len(names) > _MOST_NAMES))


def name_subject(report: ModelReport) -> str:
    """Name the subject of a report: `net on iree`, or for two models `int8 against float`."""
    other = os.path.splitext(os.path.basename(report.other))[0]
    return f"{other} against {report.stem}" if other else f"{report.stem} on {report.target}"


def describe_outcome(report: ModelReport) -> str:
    """Describe the outcome in one sentence: the first wrong layer, or another problem, or that nothing is wrong."""
    first = find_first(report)
    if report.command and report.cases:
        case = report.cases[0]
        nodes = f"one {ops_of(case)}, {label_of(case)}" if case.layer else "made of several nodes"
        return f"the smallest model that fails is {nodes}: {_describe_trouble(case)}"
    if first is not None:
        return _describe_first(report, first)
    kind = report.verdict.kind
    if kind is VerdictKind.PASS:
        return f"{_count_cases(report)} with {report.stem if report.other else report.reference}"
    for finding in report.findings:  # the finding that decides: one about the whole model precedes one about a case
        if finding.kind is kind:
            return finding.message
    for case in report.cases:
        for finding in case.verdict.findings:
            if finding.kind is kind:
                about = f" {finding.subject}" if finding.subject != case.name else ""
                return f"{label_of(case, report)}{about}: {finding.message}"
    return "nothing was compared"


def find_first(report: ModelReport) -> CaseReport | None:
    return next((case for case in report.cases if case.name == report.first_wrong), None)


def _describe_first(report: ModelReport, case: CaseReport) -> str:
    name = label_of(case, report)
    group = f" ({ops_of(case)})" if case.layer and len(case.layer.ops) > 1 else ""
    full = next((each for each in report.cases if each.layer is None), None)
    verdicts = [case.verdict, *(each.verdict for each in (*case.local, *case.accumulated))]
    if full is not None and all(verdict.kind not in WRONG for verdict in verdicts):
        # the layer itself does not show the fault; the full model does, once it contains this layer
        bad = find_bad(case)
        alone = describe_finding(bad[0], case) if bad else "it could not be computed in isolation"
        if case.verdict.kind is VerdictKind.PASS:
            alone = "correct in isolation: suspect a fusion"
        return f"the model is wrong with {name}{group}: {_describe_trouble(full)}; {alone}"
    what = f"the first wrong layer is {name}{group}: {_describe_trouble(case)}"
    if report.unseen:
        others = "the layer before it was" if report.unseen == 1 else f"{report.unseen} layers before it were"
        return f"{name}{group} is wrong: {_describe_trouble(case)}; {others} not requested"
    if report.confirmed is False:
        return f"{what}; in isolation the layer is correct: check its neighbours"
    return what if case.failed_step or report.confirmed is None else f"{what}; it is also wrong in isolation"


def _describe_trouble(case: CaseReport) -> str:
    """Describe what is wrong with a case, in short if a number shows it; the case's findings have the details."""
    if case.failed_step is not None:
        return f"{case.outcome}: {case.failed_step.message}".rstrip(": ")
    local, inside = _find_furthest(case.local), _find_furthest(case.accumulated)
    if local is not None:
        return _describe_difference(local)
    bad = find_bad(case)
    if inside is not None and case.verdict.kind not in WRONG:
        return f"inside the model {_describe_difference(inside)}"
    return describe_finding(bad[0], case) if bad else case.outcome


def _describe_difference(compared: TensorComparison) -> str:
    """Describe a difference by its size; a wrong type, shape or NaN, or a bound on the whole tensor, by its finding."""
    if compared.wrong and not compared.is_broken and math.isfinite(compared.error):
        share = f"{compared.wrong} of {formatting.render_count(compared.count, 'element')}"
        return f"{compared.name} is off by {render_error(compared.error)} of its scale ({share})"
    found = [each for each in compared.verdict.findings if each.kind in WRONG]
    first_finding = next((each for each in found if each.value is None), found[0] if found else None)
    return f"{compared.name}: {first_finding.message}" if first_finding else f"{compared.name} differs"


def _find_furthest(comparisons: Sequence[TensorComparison]) -> TensorComparison | None:
    """Return the wrong tensor with the largest error. A NaN counts as the largest."""
    wrong = [each for each in comparisons if each.verdict.kind in WRONG]
    return max(wrong, key=lambda each: (_rank_error(each), each.is_broken), default=None)


def _rank_error(compared: TensorComparison) -> float:
    return math.inf if math.isnan(compared.error) else compared.error


def find_main_finding(case: CaseReport) -> Finding | None:
    """Return the finding of the output with the largest error, which is shown for the case."""
    bad, furthest = find_bad(case), _find_furthest(case.local)
    name = furthest.name if furthest and case.failed_step is None else ""
    return next((each for each in bad if each.subject == name), bad[0] if bad else None)


def _count_cases(report: ModelReport) -> str:
    layers = sum(case.layer is not None for case in report.cases)
    wholes = [case for case in report.cases if case.layer is None]
    if wholes and not layers and not all(case.name.endswith(FULL_MODEL) for case in wholes):  # another tool's outputs
        return f"{formatting.render_count(len(wholes), 'tensor')} {'agrees' if len(wholes) == 1 else 'agree'}"
    parts = [formatting.render_count(layers, "layer")] * bool(layers) + ["the full model"] * bool(wholes)
    return f"{' and '.join(parts)} {'agree' if layers > 1 or len(parts) > 1 else 'agrees'}"


def find_bad(case: CaseReport) -> list[Finding]:
    return [finding for finding in case.verdict.findings if finding.kind is not VerdictKind.PASS]


def describe_finding(finding: Finding, case: CaseReport) -> str:
    """Describe a finding without the case's name and outcome, which are shown next to it."""
    about = f"{finding.subject}: " if finding.subject != case.name else ""
    return about + finding.message.removeprefix(f"{case.outcome}: ")


def group_failures(report: ModelReport) -> list[tuple[StepOutcome, list[str]]]:
    """Group failures by their message, or by the last line of the tool's output, each with the labels of all its cases.
    The failure of the first wrong layer comes first, then the failure of the full model."""
    found: dict[tuple[str, str, str], tuple[StepOutcome, list[str]]] = {}
    for case in report.cases:
        step = case.failed_step
        if step is not None:
            key = (step.step, step.ending, step.message or "\n".join(build_tail(step, 1)))
            found.setdefault(key, (step, []))[1].append(label_of(case, report))
    first = [label_of(case, report) for case in report.cases if case.name == report.first_wrong]
    whole = [label_of(case, report) for case in report.cases if case.layer is None]
    return sorted(found.values(), key=lambda each: (not {*first} & {*each[1]}, not {*whole} & {*each[1]}))


def build_tail(step: StepOutcome, lines: int) -> list[str]:
    """Return the last lines of the tool's stderr, or of its stdout if stderr is empty."""
    said = [line.rstrip() for line in _tail(step).splitlines() if line.strip()]
    fatal = [index for index, line in enumerate(said) if line.startswith(_FATAL)]
    # if Python itself crashed: the first lines of its trace, which has the innermost frame first
    chosen = said[fatal[-1] :][:lines] if fatal else said[-lines:]
    return [formatting.shorten(formatting.clean(line.expandtabs()), _TAIL_WIDTH) for line in chosen]


def render_command(step: StepOutcome) -> str:
    """Render the command for pasting into a shell, or into Python."""
    command = formatting.clean(step.command)
    return f">>> {command}" if _PYTHON.match(command) else f"$ {command}"


def _tail(step: StepOutcome) -> str:
    return step.stderr if step.stderr.strip() else step.stdout


def build_diff_commands(case: CaseReport) -> list[str]:
    return [f"assay model diff {shlex.quote(expected)} {shlex.quote(actual)}" for expected, actual in case.diffs]


def build_next_steps(report: ModelReport) -> Iterator[tuple[str, str]]:
    """Yield the purpose and the text of each command to run next."""
    # if the reference fails, the target was not run
    asked = (case for case in report.cases if case.target == report.target and (case.steps or case.local))
    wrong = (case for case in asked if case.verdict.kind in WRONG)
    first = find_first(report) or next(wrong, None)
    if first is None:
        return
    commands = build_diff_commands(first)
    if commands:
        yield "show the numbers", commands[0]
    if report.other:  # one of two compared models does not show the fault alone
        return
    # the command can be pasted anywhere: it needs the folder whose settings define targets, often next to the inputs
    there = f"cd {shlex.quote(report.folder)} && " if report.folder else ""
    if report.command:
        yield "reproduce it", there + report.command
        return
    manner = report.manner or f"--reference {shlex.quote(report.reference)} --target {shlex.quote(report.target)}"
    model = report.model.removeprefix(f"{report.folder}/") if report.folder else report.model
    command = f"assay model reduce {shlex.quote(model)} {manner} {report.origin}"
    yield "reduce it", there + command.rstrip()


def describe_times(report: ModelReport) -> str:
    """Return warnings about times that are not reliable."""
    remembered = sum(step.cached for case in report.cases for step in case.steps)
    parts = ["times are a simulator's estimates"] if report.is_estimate else []
    if remembered:
        steps = formatting.render_count(remembered, "step")
        parts.append(f"times of {steps} are from the cache, as measured when it was made")
    return "; ".join(parts)


def describe_surroundings(report: ModelReport) -> str:
    """Describe tools and samples: `iree-compile 3.13, 2 samples, 12s`. The JSON has builds, files and hashes."""
    named = [name for name in report.tools if name != "cpu" and "/" not in name and not name.endswith(": words")]
    tools = [f"{name} {_shorten_version(report.tools[name])}" for name in named]
    return ", ".join((*tools, *_list_amounts(report)))


def describe_briefly(report: ModelReport) -> str:
    """Return a line for the head of a page, whose provenance has tools and paths: `cnn.onnx, reference ort, 12s`."""
    models = [os.path.basename(path) for path in (report.other, report.model) if path]
    return ", ".join((" against ".join(models), f"reference {report.reference}", *_list_amounts(report)))


def _list_amounts(report: ModelReport) -> list[str]:
    samples = [formatting.render_count(report.samples, "sample")] if report.samples != 1 else []
    return samples + ([formatting.render_duration(report.elapsed_s)] if report.elapsed_s else [])


def _shorten_version(text: str) -> str:
    """Return the number of a version, or the part before the licence in a program's notice."""
    first = _NOTICE.split(" ".join(text.split()), maxsplit=1)[0]
    if first[:1].isdigit():
        return first.split(maxsplit=1)[0]
    return first if len(first) <= _LONGEST_VERSION else f"{first[: _LONGEST_VERSION - 1].rstrip()}…"


def build_chart(report: ModelReport) -> Chart:
    """Build a logarithmic chart of errors: bit-equal layers at the bottom, infinite or undefined errors on top."""
    cases, metrics = report.cases, [build_case_metrics(case) for case in report.cases]
    allowed = [min((each.tolerance.rel for each in case.local if each.tolerance.rel), default=None) for case in cases]
    scale = _Scale([value for each in metrics for value in (each.local, each.accumulated)] + allowed)
    local, failed, whole, strokes, hovers = [], [], [], [], []
    inside: list[float | None] = []  # None interrupts the line
    for x, (case, each, bound) in enumerate(zip(cases, metrics, allowed, strict=True)):
        if each.local is not None:
            local.append((float(x), scale.y(each.local)))
        elif case.layer is not None and case.verdict.kind is not VerdictKind.PASS:
            failed.append((float(x), scale.top))
        y = None if each.accumulated is None else scale.y(each.accumulated)
        inside.append(y if case.layer is not None else None)
        whole += [(float(x), y)] if y is not None and case.layer is None else []
        strokes += [Curve([(x + side, scale.y(bound)) for side in (-0.5, 0.5)], "allowed")] if bound else []
        named = (("local error", each.local), ("accumulated error", each.accumulated), ("allowed", bound))
        lines = [f"{name} {render_error(value)}" for name, value in named if value is not None]
        hovers.append((x, "\n".join([f"{case.name}: {case.outcome}", *lines])))
    curves = [
        *strokes,
        *(Curve(part, "accumulated", marker="dot") for part in _split_at_gaps(inside)),
        Curve(whole, "accumulated", line=False, marker="dot"),
        Curve(local, "local", line=False, marker="dot"),
        Curve(failed, "cross", line=False, marker="cross"),
    ]
    return Chart(
        title="",
        panels=[Panel(curves, y_range=(scale.bottom, scale.top), ticks=scale.ticks(), height=240)],
        label="error by layer",
        spans=[("fail", x - 0.5, x + 0.5) for x, case in enumerate(cases) if case.verdict.kind is not VerdictKind.PASS],
        lines=[x for x, case in enumerate(cases) if case.name == report.first_wrong],
        hovers=hovers,
        x_range=(-0.5, len(cases) - 0.5),
        x_ticks=_list_x_ticks(report),
        is_wide=True,
    )


class _Scale:
    def __init__(self, values: Sequence[float | None]) -> None:
        powers = [math.log10(value) for value in values if value is not None and 0 < value < math.inf]
        powers = [power for power in powers if _LEAST_POWER <= power <= _MOST_POWER] or [-7.0, -5.0]
        self.low = math.floor(min(powers))
        self.high = max(math.ceil(max(powers)), self.low + 2)
        room = (self.high - self.low) / 12
        self.bottom, self.top = self.low - room, self.high + room

    def y(self, value: float) -> float:
        if not value > 0:
            return self.bottom if value == 0 else self.top  # NaN is drawn at the top, as infinity is
        power = math.log10(value)
        return self.bottom if power < self.low else self.top if power > self.high else power

    def ticks(self) -> list[tuple[float, str]]:
        stride = math.ceil((self.high - self.low + 1) / _MOST_TICKS)
        names = {0: "1", 1: "10"}
        powers = [(float(power), names.get(power, f"1e{power}")) for power in range(self.low, self.high + 1, stride)]
        return [(self.bottom, "0"), *powers, (self.top, "∞")]


def _split_at_gaps(values: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
    part: list[tuple[float, float]] = []
    for x, value in enumerate([*values, None]):
        if value is not None:
            part.append((float(x), value))
        elif part:
            yield part
            part = []


def _list_x_ticks(report: ModelReport) -> list[tuple[float, str]]:
    """List the names of cases as ticks; for many cases, some numbers and the name of the first wrong layer."""
    names = [label_of(case, report) for case in report.cases]
    if len(names) <= _MOST_LABELS:
        return [(float(x), name) for x, name in enumerate(names)]
    stride = max(1, math.ceil(len(names) / 20 / 5) * 5)
    first = [x for x, case in enumerate(report.cases) if case.name == report.first_wrong]
    numbers = [(float(x), str(x)) for x in range(0, len(names), stride) if all(abs(x - at) > stride for at in first)]
    return sorted([*numbers, *((float(at), names[at]) for at in first)])
