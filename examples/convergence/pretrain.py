"""A stand-in for a large pre-training: two little tasks, learned together, logged to stderr. Standard library only.

It has what the convergence harness asks of a program: flags for where checkpoints go and how often they are saved, for
the checkpoint and the step to start from, and for how far to train; a log line for every saved checkpoint; and losses
on the line that names the step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys

SIZES = {"base": 8, "large": 16}
TASKS = ("mlm", "nsp")
BATCH = 16


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build_weights(size: int, seed: int) -> dict[str, list[float]]:
    rng = random.Random(f"weights {seed}")
    return {task: [rng.gauss(0, 0.1) for _ in range(size)] for task in TASKS}


def train_step(task: str, weights: list[float], step: int, options: argparse.Namespace) -> float:
    """One step of logistic regression; its data depend on seed, task and step alone. Returns the loss before it."""
    truth = random.Random(f"truth {task}")
    target = [truth.gauss(0, 1) for _ in weights]
    rng = random.Random(f"data {options.seed} {task} {step}")
    gradient = [0.0] * len(weights)
    loss = 0.0
    for _ in range(BATCH):
        inputs = [rng.gauss(0, 1) for _ in weights]
        label = 1.0 if sum(map(float.__mul__, inputs, target)) > 0 else 0.0
        score = sum(map(float.__mul__, inputs, weights))
        guess = 1 / (1 + math.exp(-score))
        loss -= math.log(max(1e-12, guess if label else 1 - guess)) / BATCH
        gradient = [g + (guess - label) * x / BATCH for g, x in zip(gradient, inputs, strict=True)]
    weights[:] = [w - options.learning_rate * g for w, g in zip(weights, gradient, strict=True)]
    return loss


def save(weights: dict[str, list[float]], step: int, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"model_{step}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"step": step, "weights": weights}, file)
    os.replace(path + ".part", path)
    log(f"Saving model to: {path}")


def load(path: str, step: int) -> dict[str, list[float]]:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if content["step"] != step:
        sys.exit(f"{path} was saved at step {content['step']}, not {step}")
    return content["weights"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=60, help="train to this step")
    parser.add_argument("--steps-per-log", type=int, default=1)
    parser.add_argument("--checkpoint-dir")
    parser.add_argument("--steps-per-save", type=int, default=20)
    parser.add_argument("--init-checkpoint")
    parser.add_argument("--start-step", type=int, default=0)
    parser.add_argument("--no-progress", action="store_true")
    options = parser.parse_args()

    weights = (
        load(options.init_checkpoint, options.start_step)
        if options.init_checkpoint
        else build_weights(SIZES[options.size], options.seed)
    )
    if not options.no_progress:
        print("this goes to stdout, which nobody parses: Iteration: 1 Loss (MLM NSP): 99 99", flush=True)
    for step in range(options.start_step + 1, options.steps + 1):
        losses = [train_step(task, weights[task], step, options) for task in TASKS]
        if step % options.steps_per_log == 0:
            loss = f"Loss (MLM NSP): {losses[0]:.6f} {losses[1]:.6f}"
            log(f"Iteration: {step:6d}  {loss}  Learning rate: {options.learning_rate:.3e}")
        if options.checkpoint_dir and step % options.steps_per_save == 0:
            save(weights, step, options.checkpoint_dir)


if __name__ == "__main__":
    main()
