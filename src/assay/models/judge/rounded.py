"""How far a quantised tensor may be from the float one: a few times as far as the float model is when it is rounded.

The yardstick is the first model itself, its weights and activations rounded to the bits of the second in steps of an
equal size over the range of these very values. A quantised model that is correct is coarser than that where its ranges
were calibrated on other samples; the factors were chosen by `benchmarks/model_compare.py` on one half of its models, and
docs/explanation/model-numerics.md has the rates of the other half.
"""

from __future__ import annotations

import math

from assay.models.judge.tensor_errors import Array, load_numpy
from assay.models.judge.tensors import compare_tensors
from assay.models.judge.tolerances import TAIL_SHARE
from assay.models.values.tensors import Tolerance

WORSE_DB = 12.0  # of the whole tensor
FURTHER = 8.0  # times, of a single element
SHIFT = 1.0  # times the noise: an offset or a factor that all elements share
_FEWEST = 64  # elements: of fewer, noise need not cancel
_BEST_DB = 60.0
_LEAST_DB = 3.0


def build_bound(expected: Array, rounded: Array) -> Tolerance:
    """From the values of the first model, and those when it is rounded."""
    np = load_numpy()
    plain = Tolerance(check_dtype=False)
    if not np.issubdtype(expected.dtype, np.floating) or expected.shape != rounded.shape or not expected.size:
        return plain
    found = compare_tensors("", expected, rounded, Tolerance(abs=0.0, rel=1.0, check_dtype=False, allow_constant=True))
    if found.sqnr_db is None or found.misplaced or not found.scale:
        return plain
    noise = 10 ** (-min(found.sqnr_db, _BEST_DB) / 20)  # of the tensor's root mean square
    signal = float(np.sqrt(np.mean(np.square(expected.astype(np.float64))))) / found.scale
    return Tolerance(
        abs=0.0,
        rel=FURTHER * max(found.max_rel if math.isfinite(found.max_rel) else 0.0, noise * signal),
        min_sqnr_db=max(min(found.sqnr_db, _BEST_DB) - WORSE_DB, _LEAST_DB),
        max_shift=SHIFT * noise * signal if expected.size >= _FEWEST else None,
        allowed_wrong=TAIL_SHARE,
        check_dtype=False,
    )
