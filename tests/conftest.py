"""The environment of every test: a home of its own, odd paths, and an examination of what each test leaves running."""

from __future__ import annotations

import _posixsubprocess
import compileall
import contextlib
import functools
import gc
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.services import SERVICES, hide_programs

pytest_plugins = ["tests.command_line", "tests.data_servers", "tests.tracking_databases", "tests.web_client"]

TAG = "ASSAY_ATTEMPT"
GRACE_S = 2.0  # a job that has written its last marker still needs a moment to leave the process table

# Variables of a developer's terminal or farm that would change what the program under test does.
SURROUNDINGS = ("ASSAY_", "XDG_", "SLURM_", "RAY_", "CLICOLOR")
SURROUNDING_NAMES = {"CUDA_VISIBLE_DEVICES", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
SURROUNDING_NAMES |= {"RANK", "LOCAL_RANK", "WORLD_SIZE"}

HOSTILE_NAMES = {
    "spaces": "a  b c",
    "quotes": 'it\'s "quoted" `now` $HOME',
    "unicode": "größe-数据-🧪",
    "newline": "first\nsecond",
    "dash": "-rf",
}


# ---------------------------------------------------------------- signals

# `nohup` and shells that put us into the background make us ignore signals, and all that the tests start would, too.
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# ---------------------------------------------------------------- threads

# One thread each: the workers of the suite fill the cores, where threads that wait for each other waste most of them.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
os.environ.update(dict.fromkeys(THREADS, "1"))  # before numpy is imported


# ---------------------------------------------------------------- byte code

# Where writing bytecode is switched off, each of the thousand processes that the tests start would compile all of `src`.
SOURCE = Path(__file__).parent.parent / "src"
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# ---------------------------------------------------------------- garbage

# Modules and ten thousand collected tests stay to the end: the garbage collector need not examine them repeatedly.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    fork_workers()


# ---------------------------------------------------------------- workers of models


def fork_workers() -> None:
    """Fork workers of back ends, each of which would otherwise import numpy and onnx."""
    from tests.fork_server import start_worker  # this module reads the variables that are set above

    if module := sys.modules.get("assay.models.worker_process"):
        module._Process._spawn = functools.partialmethod(start_worker, module._Process._spawn)


# ---------------------------------------------------------------- generated cases

# The short suite tries the same cases each time; `make test-long` looks for new ones.
BY_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # other programs use the cores too
settings.register_profile("steady", derandomize=True, max_examples=20, **BY_NO_CLOCK)
settings.register_profile("exploring", derandomize=False, max_examples=200, **BY_NO_CLOCK)
settings.load_profile("steady")
# Constants of the loaded modules: with them the cases would depend on the choice of tests, and all of `src` and `tests`
# would be parsed to find them.
EVERY_CONSTANT = providers._get_local_constants
providers._get_local_constants = lambda: providers._local_constants


# ---------------------------------------------------------------- services


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("this suite")
    group.addoption(
        "--require-services", action="store_true", help="a service that is missing is a failure, not a skip"
    )
    group.addoption("--random-order", action="store_true", help="files in random order, and the tests in each of them")
    group.addoption("--order-seed", type=int, help="of the random order; printed at the end of a run")
    group.addoption("--freeze", action="store_true", help="write the files of tests/test_frozen.py again")


class Paths:
    """PATH for tests with the mark `services`, and without the programs that no other test may need.

    The first folder is that of this Python, as in an activated environment: `python3` may be a shell script of a
    version manager, which starts three times as slowly. This folder is never replaced by links: a link to Python starts
    another one, without the packages of the environment.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="assay-path-"))
        own, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
        self.whole = os.pathsep.join([own, path])
        self.plain = os.pathsep.join([own, hide_programs(path, self.folder)])


PATHS = pytest.StashKey[Paths]()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", None) == "exploring":
        providers._get_local_constants = EVERY_CONSTANT
    if config.getoption("random_order") and config.getoption("order_seed") is None:
        given = getattr(config, "workerinput", {}).get("order_seed")
        config.option.order_seed = random.randrange(10**6) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all workers of xdist the same order."""
    node.workerinput["order_seed"] = node.config.getoption("order_seed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("random_order"):
        terminalreporter.write_line(f"random order: --random-order --order-seed={config.getoption('order_seed')}")


def pytest_sessionstart(session: pytest.Session) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started pytest with `&`: programs could not trap it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(session.config, "workerinput"):  # once, before the workers start
        compileall.compile_dir(SOURCE, quiet=2)
    session.config.stash[PATHS] = Paths()


def pytest_sessionfinish(session: pytest.Session) -> None:
    shutil.rmtree(session.config.stash[PATHS].folder)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    names = [name for mark in item.iter_markers("services") for name in mark.args]
    paths = item.config.stash[PATHS]
    os.environ["PATH"] = paths.whole if names else paths.plain
    for name in names:
        missing = SERVICES[name].find_missing()
        if missing:
            leave = pytest.fail if item.config.getoption("require_services") else pytest.skip
            leave(f"{name} is missing ({', '.join(missing)}): {SERVICES[name].install}")


# ---------------------------------------------------------------- names


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their length: their content may differ from one time to the next (a gzip header has the time in
    it), and workers that name the tests differently do not start at all."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


# ---------------------------------------------------------------- a home of its own


# Plug-ins that pytest does not need when a test starts it: they are three quarters of its start.
NESTED = " ".join(f"-p no:{name}" for name in ("schemathesis", "hypothesispytest", "anyio", "platformdirs"))


@pytest.fixture(scope="session", autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """HOME and XDG_* are in a folder of this session; nothing of the developer's environment is inherited."""
    home = tmp_path_factory.mktemp("home")
    (home / "runtime").mkdir(mode=0o700)
    before = dict(os.environ)
    for name in before:
        if name.startswith(SURROUNDINGS) or name in SURROUNDING_NAMES:
            del os.environ[name]
    os.environ.update(isolated_environment(home))
    left_out = re.findall(r"-p no:\S+", before.get("PYTEST_ADDOPTS", ""))  # where a plug-in was pulled out
    os.environ["PYTEST_ADDOPTS"] = " ".join([NESTED, *left_out])
    yield home
    os.environ.clear()
    os.environ.update(before)


def isolated_environment(home: Path) -> dict[str, str]:
    """Return the variables that locate a user's files: no file of the developer's, git's settings included, is used."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "XDG_RUNTIME_DIR": str(home / "runtime"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@example.invalid",
        "GIT_COMMITTER_NAME": "Test",
        "GIT_COMMITTER_EMAIL": "test@example.invalid",
    }


# ---------------------------------------------------------------- what a test leaves behind


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test leaves the environment, the working directory and the process table as it found them.

    This fixture asks for `monkeypatch` so that it is torn down after all others but that one: what a test sets through
    `monkeypatch` has to be undone before the examination.
    """
    environment, folder, tagged = environment_now(), os.getcwd(), tagged_processes()
    seed_generators()
    yield
    monkeypatch.undo()
    problems = [
        *environment_problems(environment, environment_now()),
        *folder_problems(folder),
        *process_problems(tagged),
    ]
    reap_children()
    if problems:
        pytest.fail(f"{request.node.name} leaves traces:\n  " + "\n  ".join(problems), pytrace=False)


def seed_generators() -> None:
    """Let each test draw the same numbers, whichever tests were executed before it."""
    random.seed(0)
    if hasattr(sys.modules.get("numpy"), "random"):  # a thread of the test before may be importing it
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # `torch.manual_seed` formats the stack for each GPU


def environment_now() -> dict[str, str]:
    """Return the environment without PYTEST_CURRENT_TEST, which pytest writes between the phases of a test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def environment_problems(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Name the differences, and put the old environment back so that the next test does not suffer."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in names:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
    return [f"environment: {name} was {before.get(name)!r}, is {after.get(name)!r}" for name in names]


def folder_problems(before: str) -> list[str]:
    try:
        now = os.getcwd()
    except FileNotFoundError:
        now = "a folder that is gone"
    if now == before:
        return []
    os.chdir(before)
    return [f"working directory: was {before}, is {now}"]


def process_problems(before: dict[int, str]) -> list[str]:
    """Find processes of runs that the test started and did not end, and end them, since nothing else does."""
    deadline = time.monotonic() + GRACE_S
    while (left := dict(tagged_processes().items() - before.items())) and time.monotonic() < deadline:
        while left and time.monotonic() < deadline:  # only these processes are examined until they have ended
            time.sleep(0.02)
            left = {pid: tag for pid, tag in left.items() if process_tag(pid, os.environ.get("HOME", "")) == tag}
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [f"process {pid} is still running, tagged {tag}" for pid, tag in sorted(left.items())]


def reap_children() -> None:
    """Wait for dead children. A study that ran in this process has made it the parent of what jobs leave: a thousand
    dead ones would be in the process table at the end, which hundreds of tests read."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class ProcessStarts:
    """Whether this process has started another since the last look: without one there is no leak to find.

    A look reads the environment of every process of the machine, which costs more than most tests do.
    """

    CALLS = (
        (subprocess, "_fork_exec"), (_posixsubprocess, "fork_exec"), (os, "fork"), (os, "forkpty"),
        (os, "posix_spawn"), (os, "posix_spawnp"), (os, "system"),
    )  # fmt: skip

    def __init__(self) -> None:
        """Replace the functions that start processes; an audit hook would be called for each opened file, too."""
        self.seen = True
        for module, name in self.CALLS:
            setattr(module, name, self.noticing(getattr(module, name)))

    def noticing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def start(*args: Any, **kwargs: Any) -> Any:
            self.seen = True
            return call(*args, **kwargs)

        return start


STARTS = ProcessStarts()


def tagged_processes() -> dict[int, str]:
    """Find processes that carry a run's tag and were started by this session; none when nothing was started.

    Other workers (xdist) and other sessions run at the same time, so the session's own home is the second mark: a run
    inherits it from the test that started it.
    """
    if not STARTS.seen:
        return {}
    found = all_tagged_processes()
    STARTS.seen = bool(found)
    return found


def all_tagged_processes() -> dict[int, str]:
    found: dict[int, str] = {}
    home = os.environ.get("HOME", "")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            tag = process_tag(int(entry), home)
            if tag is not None:
                found[int(entry)] = tag
    return found


def process_tag(pid: int, home: str) -> str | None:
    """The tag of a live process whose home is ours."""
    raw = process_environment(pid)
    if TAG.encode() not in raw:
        return None
    variables = dict(item.partition(b"=")[::2] for item in raw.split(b"\0"))
    tag = variables.get(TAG.encode())
    if tag is None or variables.get(b"HOME", b"") != os.fsencode(home):
        return None
    return os.fsdecode(tag)


def read_whole(path: str) -> bytes:
    """Read a file as Path.read_bytes, in half the time: it is called for each process of the machine."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)


def process_environment(pid: int) -> bytes:
    """Return a process's environment: empty for zombies, kernel threads, ended ones, and for an instant during exec."""
    try:
        for _ in range(5):
            raw = read_whole(f"/proc/{pid}/environ")
            if raw or not os.readlink(f"/proc/{pid}/exe"):
                return raw
            time.sleep(0.001)
    except OSError:
        pass
    return b""


# ---------------------------------------------------------------- odd paths


@pytest.fixture(params=HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
def hostile_name(request: pytest.FixtureRequest) -> str:
    """A legal file name that breaks careless quoting."""
    return str(request.param)


@pytest.fixture
def hostile_path(tmp_path: Path, hostile_name: str) -> Path:
    """An existing folder whose name breaks careless quoting."""
    path = tmp_path / hostile_name
    path.mkdir()
    return path


@pytest.fixture
def forbidden_dir() -> Iterator[Path]:
    """A folder that this process can list and not write to, also when it is root: it runs as another user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        nobody = 65534
        if os.geteuid() == 0:
            os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
            os.chmod(folder, 0o700)


# ---------------------------------------------------------------- the network


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# ---------------------------------------------------------------- which tests, in which order

# Tests of many seconds: a slow test that begins last keeps one worker busy after all others have ended.
SLOW_FIRST = (
    "tests/trace/",
    "tests/test_pages.py",
    "tests/models/flow/test_torch_cases.py",
    "tests/models/commands/test_torch_models.py",
    "tests/web/test_hostile.py",
    "tests/exchange/test_exchange_page.py",
    "tests/examples/",
    "tests/bench/test_suites.py",
    "tests/contracts/",
    "tests/test_pull_out.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `not_for` instead of skipping them: a skip means that something is missing here."""
    for item in items:
        for mark in item.iter_markers("services"):
            if not mark.args or not SERVICES.keys() >= set(mark.args):
                raise pytest.UsageError(f"{item.nodeid}: `services` names one of {', '.join(SERVICES)}")
    out = {item for item in items if _is_not_for(item)}
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    if config.getoption("random_order"):
        items[:] = shuffle_by_file(items, random.Random(config.getoption("order_seed")))
    else:
        items.sort(key=find_turn)


def find_turn(item: pytest.Item) -> int:
    return next((number for number, name in enumerate(SLOW_FIRST) if item.nodeid.startswith(name)), len(SLOW_FIRST))


def shuffle_by_file(items: list[pytest.Item], generator: random.Random) -> list[pytest.Item]:
    """Shuffle files and the tests in each, but keep those of a file together: what they share is made once."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    blocks = list(files.values())
    generator.shuffle(blocks)
    for block in blocks:
        generator.shuffle(block)
    return [item for block in blocks for item in block]


def _is_not_for(item: pytest.Item) -> bool:
    names = [name for mark in item.iter_markers("not_for") for name in mark.args]
    params = getattr(item, "callspec", None)
    return bool(names) and params is not None and any(name in names for name in params.params.values())
