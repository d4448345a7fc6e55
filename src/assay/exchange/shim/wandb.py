"""`import wandb` in every process below `python -m assay.wandb`, which names this folder in PYTHONPATH."""  # noqa: INP001 not a package of ours

from assay.wandb import take_name

take_name()
