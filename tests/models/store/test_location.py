"""Where the store lies and what it may hold: from the surroundings, else from the house."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.models.store.location import NO_LIMIT, choose_limit, choose_store_folder, parse_limit


def test_the_place(tmp_path: Path) -> None:
    home = {"HOME": "/home/u"}
    assert choose_store_folder(home, "/start") == "/home/u/.cache/assay/artifacts"
    assert choose_store_folder({**home, "XDG_CACHE_HOME": "/x"}, "/start") == "/x/assay/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE_DIR": "/y"}, "/start") == "/y/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE": "/big/cache"}, "/start") == "/big/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": "cache"}, "/start") == "/start/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": ""}, "/start") == "/home/u/.cache/assay/artifacts"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GB", 20 * 10**9),
        ("20 GiB", 20 * 2**30),
        ("1.5g", 1_500_000_000),
        ("512MiB", 512 * 2**20),
        ("7", 7),
        ("7 B", 7),
        ("1kB", 1000),
        ("2TiB", 2**41),
        ("none", NO_LIMIT),
        ("99999999999TB", NO_LIMIT),
    ],
)
def test_a_limit(text: str, size: int) -> None:
    assert parse_limit(text) == size
    assert choose_limit({"ASSAY_CACHE_LIMIT": text}) == size


@pytest.mark.parametrize("text", ["lots", "-1GB", "10 GBB", "GB", "1iB", "1,5GB", "ten"])
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="this is no size") as caught:
        parse_limit(text)
    assert "20GB" in str(caught.value)
