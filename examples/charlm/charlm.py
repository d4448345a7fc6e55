#!/usr/bin/env python3
"""A character-level language model in plain numpy: the program that Assay's demo sweeps and its tests train.

    python charlm.py --lr 0.01 --steps 300 --checkpoint-dir ckpt --save-interval 100
    python charlm.py --lr 0.01 --steps 300 --checkpoint-dir ckpt --resume ckpt/step_000100.npz

A window of characters is embedded, one hidden layer reads it, and the next character is predicted; the backward pass
and AdamW are written out below. Nothing here knows Assay: it takes flags and prints lines, like most training programs.

Everything random is drawn from (seed, step, purpose) and nothing is carried from step to step but the arrays of the
checkpoint. So a resumed run repeats the uninterrupted one bit for bit, and every number is printed with all its digits.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread: the matrices are small, the runs of a sweep share the machine, and sums keep their order.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np  # after the thread settings, which numpy reads once
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

PURPOSE_MODEL, PURPOSE_DATA, PURPOSE_DROPOUT, PURPOSE_EVAL = range(4)
EVAL_WINDOWS = 1024
TRAIN_SHARE = 0.9


class UserError(Exception):
    """Something the caller can mend: one line, exit code 2."""


@dataclass(frozen=True)
class Options:
    seed: int
    data: Path
    steps: int
    start_step: int | None
    lr: float
    warmup: int
    batch_size: int
    micro_batches: int
    context: int
    embedding: int
    hidden: int
    dropout: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    checkpoint_dir: Path | None
    save_interval: int
    log_interval: int
    resume: Path | None


@dataclass
class State:
    """All that a checkpoint holds."""

    step: int
    params: Arrays
    first: Arrays  # Adam's running mean of the gradients
    second: Arrays  # and of their squares


@dataclass(frozen=True)
class Text:
    vocabulary: str
    train: Array
    held_out: Array


# ---------------------------------------------------------------- data


def load_text(path: Path, context: int) -> Text:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --data {path}: {error}") from None
    vocabulary = "".join(sorted(set(text)))
    index = {character: number for number, character in enumerate(vocabulary)}
    tokens = np.array([index[character] for character in text], dtype=np.int64)
    cut = int(len(tokens) * TRAIN_SHARE)
    if len(tokens) - cut <= context + 1:
        raise UserError(f"--data {path} has {len(tokens)} characters: too few for --context {context}")
    return Text(vocabulary, tokens[:cut], tokens[cut:])


def generator(seed: int, step: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, step, purpose])


def sample_windows(tokens: Array, count: int, context: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Random windows and the character that follows each."""
    starts = rng.integers(0, len(tokens) - context, size=count)
    return tokens[starts[:, None] + np.arange(context)], tokens[starts + context]


def dropout_mask(options: Options, step: int) -> Array | None:
    if options.dropout == 0.0:
        return None
    draws = generator(options.seed, step, PURPOSE_DROPOUT).random((options.batch_size, options.hidden))
    return ((draws >= options.dropout) / (1.0 - options.dropout)).astype(np.float32)


# ---------------------------------------------------------------- model


def build_params(options: Options, vocabulary_size: int) -> Arrays:
    rng = generator(options.seed, 0, PURPOSE_MODEL)
    width = options.context * options.embedding

    def normal(rows: int, columns: int, scale: float) -> Array:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    return {
        "embedding": normal(vocabulary_size, options.embedding, 0.3),
        "hidden_weight": normal(width, options.hidden, width**-0.5),
        "hidden_bias": np.zeros(options.hidden, np.float32),
        "output_weight": normal(options.hidden, vocabulary_size, options.hidden**-0.5),
        "output_bias": np.zeros(vocabulary_size, np.float32),
    }


def forward(params: Arrays, windows: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """The embedded windows, the hidden layer, and the log-probabilities of the next character."""
    embedded = params["embedding"][windows].reshape(len(windows), -1)
    hidden = np.tanh(embedded @ params["hidden_weight"] + params["hidden_bias"])
    if mask is not None:
        hidden = hidden * mask
    logits = hidden @ params["output_weight"] + params["output_bias"]
    logits -= logits.max(axis=1, keepdims=True)
    return embedded, hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def score(log_probabilities: Array, targets: Array) -> tuple[float, float]:
    """Mean loss and accuracy, summed in double precision."""
    picked = log_probabilities[np.arange(len(targets)), targets]
    hits = log_probabilities.argmax(axis=1) == targets
    return float(-picked.mean(dtype=np.float64)), float(hits.mean())


def backward(
    params: Arrays, windows: Array, targets: Array, mask: Array | None, cache: tuple[Array, Array, Array]
) -> Arrays:
    """The gradient of the mean loss, layer by layer from the end."""
    embedded, hidden, log_probabilities = cache
    d_logits = np.exp(log_probabilities)
    d_logits[np.arange(len(targets)), targets] -= 1.0
    d_logits /= len(targets)
    d_hidden = d_logits @ params["output_weight"].T
    if mask is None:
        d_sum = d_hidden * (1.0 - hidden * hidden)
    else:  # hidden = mask * tanh; where the mask is 0 no gradient passes, so tanh need not be known there
        tanh = np.divide(hidden, mask, out=np.zeros_like(hidden), where=mask > 0)
        d_sum = d_hidden * mask * (1.0 - tanh * tanh)
    d_embedded = (d_sum @ params["hidden_weight"].T).reshape(windows.size, -1)
    one_hot = np.zeros((windows.size, len(params["embedding"])), np.float32)
    one_hot[np.arange(windows.size), windows.ravel()] = 1.0
    return {
        "embedding": one_hot.T @ d_embedded,
        "hidden_weight": embedded.T @ d_sum,
        "hidden_bias": d_sum.sum(axis=0),
        "output_weight": hidden.T @ d_logits,
        "output_bias": d_logits.sum(axis=0),
    }


def batch_gradient(
    params: Arrays, windows: Array, targets: Array, mask: Array | None, micro_batches: int
) -> tuple[float, float, Arrays]:
    """Loss, accuracy and gradient of a batch taken in equal parts: the means of the parts' means."""
    losses, accuracies = [], []
    total: Arrays = {name: np.zeros_like(array) for name, array in params.items()}
    for part in np.split(np.arange(len(targets)), micro_batches):
        part_mask = None if mask is None else mask[part]
        cache = forward(params, windows[part], part_mask)
        loss, accuracy = score(cache[2], targets[part])
        losses.append(loss)
        accuracies.append(accuracy)
        for name, gradient in backward(params, windows[part], targets[part], part_mask, cache).items():
            total[name] += gradient / np.float32(micro_batches)
    return sum(losses) / micro_batches, sum(accuracies) / micro_batches, total


# ---------------------------------------------------------------- optimiser


def learning_rate(options: Options, step: int) -> float:
    """A linear warm-up, then constant: it must not depend on --steps, or a shorter rerun would differ."""
    return options.lr * min(1.0, step / options.warmup) if options.warmup else options.lr


def gradient_norm(gradients: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values())))


def adam_update(state: State, gradients: Mapping[str, Array], lr: float, options: Options) -> None:
    """AdamW in place; `state.step` already counts this update. Biases are not decayed."""
    correction1 = 1.0 - options.beta1**state.step
    correction2 = 1.0 - options.beta2**state.step
    for name, gradient in gradients.items():
        parameter, first, second = state.params[name], state.first[name], state.second[name]
        first += (1.0 - options.beta1) * (gradient - first)
        second += (1.0 - options.beta2) * (gradient * gradient - second)
        if parameter.ndim > 1:
            parameter *= 1.0 - lr * options.weight_decay
        parameter -= lr * (first / correction1) / (np.sqrt(second / correction2) + options.eps)


# ---------------------------------------------------------------- checkpoints


def build_state(options: Options, text: Text) -> State:
    params = build_params(options, len(text.vocabulary))
    zeros = {name: np.zeros_like(array) for name, array in params.items()}
    return State(options.start_step or 0, params, zeros, {name: array.copy() for name, array in zeros.items()})


def write_checkpoint(state: State, text: Text, folder: Path) -> Path:
    """Under a temporary name first: a killed run leaves no half checkpoint behind a good name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{state.step:06d}.npz"
    arrays: Arrays = {"step": np.array(state.step), "vocabulary": np.array(text.vocabulary)}
    for part in ("params", "first", "second"):
        arrays |= {f"{part}.{name}": array for name, array in getattr(state, part).items()}
    temporary = folder / f".{path.name}.{os.getpid()}"
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def load_checkpoint(path: Path, options: Options, text: Text) -> State:
    state = build_state(options, text)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from None
    if str(arrays.get("vocabulary")) != text.vocabulary:
        raise UserError(f"the checkpoint {path} was trained on another text than --data {options.data}")
    for part in ("params", "first", "second"):
        for name, array in getattr(state, part).items():
            stored = arrays.get(f"{part}.{name}")
            if stored is None or stored.shape != array.shape:
                found = "nothing" if stored is None else stored.shape
                raise UserError(
                    f"the checkpoint {path} does not fit: {name} is {found}, the flags ask for {array.shape}"
                )
            array[...] = stored
    state.step = int(arrays["step"])
    if options.start_step not in (None, state.step):
        raise UserError(f"--start-step {options.start_step}, but {path} was saved at step {state.step}")
    return state


# ---------------------------------------------------------------- the loop


def train_step(state: State, text: Text, options: Options) -> str:
    """One update; returns its log line."""
    state.step += 1
    rng = generator(options.seed, state.step, PURPOSE_DATA)
    windows, targets = sample_windows(text.train, options.batch_size, options.context, rng)
    mask = dropout_mask(options, state.step)
    loss, accuracy, gradients = batch_gradient(state.params, windows, targets, mask, options.micro_batches)
    lr = learning_rate(options, state.step)
    adam_update(state, gradients, lr, options)
    return f"step {state.step} loss {loss!r} acc {accuracy!r} grad_norm {gradient_norm(gradients)!r} lr {lr!r}"


def evaluate(state: State, text: Text, options: Options) -> tuple[float, float]:
    """Always the same held-out windows, whatever the seed: runs can be compared."""
    windows, targets = sample_windows(text.held_out, EVAL_WINDOWS, options.context, generator(0, 0, PURPOSE_EVAL))
    return score(forward(state.params, windows, None)[2], targets)


def train(options: Options) -> None:
    text = load_text(options.data, options.context)
    state = load_checkpoint(options.resume, options, text) if options.resume else build_state(options, text)
    if options.resume:
        print(f"resumed {options.resume} at step {state.step}", flush=True)
    while state.step < options.steps:
        line = train_step(state, text, options)
        if state.step % options.log_interval == 0:
            print(line, flush=True)
        if options.checkpoint_dir and state.step % options.save_interval == 0:
            path = write_checkpoint(state, text, options.checkpoint_dir)
            print(f"saved checkpoint {path} at step {state.step}", flush=True)
    loss, accuracy = evaluate(state, text, options)
    print(f"eval_loss {loss!r} eval_acc {accuracy!r}", flush=True)


# ---------------------------------------------------------------- the command line


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train a little character-level language model.", allow_abbrev=False)
    add = parser.add_argument
    add("--seed", type=natural, default=0)
    add("--data", type=Path, default=Path(__file__).with_name("corpus.txt"), metavar="FILE", help="the text to learn")
    add("--steps", type=natural, default=300, help="train until this step (counted from the very first)")
    add("--start-step", type=natural, help="count from here; with --resume it must be the checkpoint's step")
    add("--lr", type=positive, default=0.01, help="learning rate after the warm-up")
    add("--warmup", type=natural, default=20, help="steps of linear warm-up")
    add("--batch-size", type=count, default=128)
    add("--micro-batches", type=count, default=1, help="parts of a batch whose gradients are accumulated")
    add("--context", type=count, default=20, help="characters in a window")
    add("--embedding", type=count, default=24, help="numbers per character")
    add("--hidden", type=count, default=96, help="units of the hidden layer")
    add("--dropout", type=fraction, default=0.0)
    add("--weight-decay", type=not_negative, default=0.01)
    add("--beta1", type=fraction, default=0.9)
    add("--beta2", type=fraction, default=0.999)
    add("--eps", type=positive, default=1e-8)
    add("--checkpoint-dir", type=Path, metavar="DIR", help="save here; without it nothing is saved")
    add("--save-interval", type=count, default=100, help="steps between checkpoints")
    add("--log-interval", type=count, default=10, help="steps between log lines")
    add("--resume", type=Path, metavar="CHECKPOINT", help="continue from this file")
    return parser


def natural(text: str) -> int:
    return int(checked(int(text), 0, "at least 0"))


def count(text: str) -> int:
    return int(checked(int(text), 1, "at least 1"))


def positive(text: str) -> float:
    return checked(float(text), sys.float_info.min, "above 0")


def not_negative(text: str) -> float:
    return checked(float(text), 0.0, "at least 0")


def fraction(text: str) -> float:
    return checked(float(text), 0.0, "at least 0 and below 1", below=1.0)


def checked(value: float, low: float, words: str, below: float = float("inf")) -> float:
    if not low <= value < below:
        raise argparse.ArgumentTypeError(f"{value} must be {words}")
    return value


def plant_faults(environment: Mapping[str, str]) -> None:
    """CHARLM_FAULT and CHARLM_JITTER spoil the training on purpose, to try out convergence checks: see faults.py."""
    fault, jitter = environment.get("CHARLM_FAULT"), environment.get("CHARLM_JITTER")
    if not fault and not jitter:
        return
    spec = importlib.util.spec_from_file_location("charlm_faults", Path(__file__).with_name("faults.py"))
    if spec is None or spec.loader is None:
        raise UserError("CHARLM_FAULT and CHARLM_JITTER need faults.py beside charlm.py")
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    faults.plant(sys.modules[__name__], fault, jitter)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.batch_size % options.micro_batches:
        parser.error(f"--batch-size {options.batch_size} is not a multiple of --micro-batches {options.micro_batches}")
    try:
        plant_faults(os.environ)
        train(options)
    except (UserError, OSError) as error:
        print(f"charlm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
