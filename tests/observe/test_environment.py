import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest

from assay.observe import environment
from assay.observe.devices import ENV_FAKE, Devices
from assay.values.environment import Gpu


class Repository:
    def __init__(self, path):
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments):
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.path, env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, **files):
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "it's a\nrepo")


def test_a_clean_repository(repository):
    commit = repository.commit(a="1\n")
    state = environment.load_git(repository.path)
    assert (state.commit, state.branch, state.dirty, state.diff, state.untracked) == (commit, "main", False, "", ())


def test_changes_staged_or_not_are_in_the_diff_and_new_files_are_named(repository):
    repository.commit(a="1\n", b="1\n")
    (repository.path / "a").write_text("changed\n")
    (repository.path / "b").write_text("staged\n")
    repository.git("add", "b")
    (repository.path / "new file.py").write_text("x")
    state = environment.load_git(repository.path)
    assert state.dirty
    assert "+changed" in state.diff
    assert "+staged" in state.diff
    assert state.untracked == ("new file.py",)


def test_a_detached_head_and_new_files_alone_do_not_make_it_dirty(repository):
    commit = repository.commit(a="1\n")
    repository.git("checkout", "-q", "--detach")
    (repository.path / "note").write_text("x")
    state = environment.load_git(repository.path)
    assert (state.commit, state.branch, state.dirty, state.diff, state.untracked) == (
        commit,
        None,
        False,
        "",
        ("note",),
    )


def test_the_diff_can_be_applied_to_the_commit(repository, tmp_path):
    repository.commit(a="1\n2\n3\n")
    (repository.path / "a").write_text("1\ntwo\n3\n")
    diff = tmp_path / "diff"
    diff.write_text(environment.load_git(repository.path).diff)
    repository.git("checkout", "-q", "a")
    repository.git("apply", str(diff))
    assert (repository.path / "a").read_text() == "1\ntwo\n3\n"


def test_a_renamed_file_and_a_subfolder(repository):
    repository.commit(a="some text that is long enough to be recognised\n" * 5)
    repository.git("mv", "a", "b")
    (repository.path / "sub").mkdir()
    state = environment.load_git(repository.path / "sub")
    assert state.dirty
    assert "rename from a" in state.diff
    assert state.untracked == ()


def test_a_diff_that_is_too_large_is_cut_off_and_says_so(repository, monkeypatch):
    monkeypatch.setattr(environment, "DIFF_LIMIT_BYTES", 1000)
    repository.commit(a="1\n")
    (repository.path / "a").write_text("line\n" * 100_000)
    diff = environment.load_git(repository.path).diff
    assert diff.endswith("[cut off after 1000 bytes]\n")
    assert len(diff) < 1100


def test_undecodable_content_and_names_survive_json(repository):
    repository.commit(a="1\n")
    (repository.path / "a").write_bytes(b"caf\xe9\n")
    with open(os.fsencode(repository.path) + b"/n\xe9", "wb"):
        pass
    state = environment.load_git(repository.path)
    assert json.loads(json.dumps(dataclasses.asdict(state)).encode("utf-8"))["untracked"] == ["n\\xe9"]


def test_no_commit_no_repository_no_git_no_folder(repository, tmp_path, monkeypatch):
    assert environment.load_git(repository.path) is None
    assert environment.load_git("/proc") is None
    assert environment.load_git(tmp_path / "none") is None
    repository.commit(a="1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.load_git(repository.path) is None


def test_a_git_hooks_variables_do_not_lead_elsewhere(repository, tmp_path, monkeypatch):
    commit = repository.commit(a="1\n")
    other = Repository(tmp_path / "other")
    other.commit(z="9\n")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert environment.load_git(repository.path).commit == commit


def test_looking_does_not_lock_the_repository(repository):
    repository.commit(a="1\n")
    (repository.path / ".git" / "index.lock").write_text("")
    assert environment.load_git(repository.path) is not None


def test_status_of_a_merge_conflict_is_dirty():
    text = "# branch.oid abc\0# branch.head main\0u UU N... 100644 100644 100644 100644 1 2 3 file\0"
    assert environment.parse_git_status(text).dirty


def test_many_new_files_are_not_all_named():
    text = "# branch.oid abc\0# branch.head main\0" + "".join(f"? f{n}\0" for n in range(1000))
    assert len(environment.parse_git_status(text).untracked) == environment.UNTRACKED_LIMIT


def make_packages(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).mkdir()
    return str(folder)


def test_versions_come_from_folder_names_and_the_first_on_the_path_wins(tmp_path):
    first = make_packages(tmp_path / "1", "torch-2.4.0+cu121.dist-info", "Unknown-1.dist-info", "torch", "x.dist-info")
    second = make_packages(
        tmp_path / "2", "torch-1.0.dist-info", "scikit_learn-1.5.dist-info", "onnx-1.16-py3.11.egg-info"
    )
    found = environment.load_packages([first, "/none", second])
    assert found == {"onnx": "1.16", "scikit-learn": "1.5", "torch": "2.4.0+cu121"}


def test_our_own_packages_are_found_as_the_metadata_says():
    from importlib import metadata

    found = environment.load_packages(sys.path)
    names = ("numpy", "pandas", "tensorboardx")
    installed = [name for name in names if list(metadata.distributions(name=name))]
    assert installed
    assert {name: found.get(name) for name in installed} == {name: metadata.version(name) for name in installed}


def make_python(prefix, version="3.10"):
    """A virtual environment's folders, with a program that must never be started."""
    make_packages(prefix / "lib" / f"python{version}" / "site-packages", "torch-9.9.dist-info")
    (prefix / "bin").mkdir()
    program = prefix / "bin" / "python"
    program.write_text("#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    return program


def test_the_python_of_the_job_is_looked_up_without_starting_it(tmp_path, monkeypatch):
    program = make_python(tmp_path / "venv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    found = environment.load_environment(tmp_path, ["assay"], Devices({ENV_FAKE: "/none"}))
    assert (found.job_python, found.job_packages) == (str(program), {"torch": "9.9"})
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("path", [os.path.dirname(sys.executable), "/none"], ids=["our own", "none"])
def test_no_other_python_on_the_path(tmp_path, monkeypatch, path):
    monkeypatch.setenv("PATH", path)
    found = environment.load_environment(tmp_path, [], Devices({ENV_FAKE: "/none"}))
    assert (found.job_python, found.job_packages, found.git) == (None, {}, None)


def test_an_environment_is_complete_and_goes_into_json(repository, tmp_path):
    commit = repository.commit(a="1\n")
    fake = tmp_path / "nvml.json"
    fake.write_text('{"driver": "1.2", "gpus": [{"name": "F"}]}')
    found = environment.load_environment(repository.path, ["assay", "run", "x.yml"], Devices({ENV_FAKE: str(fake)}))
    assert found.git.commit == commit
    assert found.command_line == ("assay", "run", "x.yml")
    assert ([gpu.name for gpu in found.gpus], found.driver) == (["F"], "1.2")
    assert found.host == os.uname().nodename
    assert found.python == "{}.{}.{}".format(*sys.version_info[:3])
    assert found.cpu_count == os.cpu_count()
    assert found.memory_bytes > 1 << 20
    assert found.cpu
    assert found.user
    assert "Linux" in found.os
    json.dumps(dataclasses.asdict(found)).encode("utf-8")


def test_the_cpu_is_the_first_model_name():
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    assert environment.load_cpu() == models[0] if models else environment.load_cpu()


def test_the_git_command_is_called_twice_at_most(repository, tmp_path, monkeypatch):
    repository.commit(a="1\n")
    (repository.path / "a").write_text("2\n")
    calls = tmp_path / "calls"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho x >> "{calls}"\nexec "{shutil.which("git")}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    assert environment.load_git(repository.path).dirty
    assert len(calls.read_text().split()) == 2


SAME = {"cpu": "c", "cpu_count": 8, "gpus": (Gpu(0, "H", "u1", 5),), "driver": "1", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"gpus": (Gpu(0, "H", "u2", 5),)}, True),
        ({"python": "3.11.9"}, True),
        ({"cpu": "d"}, False),
        ({"cpu_count": 4}, False),
        ({"gpus": ()}, False),
        ({"gpus": (Gpu(0, "A", "u1", 5),)}, False),
        ({"driver": "2"}, False),
        ({"driver": None}, False),
        ({"python": "3.12.7"}, False),
        ({"packages": {"torch": "3"}}, False),
        ({"packages": {}}, False),
    ],
)
def test_what_changes_a_fingerprint(change, is_same):
    same = {**SAME, "packages": {"torch": "2"}}
    assert (environment.build_fingerprint(**same | change) == environment.build_fingerprint(**same)) is is_same


def test_a_git_that_refuses_is_complained_of(repository, tmp_path):
    """A damaged index, and a repository of another owner, are not the same as no repository."""
    said = []
    assert environment.load_git(tmp_path, said.append) is None
    assert said == []
    (repository.path / ".git" / "index").write_bytes(b"damaged")
    assert environment.load_git(repository.path, said.append) is None
    (text,) = said
    assert "git cannot read" in text
    assert "index file" in text
