"""The code of a user's own back end: what belongs to it, and that an edit is another identity."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest
from tests.models.backends.backend_helpers import write_program

from assay.errors import NotFoundError
from assay.models.backends.base import Backend, name_program
from assay.models.backends.registry import (
    BACKENDS,
    OwnCode,
    build_backend,
    find_files,
    find_loaded,
    forget_stale,
    hash_files,
)
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.models.worker_process import WorkerProcess

BACKEND = """
from assay.models.backends.base import Backend, Made
{imports}
class Mine(Backend):
    def identity(self):
        return {{"mine": "1"}}
    def perform(self, job):
        {body}
"""
WRITES = """
        path = job.folder + "/artifact"
        open(path, "w").write(str(FACTOR))
        return Made(path)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a module of a name that no other test uses, so that nothing is left of it in this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(files, base):
    return {os.path.relpath(path, os.path.realpath(base)) for path in files}


def test_the_module_and_all_that_it_imports_next_to_it(shop):
    write(shop, "own_a.py", "import own_b\nimport os, numpy\ndef later():\n    from own_c import thing\n")
    write(shop, "own_b.py", "import own_d as d\n")
    write(shop, "own_c.py", "thing = 1\n")
    write(shop, "own_d.py", "import own_a\n")
    write(shop, "own_stranger.py", "")
    assert names(find_files("own_a"), shop) == {"own_a.py", "own_b.py", "own_c.py", "own_d.py"}


def test_packages_and_relative_imports(shop):
    write(shop, "own_pack/__init__.py", "")
    write(shop, "own_pack/back.py", "from . import near\nfrom .deep.inner import x\nfrom own_pack.far import y\n")
    for name in ("near", "far", "deep/__init__", "deep/inner", "unused"):
        write(shop, f"own_pack/{name}.py", "x = y = 1\n")
    write(shop, "own_pack/deep/inner.py", "from .. import up\nx = 1\n")
    write(shop, "own_pack/up.py", "")
    found = names(find_files("own_pack.back"), shop)
    known = ("__init__", "back", "near", "far", "up", "deep/__init__", "deep/inner")
    assert found == {f"own_pack/{name}.py" for name in known}


def test_of_what_is_installed_only_its_own_package_counts(shop, monkeypatch):
    """An upgrade is a change too."""
    place = shop / "venv" / "site-packages"
    write(place, "own_single.py", "import own_vendor")
    write(place, "own_vendor/__init__.py", "import own_single")
    write(place, "own_vendor/back.py", "from own_vendor import tool\nimport own_single, numpy")
    write(place, "own_vendor/tool.py", "")
    write(shop, "own_user.py", "import own_vendor, own_single")
    monkeypatch.syspath_prepend(str(place))
    assert names(find_files("own_single"), place) == {"own_single.py"}
    package = {"own_vendor/__init__.py", "own_vendor/back.py", "own_vendor/tool.py"}
    assert names(find_files("own_vendor.back"), place) == package
    assert names(find_files("own_user"), shop) == {"own_user.py"}


def test_what_cannot_be_found_is_nothing_here_and_what_is_no_python_is_hashed(shop):
    write(shop, "own_broken/__init__.py", "raise ImportError('no')")
    write(shop, "own_syntax.py", "def (")
    ours = "assay.models.backends.ort"  # which has a version
    assert [find_files(each) for each in ("own_nowhere", "own_nowhere.below", "sys", "own_broken.x", ours)] == [
        set()
    ] * 5
    assert names(find_files("own_syntax"), shop) == {"own_syntax.py"}


def test_what_is_loaded_counts_however_it_came_in_and_no_virtual_environment(shop, monkeypatch):
    place = shop / ".venv" / "lib" / "site-packages"
    write(place, "own_library.py", "")
    monkeypatch.syspath_prepend(str(place))
    imports = "__import__('own' + '_hidden')\nimport own_library"
    write(shop, "own_dynamic.py", BACKEND.format(imports=imports, body="pass"))
    write(shop, "own_hidden.py", "")
    kind = __import__("own_dynamic").Mine
    assert names(find_files("own_dynamic"), shop) == {"own_dynamic.py"}
    assert names(find_loaded("own_dynamic", kind), shop) == {"own_dynamic.py", "own_hidden.py"}


def test_a_base_class_from_another_folder_belongs_to_it(shop, monkeypatch):
    elsewhere = shop / "elsewhere"
    write(elsewhere, "own_base.py", BACKEND.format(imports="", body="pass"))
    monkeypatch.syspath_prepend(str(elsewhere))
    write(shop / "here", "own_derived.py", "from own_base import Mine\nclass Derived(Mine): pass\n")
    monkeypatch.syspath_prepend(str(shop / "here"))
    kind: type[Backend] = __import__("own_derived").Derived
    assert names(find_loaded("own_derived", kind), shop) == {"here/own_derived.py", "elsewhere/own_base.py"}


def test_the_place_makes_no_difference_and_the_content_does(tmp_path, monkeypatch):
    seen = []
    for number, text in enumerate(("x = 1", "x = 1", "x = 2")):
        folder = tmp_path / str(number)
        write(folder, f"own_place{number}.py", text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            (digest,) = hash_files(find_files(f"own_place{number}"), f"own_place{number}").values()
        seen.append(digest)
    assert seen[0] == seen[1] != seen[2]


def test_code_is_what_it_was_before_it_was_loaded_under_the_names_of_its_files(shop):
    path = write(shop, "own_early.py", "import own_other")
    write(shop, "own_other.py", "")
    code = OwnCode("own_early")
    before = code.identify(Backend)
    assert list(before) == ["code own_early.py", "code own_other.py"]
    path.write_text("import own_other\nx = 2")
    assert code.identify(Backend) == before
    assert OwnCode("own_early").identify(Backend) != before


def test_compiled_code_that_is_older_than_its_source_goes(shop):
    """Python takes it for new where the second and the length are the same."""
    path = write(shop, "own_quick.py", "x = 1")
    compiled = Path(py_compile.compile(str(path), doraise=True))
    forget_stale({str(path)})
    assert compiled.exists(), "it is newer than its source"
    stamp = os.stat(path)
    path.write_text("x = 2")
    os.utime(path, ns=(stamp.st_atime_ns, os.stat(compiled).st_mtime_ns))
    forget_stale({str(path)})
    assert not compiled.exists()


def run_own(shop, scratch, **options):
    """What a new worker says it is, and what it makes."""
    target = Target("own", "own_worker:Mine", {"folder": str(shop), **options})
    folder = scratch / "made"
    folder.mkdir(parents=True)
    with WorkerProcess(target, folder=str(scratch / "worker")) as worker:
        outcome = worker.work(Job(Step.COMPILE, "model.onnx", str(folder)))
        identity = dict(worker.identity(Step.COMPILE))
        assert not any(name.startswith("code ") for name in worker.identity()), "people know their own code"
    assert outcome.ending is StepEnding.OK, outcome
    return identity, Path(outcome.path).read_text()


def test_every_edit_is_another_identity_and_runs(shop, tmp_path):
    """As fast as it can be typed: the same length, most likely in the same second."""
    seen = {}
    for number in range(3):
        write(shop, "own_worker.py", BACKEND.format(imports="from own_factor import FACTOR", body=WRITES))
        write(shop, "own_factor.py", f"FACTOR = {number}\n")
        identity, made = run_own(shop, tmp_path / f"w{number}")
        assert made == str(number)
        assert identity["mine"] == "1"
        seen[identity["code own_factor.py"]] = made
    assert sorted(seen.values()) == ["0", "1", "2"]
    again, _ = run_own(shop, tmp_path / "again")
    assert again["code own_factor.py"] in seen


def test_a_worker_that_dies_is_asked_again(shop, tmp_path):
    body = "import os\n        os.abort()"
    path = write(shop, "own_worker.py", BACKEND.format(imports="", body=body))
    with WorkerProcess(
        Target("own", "own_worker:Mine", {"folder": str(shop)}), folder=str(tmp_path / "worker")
    ) as worker:
        before = worker.identity(Step.COMPILE)
        path.write_text(path.read_text() + "# edited meanwhile\n")
        assert worker.identity(Step.COMPILE) == before, "the code that is loaded"
        assert worker.work(Job(Step.COMPILE, "m", str(tmp_path))).ending is StepEnding.CRASH
        assert worker.identity(Step.COMPILE) != before


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Ours, with one tool; and another folder with a tool of the same name."""
    for name in ("ours", "theirs"):
        write_program(tmp_path / name / "tool")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "ours" / "python"))
    return tmp_path


def test_a_tool_has_its_name_where_path_leads_to_it_and_its_path_elsewhere(tools, monkeypatch):
    assert name_program("other") == "other", "what we do not have is looked for on PATH"
    for path in ("", "{}/theirs", "{0}/theirs:{0}/ours", "{0}/ours:{0}/theirs"):
        monkeypatch.setenv("PATH", path.format(tools))
        assert name_program("tool") == ("tool" if "ours:" in path else f"{tools}/ours/tool")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opnvino", "did you mean 'openvino'"),
        ("no_such_module:X", "it cannot be loaded"),
        ("json:NoSuchClass", "it cannot be loaded"),
    ],
)
def test_an_unknown_back_end(name, hint):
    with pytest.raises(NotFoundError, match=rf"no back end named '{name}'\n  {hint}"):
        build_backend(Target("x", name))


def test_every_name_leads_to_a_class():
    options = {"command": {"run": "x"}, "ssh": {"run": "x", "address": "b"}}
    for name in BACKENDS:
        backend = build_backend(Target(name, name, options.get(name, {})))
        assert backend.steps[-1] is Step.RUN
        assert (Step.COMPILE in backend.steps) == (name != "torch")  # whose modules are executed as they are
