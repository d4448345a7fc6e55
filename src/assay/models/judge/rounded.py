"""Bounds a quantised tensor's distance from the float one: a few times the distance of the float model when rounded.

Bounds are derived from the first model, with weights and activations rounded to the second model's bits in steps of an
equal size over the range of these very values. A correct quantised model is coarser where its ranges come from other
samples. The factors were chosen by `benchmarks/model_compare.py` on one half of its models; the error rates of the
other half are in docs/explanation/model-error-rates.md.
"""

from __future__ import annotations

import math

from assay.models.judge.tensor_errors import Array
from assay.models.judge.tensor_numbers import render_share
from assay.models.judge.tensors import compare_tensors
from assay.models.judge.tolerances import TAIL_SHARE
from assay.models.libraries import np
from assay.models.values.tensors import Tolerance
from assay.values.verdict import Finding, VerdictKind

WORSE_DB = 14.0  # dB that the noise of the whole tensor may be worse, for a layer alone
WORSE_INSIDE_DB = 22.0  # dB inside the model, where the errors of all layers before a tensor add up
FURTHER = 12.0  # times the error of a single element
SHIFT = 4.0  # times the noise: an offset or a factor that all elements share
LEAST_DB = 8.0  # for a layer alone: with less signal to noise it computes something else, whatever its rounding is
LEAST_CLIPPED_DB = 12.0  # least ratio of all values to what integers cut off
_FEWEST = 64  # elements: the noise of fewer elements need not cancel
_BEST_DB = 60.0


def build_bound(expected: Array, rounded: Array, worse_db: float) -> Tolerance:
    """Return the bounds of a tensor from its values in the first model and in the rounded first model."""
    plain = Tolerance(check_dtype=False)
    if not np.issubdtype(expected.dtype, np.floating) or expected.shape != rounded.shape or not expected.size:
        return plain
    found = compare_tensors("", expected, rounded, Tolerance(abs=0.0, rel=1.0, check_dtype=False, allow_constant=True))
    if found.sqnr_db is None or found.misplaced or not found.scale:
        return plain
    noise = 10 ** (-min(found.sqnr_db, _BEST_DB) / 20)  # as a fraction of the tensor's root mean square
    signal = float(np.sqrt(np.mean(np.square(expected.astype(np.float64))))) / found.scale
    return Tolerance(
        abs=0.0,
        rel=FURTHER
        * 10 ** ((worse_db - WORSE_DB) / 20)
        * max(found.max_rel if math.isfinite(found.max_rel) else 0.0, noise * signal),
        min_sqnr_db=max(min(found.sqnr_db, _BEST_DB) - worse_db, LEAST_DB if worse_db == WORSE_DB else -math.inf),
        max_shift=SHIFT * 10 ** ((worse_db - WORSE_DB) / 20) * noise * signal if expected.size >= _FEWEST else None,
        allowed_wrong=TAIL_SHARE,
        check_dtype=False,
    )


def judge_range(name: str, expected: Array, least: float, largest: float, step: float) -> Finding | None:
    """Judge how much is cut off because integers of this scale cannot express it; a few such values are normal."""
    values = expected.astype(np.float64)
    lost = values - np.clip(values, least - step, largest + step)
    signal, noise = float(np.square(values).sum()), float(np.square(lost).sum())
    ratio = 10 * math.log10(signal / noise) if noise and signal else math.inf
    if ratio >= LEAST_CLIPPED_DB:
        return None
    share = render_share(int(np.count_nonzero(lost)), values.size)
    text = (
        f"{share} are beyond {least:.3g} to {largest:.3g}, which is all that its integers can express ({ratio:.3g} dB)"
    )
    return Finding(VerdictKind.FAIL, name, text, ratio, LEAST_CLIPPED_DB)
