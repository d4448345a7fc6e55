"""Bugs that can be planted into charlm, to see which of them a convergence check finds.

    CHARLM_FAULT=lost-micro-batch python charlm.py --micro-batches 4 ...
    CHARLM_JITTER=0.004 python charlm.py ...

Each is a mistake that people have made: it trains, prints plausible numbers and ends with exit code 0. A fault is
planted by replacing one of charlm's functions. The jitter is no bug: it multiplies every gradient by 1 + size * normal,
differently in each run, as kernels do that add in no fixed order; bf16 rounds by about 0.004.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

Plant = Callable[[Any], None]  # takes the module charlm and spoils it


# ---------------------------------------------------------------- tools


def with_options(lm: Any, function: str, **changes: float) -> None:
    """Let one function see other options than the rest of the program."""
    right = getattr(lm, function)

    def wrong(*arguments: Any) -> Any:
        return right(*(replace(given, **changes) if isinstance(given, lm.Options) else given for given in arguments))

    setattr(lm, function, wrong)


def with_gradients(lm: Any, spoil: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the gradient of the whole batch."""
    right = lm.batch_gradient

    def wrong(*arguments: Any) -> Any:
        loss, accuracy, gradients = right(*arguments)
        return loss, accuracy, spoil(gradients)

    lm.batch_gradient = wrong


def with_learning_rate(lm: Any, spoil: Callable[[float, Any, int], float]) -> None:
    right = lm.learning_rate
    lm.learning_rate = lambda options, step: spoil(right(options, step), options, step)


def with_data(lm: Any, spoil: Callable[[Any, Any, Any], tuple[Any, Any]]) -> None:
    """Change the windows and targets of the training batches; evaluation draws its own."""
    right = lm.sample_windows

    def wrong(tokens: Any, count: int, context: int, rng: Any) -> Any:
        windows, targets = right(tokens, count, context, rng)
        return (windows, targets) if count == lm.EVAL_WINDOWS else spoil(windows, targets, rng)

    lm.sample_windows = wrong


def with_data_step(lm: Any, spoil: Callable[[int], int]) -> None:
    """Draw the data of another step than the one that is trained."""
    right = lm.generator

    def wrong(seed: int, step: int, purpose: int) -> Any:
        return right(seed, spoil(step) if purpose == lm.PURPOSE_DATA else step, purpose)

    lm.generator = wrong


def round_bits(values: Any, bits: int) -> Any:
    """To that many bits of mantissa, as bf16 (8) does."""
    fraction, exponent = np.frexp(values)
    scaled = np.round(fraction * 2.0**bits) / 2.0**bits
    return np.ldexp(scaled, exponent).astype(np.float32)


# ---------------------------------------------------------------- learning rate and schedule


def scale_learning_rate(factor: float) -> Plant:
    return lambda lm: with_learning_rate(lm, lambda lr, _options, _step: lr * factor)


def hide_learning_rate(factor: float) -> Plant:
    """What is logged is right, what is applied is not."""

    def plant(lm: Any) -> None:
        right = lm.adam_update
        lm.adam_update = lambda state, gradients, lr, options: right(state, gradients, lr * factor, options)

    return plant


def shift_schedule(lm: Any) -> None:
    right = lm.learning_rate
    lm.learning_rate = lambda options, step: right(options, step - 1)


def lose_warmup(lm: Any) -> None:
    with_learning_rate(lm, lambda _lr, options, _step: options.lr)


def diverge_late(lm: Any) -> None:
    """From the 75th step of this process on the learning rate grows by 4% a step."""
    seen: list[int] = []

    def spoil(lr: float, _options: Any, step: int) -> float:
        seen.append(step)
        return lr * 1.04 ** max(0, step - seen[0] - 75)

    with_learning_rate(lm, spoil)


# ---------------------------------------------------------------- optimiser


def change_optimiser(**changes: float) -> Plant:
    return lambda lm: with_options(lm, "adam_update", **changes)


def scale_decay(factor: float) -> Plant:
    def plant(lm: Any) -> None:
        right = lm.adam_update
        lm.adam_update = lambda state, gradients, lr, options: right(
            state, gradients, lr, replace(options, weight_decay=options.weight_decay * factor)
        )

    return plant


def lose_bias_correction(lm: Any) -> None:
    right = lm.adam_update

    def wrong(state: Any, gradients: Any, lr: float, options: Any) -> None:
        step, state.step = state.step, 1_000_000  # where both corrections are 1
        right(state, gradients, lr, options)
        state.step = step

    lm.adam_update = wrong


def lose_moments(lm: Any) -> None:
    """The checkpoint's optimiser state is not restored."""
    right = lm.load_checkpoint

    def wrong(*arguments: Any) -> Any:
        state = right(*arguments)
        for array in (*state.first.values(), *state.second.values()):
            array[...] = 0.0
        return state

    lm.load_checkpoint = wrong


def store_weights_in_bf16(lm: Any) -> None:
    """Small updates of large weights are rounded away."""
    right = lm.adam_update

    def wrong(state: Any, *others: Any) -> None:
        right(state, *others)
        for parameter in state.params.values():
            parameter[...] = round_bits(parameter, 8)

    lm.adam_update = wrong


# ---------------------------------------------------------------- gradients


def drop_gradient(layer: str) -> Plant:
    return lambda lm: with_gradients(lm, lambda gradients: {**gradients, layer: np.zeros_like(gradients[layer])})


def halve_gradient(lm: Any) -> None:
    with_gradients(lm, lambda gradients: {**gradients, "hidden_weight": gradients["hidden_weight"] * np.float32(0.5)})


def clip_tightly(lm: Any) -> None:
    """Each layer is clipped by itself, at a norm meant for the whole."""

    def spoil(gradients: dict[str, Any]) -> dict[str, Any]:
        norms = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
        return {name: gradient * np.float32(min(1.0, 0.1 / norms[name])) for name, gradient in gradients.items()}

    with_gradients(lm, spoil)


def delay_gradient(lm: Any) -> None:
    last: list[dict[str, Any]] = []

    def spoil(gradients: dict[str, Any]) -> dict[str, Any]:
        last.append(gradients)
        return last.pop(0) if len(last) > 1 else gradients

    with_gradients(lm, spoil)


# ---------------------------------------------------------------- accumulation


def accumulate(lm: Any, add: Callable[[Any, Any, int, int], Any]) -> None:
    """Another way of adding up the micro-batches: add(total so far, this part's gradient, its number, how many)."""

    def wrong(params: Any, windows: Any, targets: Any, mask: Any, parts: int) -> Any:
        losses, accuracies = [], []
        total = {name: np.zeros_like(array) for name, array in params.items()}
        for number, part in enumerate(np.split(np.arange(len(targets)), parts)):
            part_mask = None if mask is None else mask[part]
            cache = lm.forward(params, windows[part], part_mask)
            loss, accuracy = lm.score(cache[2], targets[part])
            losses.append(loss)
            accuracies.append(accuracy)
            found = lm.backward(params, windows[part], targets[part], part_mask, cache)
            total = {name: add(total[name], gradient, number, parts) for name, gradient in found.items()}
        return sum(losses) / parts, sum(accuracies) / parts, total

    lm.batch_gradient = wrong


def lose_micro_batch(lm: Any) -> None:
    accumulate(lm, lambda total, part, number, parts: total + part / np.float32(parts) * (number < parts - 1))


def keep_last_micro_batch(lm: Any) -> None:
    accumulate(lm, lambda _total, part, _number, parts: part / np.float32(parts))


def forget_to_normalise(lm: Any) -> None:
    accumulate(lm, lambda total, part, _number, _parts: total + part)


def accumulate_in_fp8(lm: Any) -> None:
    """Three bits of mantissa, nothing below 2 ** -9 (e4m3)."""

    def add(total: Any, part: Any, _number: int, parts: int) -> Any:
        rough = round_bits(total + part / np.float32(parts), 4)
        return np.where(np.abs(rough) < 2.0**-9, np.float32(0), rough)

    accumulate(lm, add)


def accumulate_in_fp16_unscaled(lm: Any) -> None:
    """Summed in fp16 after a division by the loss scale of 2 ** 14, before it is multiplied back: small ones vanish."""
    unscale = np.float32(2.0**-14)

    def add(total: Any, part: Any, _number: int, parts: int) -> Any:
        rough = (total * unscale + part / np.float32(parts) * unscale).astype(np.float16)
        return rough.astype(np.float32) / unscale

    accumulate(lm, add)


# ---------------------------------------------------------------- data


def repeat_data(lm: Any) -> None:
    with_data_step(lm, lambda step: step % 10)


def restart_data(lm: Any) -> None:
    """A resumed run reads its data from the beginning again."""
    seen: list[int] = []

    def spoil(step: int) -> int:
        seen.append(step)
        return step - seen[0] + 1

    with_data_step(lm, spoil)


def add_label_noise(lm: Any) -> None:
    """One target in fifty is another character of the batch."""

    def spoil(windows: Any, targets: Any, rng: Any) -> tuple[Any, Any]:
        wrong = rng.random(len(targets)) < 0.02
        return windows, np.where(wrong, np.roll(targets, 1), targets)

    with_data(lm, spoil)


def blank_context(lm: Any) -> None:
    """The oldest fifth of every window is padding."""

    def spoil(windows: Any, targets: Any, _rng: Any) -> tuple[Any, Any]:
        blank = windows.copy()
        blank[:, : max(1, windows.shape[1] // 5)] = 0
        return blank, targets

    with_data(lm, spoil)


# ---------------------------------------------------------------- dropout


def change_dropout(factor: float) -> Plant:
    def plant(lm: Any) -> None:
        right = lm.dropout_mask
        lm.dropout_mask = lambda options, step: right(replace(options, dropout=options.dropout * factor), step)

    return plant


def drop_out_at_evaluation(lm: Any) -> None:
    def wrong(state: Any, text: Any, options: Any) -> Any:
        rng = lm.generator(0, 0, lm.PURPOSE_EVAL)
        windows, targets = lm.sample_windows(text.held_out, lm.EVAL_WINDOWS, options.context, rng)
        mask = lm.dropout_mask(replace(options, batch_size=lm.EVAL_WINDOWS), state.step)
        return lm.score(lm.forward(state.params, windows, mask)[2], targets)

    lm.evaluate = wrong


# ---------------------------------------------------------------- all of them


FAULTS: dict[str, Plant] = {
    "lr-up-10": scale_learning_rate(1.1),
    "lr-down-10": scale_learning_rate(0.9),
    "lr-up-2": scale_learning_rate(1.02),
    "hidden-lr-up-20": hide_learning_rate(1.2),
    "hidden-lr-down-20": hide_learning_rate(0.8),
    "schedule-off-by-one": shift_schedule,
    "warmup-lost": lose_warmup,
    "late-divergence": diverge_late,
    "decay-lost": scale_decay(0.0),
    "decay-doubled": scale_decay(2.0),
    "beta1-0.5": change_optimiser(beta1=0.5),
    "beta2-0.9": change_optimiser(beta2=0.9),
    "eps-1e-3": change_optimiser(eps=1e-3),
    "bias-correction-lost": lose_bias_correction,
    "optimiser-state-lost": lose_moments,
    "bf16-weights": store_weights_in_bf16,
    "no-gradient-embedding": drop_gradient("embedding"),
    "no-gradient-hidden-weight": drop_gradient("hidden_weight"),
    "no-gradient-hidden-bias": drop_gradient("hidden_bias"),
    "no-gradient-output-weight": drop_gradient("output_weight"),
    "no-gradient-output-bias": drop_gradient("output_bias"),
    "half-gradient-hidden-weight": halve_gradient,
    "clipped-per-layer": clip_tightly,
    "stale-gradient": delay_gradient,
    "lost-micro-batch": lose_micro_batch,
    "last-micro-batch-only": keep_last_micro_batch,
    "unnormalised-accumulation": forget_to_normalise,
    "fp8-accumulation": accumulate_in_fp8,
    "fp16-accumulation-unscaled": accumulate_in_fp16_unscaled,
    "repeated-data": repeat_data,
    "data-restarted": restart_data,
    "label-noise-2": add_label_noise,
    "blank-context": blank_context,
    "dropout-lost": change_dropout(0.0),
    "dropout-doubled": change_dropout(2.0),
    "dropout-at-evaluation": drop_out_at_evaluation,
}


def add_jitter(lm: Any, size: float, seed: int | None = None) -> None:
    """Without a seed every run differs, as on hardware."""
    rng = np.random.default_rng(seed)

    def spoil(gradients: dict[str, Any]) -> dict[str, Any]:
        return {
            name: gradient * (1.0 + size * rng.standard_normal(gradient.shape, dtype=np.float32))
            for name, gradient in gradients.items()
        }

    with_gradients(lm, spoil)


def plant(lm: Any, fault: str | None, jitter: str | None) -> None:
    """What the two variables of the environment ask for; what cannot be done is charlm's own error."""
    if fault:
        if fault not in FAULTS:
            raise lm.UserError(f"CHARLM_FAULT={fault} is unknown; known: {', '.join(sorted(FAULTS))}")
        FAULTS[fault](lm)
    if jitter:
        add_jitter(lm, parse_size(lm, jitter))


def parse_size(lm: Any, text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0.0 <= size < 1.0:
        raise lm.UserError(f"CHARLM_JITTER={text} must be a relative size, at least 0 and below 1")
    return size
