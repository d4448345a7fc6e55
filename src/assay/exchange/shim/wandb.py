"""Makes `import wandb` return assay.wandb in processes below `python -m assay.wandb`, by PYTHONPATH."""  # noqa: INP001 not a package of ours

from assay.wandb import take_name

take_name()
