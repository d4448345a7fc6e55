"""Which files of a folder are recordings of one environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.golden.files.sources import choose_sources, list_sources

LOSSES = "1 2.5\n2 2.25\n"


def group(folder: Path, *names: str) -> dict[str, int]:
    """How many recordings each environment has."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LOSSES)
    keys = [each.key for each in list_sources(str(folder))]
    return {key: keys.count(key) for key in keys}


@pytest.mark.parametrize(
    "names",
    [
        ("h100_1.txt", "h100_2.txt", "h100_3.txt"),
        ("0.txt", "1.txt"),
        ("gpus_2_1.txt", "gpus_2_2.txt"),
        ("1/losses.txt", "2/losses.txt"),
        ("run-812.txt", "run-815.txt"),
        ("seed1337_h100.txt", "seed42_h100.txt"),
        ("nightly-20261101.txt", "nightly-20261107.txt"),
        ("2026-11-01/losses.txt", "2026-11-07/losses.txt"),
    ],
)
def test_names_that_differ_in_a_running_number_are_one_environment(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert list(group(tmp_path, *names).values()) == [len(names)]


@pytest.mark.parametrize(
    "names",
    [
        ("dgx_h100.txt", "dgx_a100.txt"),
        ("dgx_a100.txt", "dgx_a10.txt"),
        ("golden_0.8.0.txt", "golden_0.9.0.txt"),
        ("gpus_8.txt", "gpus_16.txt"),
        ("gpus_1.txt", "gpus_2.txt"),
        ("1_gpu/losses.txt", "2_gpu/losses.txt"),
        ("llama-fsdp-1.txt", "llama-fsdp-2.txt"),
        ("qwen3_5_a10g.txt", "qwen3_6_a10g.txt"),
        ("a10g/llama3.txt", "mi350x/llama3.txt"),
        ("cuda_1.txt", "rocm_2.txt"),
    ],
)
def test_anything_else_is_another_environment(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = group(tmp_path, *names)
    assert list(found.values()) == [1, 1]
    with pytest.raises(UsageError, match="2 environments, which are never pooled") as refused:
        choose_sources(list_sources(str(tmp_path)), "goldens")
    assert all(f"--environment {key}" in str(refused.value).replace("'", "") for key in found)
