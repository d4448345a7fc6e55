"""Numbers over time: metrics by step, readings by second; the better direction and the rank of a metric by its name."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from assay.system.fast_dataclasses import dataclass

# The meaning of `{number}` in a pattern: sign, exponent, nan, inf. NUMBER has no group, so that it fits into one.
NUMBER = r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))"
# A number with a decimal comma or with groups of thousands, of which NUMBER reads one part (1 of 1,234; 2 of 2,35).
# Numbers with more commas (1,2,3), or with a fraction after one comma (1,0.25), are columns and do not match.
GROUPED_NUMBER = re.compile(
    r"(?<![\d,])[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d+,\d+(?:[eE][-+]?\d+)?(?!\d|[.,]\d))"
)


def expand_number(regex: str) -> str:
    """Fill in `{number}`; a pattern with one `{number}` and no group gets a group around it."""
    try:
        has_group = re.compile(regex.replace("{number}", "0")).groups > 0
    except re.error:
        has_group = True
    is_bare = regex.count("{number}") == 1 and not has_group
    return regex.replace("{number}", f"({NUMBER})" if is_bare else NUMBER)


READING_S = 1.0  # the time between two readings of a run


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a run's whole process tree at one moment, and of its GPU if it has one."""

    time: float
    processes: int
    cpu_s: float  # used so far by the tree
    rss_bytes: int
    vms_bytes: int
    peak_rss_bytes: int  # the largest VmHWM seen in the tree so far
    gpu: GpuReading | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The state of a run's GPUs: the sum of their memory, and the maximum of every other value."""

    memory_bytes: int
    utilisation: float  # percent
    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one metric of one run. Values that are not finite count only in `count` and `bad`."""

    metric: str
    count: int
    last: float
    last_step: float | None
    min: float
    min_step: float | None
    max: float
    max_step: float | None
    mean: float
    bad: int = 0  # the number of NaN or infinite values
    first_time: float | None = None
    last_time: float | None = None


Direction = Literal["min", "max"]

ASV_TRACKED = "track_"  # prefix of asv's benchmarks that return their own number

_LOWER_NAMES = """
    loss losses err error errors wer cer eer ter mer fer ppl perplexity nll nlls bpc bpb bpd mse rmse mae mape
    smape msle rmsle cost regret fid kid lpips kl divergence distance time times duration latency elapsed
    runtime walltime seconds second sec secs s ms us ns millis milliseconds minutes memory mem rss vms bytes mib
    gib violations misses failures mistakes ece brier energy hamming
"""
_HIGHER_NAMES = """
    acc accuracy accuracies top f fscore fbeta bleu rouge meteor cider spice chrf auc auroc auprc ap map iou
    miou jaccard dice psnr ssim r score reward rewards return returns recall precision sensitivity specificity
    throughput fps ips qps tps wps speed speedup bandwidth utilisation utilization correlation pearson spearman
    kendall ndcg mrr hits hit correct em success successes win wins elo likelihood mcc kappa similarity
    efficiency mfu
"""
_UNIT_NAMES = "second seconds sec secs s ms minute minutes min hour hours h us"
_LOWER = frozenset(_LOWER_NAMES.split())
_HIGHER = frozenset(_HIGHER_NAMES.split())
_TIME_UNITS = frozenset(_UNIT_NAMES.split())
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def direction_of(metric: str) -> Direction:
    """Return the better direction by the metric's name; unknown: lower for asv's tracked numbers, else higher."""
    return find_direction(metric) or ("min" if metric.startswith(ASV_TRACKED) else "max")


def best_of(summary: Summary) -> tuple[float, float | None]:
    """Return the best value and its step, in the direction that the metric's name implies."""
    return pick_value(summary, direction_of(summary.metric))


def pick_value(summary: Summary, at: str) -> tuple[float, float | None]:
    """Return the `last`, `min` or `max` of a series with its step, or the `mean`, which has no step."""
    return getattr(summary, at), getattr(summary, f"{at}_step", None)


def find_direction(metric: str) -> Direction | None:
    """Return the better direction if the metric's name shows it. The last known word decides (`accuracy_loss` is a
    loss); a rate (`images/sec`, `tokens_per_s`) is a speed."""
    words = [word.lower() for word in _WORD.findall(metric)]
    if _is_rate(words, metric):
        return "max"
    counted = words[: words.index("per")] if "per" in words[1:] else words  # words after `per` are the unit
    for word in reversed(counted):
        if word in _LOWER or word.endswith(("loss", "error", "perplexity")):
            return "min"
        if word in _HIGHER or word.endswith(("acc", "accuracy", "score")):
            return "max"
    return None


def _is_rate(words: list[str], metric: str) -> bool:
    if len(words) < 2 or words[-1] not in _TIME_UNITS:
        return False
    amount = words[:-2] if words[-2] == "per" else words[:-1]
    by_slash = re.search(r"/\s*[A-Za-z]+$", metric) is not None
    return (words[-2] == "per" or by_slash) and not _LOWER.intersection(amount)


_ORDER = ("test", "val", "valid", "eval", "acc", "accuracy", "score", "loss")
_HELD_OUT = frozenset(("test", "val", "valid", "validation", "eval"))


def metric_priority(metric: str) -> tuple[int, int, str]:
    """Return a sort key: a validation result is before a training one, an accuracy before a loss."""
    words = metric.lower().replace("/", "_").replace(".", "_").split("_")
    held_out = 0 if any(word in _HELD_OUT for word in words) else 1
    kind = next((i for i, word in enumerate(_ORDER) if any(word in part for part in words)), len(_ORDER))
    return held_out, kind, metric


def whole_step(step: float | None) -> float | None:
    """Convert a whole step, which is stored as a float, to an integer for people and JSON."""
    return int(step) if isinstance(step, float) and step.is_integer() else step


def mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the sample's mean and standard deviation; a single value has no deviation, and NaN makes the mean NaN."""
    if not values:
        return None, None
    if not all(map(math.isfinite, values)):
        return math.nan, None
    try:
        mean = math.fsum(values) / len(values)
    except OverflowError:
        mean = math.fsum(value / len(values) for value in values)
    if len(values) < 2:
        return mean, None
    # hypot is used, since the square of a diverged loss may overflow
    spread = math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)
    return mean, spread if spread > 2 * math.ulp(mean) else 0.0  # the spread of a constant is only the mean's rounding
