"""A key for Google's services, for the time of one call."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from assay.errors import InfrastructureError

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


@contextmanager
def google_key(url: str | None) -> Iterator[None]:
    """Fetch the key into a folder that only we may read, name it to us and to our children, and remove it at the end.

    It is never written into a workspace, and gcloud's own accounts are left as they are.
    """
    if url is None:
        yield
        return
    from assay.stage.download import fetch

    folder = tempfile.mkdtemp(prefix="assay-key-")  # 0700
    before = os.environ.get(VARIABLE)
    try:
        found = fetch(url, os.path.join(folder, "key.json"), decompress=False)
        _check(found.path, url)
        os.chmod(found.path, 0o600)
        os.environ[VARIABLE] = found.path
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        shutil.rmtree(folder, ignore_errors=True)


def _check(path: str, url: str) -> None:
    """A page that says 'log in' is no key, and Google's libraries would say so only after the benchmarks."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            is_key = isinstance(json.load(file), dict)
    except (OSError, ValueError):
        is_key = False
    if not is_key:
        raise InfrastructureError(f"--gcloud_key_file_url: what {url.partition('?')[0]} gives is no key file")
