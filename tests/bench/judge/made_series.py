"""Histories with steps that are known, and noise that remembers."""

import math

import numpy as np


def build_series(steps, n=200, noise=0.02, seed=0, level=100.0):
    """`steps`: index -> relative step."""
    rng = np.random.default_rng(seed)
    logs = np.full(n, math.log(level))
    for index, size in steps.items():
        logs[index:] += math.log1p(size)
    return np.exp(logs + noise * rng.standard_normal(n)).tolist()


def build_ar(coefficient, n, seed):
    rng = np.random.default_rng(seed)
    noise = [rng.standard_normal()]
    for innovation in rng.standard_normal(n - 1) * math.sqrt(1 - coefficient**2):
        noise.append(coefficient * noise[-1] + innovation)
    return np.array(noise)


def build_drifting(seed, n=1000, size=1.0):
    """Noise on a level that drifts about slowly: what machines do."""
    return np.random.default_rng(seed).standard_normal(n) + size * build_ar(0.95, n, seed + 1)
