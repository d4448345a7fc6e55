"""Curves for the tests of judging: a golden of some replicas, checks of it, and noise of a known size."""

from __future__ import annotations

import numpy as np

from assay.golden.values import Segment, Track

START = 100


def steps(count, every=1):
    return tuple(range(START + every, START + every * count + 1, every))


def track(values, every=1, texts=()):
    values = tuple(float(value) for value in values)
    return Track(steps(len(values), every), values, tuple(texts))


def segment(*replicas, metric="loss", label=""):
    """Build a segment with one metric and label; each replica is a sequence of values or a Track."""
    return Segment(START, "ckpt", {metric: {label: tuple(as_track(replica) for replica in replicas)}})


def run(values, metric="loss", label=""):
    return {metric: {label: as_track(values)}}


def as_track(values):
    return values if isinstance(values, Track) else track(values)


def falling(count=300):
    """A loss that goes from 2 to 0.7."""
    return 2.0 * np.exp(-np.arange(count) / count)


def noisy(rng, copies, *, step=1e-3, whole=0.0, effect=0.0, count=300):
    """Return noisy curves. `step`: sd of each value, `whole`: sd that a run keeps, `effect`: relative, on all."""
    noise = rng.normal(0, step, (copies, count)) + rng.normal(0, whole, (copies, 1))
    return falling(count) * np.exp(noise) * (1 + effect)
