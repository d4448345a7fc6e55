"""Framework and peaks: asked of what is loaded, never imported, never fatal."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from assay.bench.framework import _FRAMEWORKS, _dotted, find_framework, find_packages


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _FRAMEWORKS:
        monkeypatch.delitem(sys.modules, name, raising=False)


def fake(name: str, number: str, /, **attributes: object) -> ModuleType:
    module = ModuleType(name)
    module.__version__ = number  # type: ignore[attr-defined]
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


def test_torch_with_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_framework() is None, "nothing is loaded"
    version = SimpleNamespace(git_version="abc", cuda="12.8", hip=None)
    cudnn = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002))
    monkeypatch.setitem(sys.modules, "torch", fake("torch", "2.13.0", version=version, backends=cudnn))
    expected = {"name": "torch", "version": "2.13.0", "build_version": "abc", "cuda": "12.8", "cudnn": "9.10.2"}
    assert find_framework() == expected
    monkeypatch.setitem(sys.modules, "torch", fake("torch", "2.13.0"))
    assert find_framework() == {"name": "torch", "version": "2.13.0"}, "one that answers with an error"
    assert [_dotted(number) for number in (91002, 8902, None)] == ["9.10.2", "8.9.2", None]


def test_tensorflow_before_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(get_build_info=lambda: {"cuda_version": "12.5", "cudnn_version": "9"})
    monkeypatch.setitem(sys.modules, "numpy", fake("numpy", "2.0"))
    monkeypatch.setitem(sys.modules, "tensorflow", fake("tensorflow", "2.21.0", sysconfig=built, __git_version__="v2"))
    found = find_framework()
    assert found is not None
    assert (found["name"], found["cuda"], found["build_version"]) == ("tensorflow", "12.5", "v2")
    assert find_packages().items() >= {"numpy": "2.0", "tensorflow": "2.21.0"}.items()  # and what other tests loaded


PEAKS = """
import json
from assay.bench.framework import load_peaks
held = bytearray(50_000_000)
held[::4096] = b"x" * len(held[::4096])
print(json.dumps(load_peaks()))
"""


def test_peaks_are_there_at_once() -> None:
    """In a process of its own: children of the tests before this one count as well."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)
    assert 50_000_000 < peaks["max_rss"] < 150_000_000
    assert peaks["max_vms"] >= peaks["max_rss"]
    assert peaks["cpu_s"] > 0
