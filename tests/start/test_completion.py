"""Completion: the words that are offered, and what real shells make of them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import GOOD, Bench

from assay.cli.main import run

OTHER = 'study: other\ncommand: "echo m {p}"\nparams: {p: [1, 2]}\nmetrics: {m: "m ({number})"}\nresources: {gpus: 0}\n'
SLOW_S = 60.0  # until a shell on a busy machine must have answered


def complete(cli: Cli, line: str, *piece: str) -> list[str]:
    result = cli("completion", "words", "--", line, *piece)
    assert (result.code, result.err) == (0, "")
    return [each.partition("\t")[0] for each in result.out.splitlines()]


# ---------------------------------------------------------------- words


@pytest.mark.needs(bench=True, compat=True, golden=True)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("assay su", ["sum", "sumx"]),
        ("assay bench c", ["compare"]),
        ("assay sum --so", ["--sort"]),
        ("assay sum ", ["fit", "other"]),
        ("assay ls f", ["fit"]),
        ("assay show f", ["fit/"]),
        ("assay stop f", ["fit", "fit/"]),
        ("assay show fit/lr=0.1", ["fit/lr=0.1,n=7", "fit/lr=0.1,n=8"]),
        ("assay diff fit/lr=0.1,n=7 fit/lr=0.5,n=7", ["fit/lr=0.5,n=7"]),
        ("assay sum fit --sort ", ["loss", "lr", "n", "test.acc"]),
        ("assay sum --sort ", ["loss", "lr", "m", "n", "p", "test.acc"]),
        ("assay sum fit -m loss,t", ["loss,test.acc"]),
        ("assay best fit -m ", ["loss", "test.acc"]),
        ("assay plot fit --scatter ", ["lr", "n"]),
        ("assay sum other --sort ", ["m", "p"]),
        ("assay sum --root nowhere ", []),
        ("assay golden show -m ", []),
        pytest.param("assay rerun fit/lr=0.1,n=7 --farm sl", ["slurm"], marks=pytest.mark.needs(farms=True)),
        ("assay completion install ", ["bash", "zsh", "fish"]),
        ("assay show 'fi", ["fit/"]),
        ("assay nonsense su", ["sum", "sumx"]),
    ],
)
def test_words(bench: Bench, cli: Cli, line: str, expected: list[str]) -> None:
    if not (bench.root / "other").exists():
        assert bench.run(OTHER, file="other.yml").returncode == 0
    assert cli("ls").code == 0  # the index knows them
    assert complete(cli, line) == expected


@pytest.mark.needs(models=True)
def test_settings_count_and_wrong_ones_offer_nothing(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("assay.toml", '[targets.board]\nbackend = "ort"\n')
    assert complete(cli, "assay model check m.onnx --target b") == ["board"]
    assert complete(cli, "assay model check m.onnx --target ort") == ["ort", "ort:unoptimized"]
    own_bench.write("assay.toml", "root = 5\n")
    assert complete(cli, "assay sum ") == []


def test_a_file_is_left_to_the_shell_and_one_that_ends_words_at_a_sign_gets_the_rest(cli: Cli) -> None:
    for line in ("assay run ", "assay plot fit -o "):
        assert cli("completion", "words", "--", line).out == "\tfiles\n"
    assert complete(cli, "assay show fit/lr=0.1", "0.1") == ["0.1,n=7", "0.1,n=8"]
    assert complete(cli, "assay show fit/lr=", "") == ["0.1,n=7", "0.1,n=8", "0.5,n=7", "0.5,n=8"]


def test_nothing_is_made_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "runs" / "fit" / ".assay").mkdir(parents=True)
    code = "import sys; from assay.cli.main import run; run(); print(*sys.modules, file=sys.stderr)"
    argv = [sys.executable, "-c", code, "completion", "words", "--", "assay sum fit --sort "]
    env = os.environ | {"ASSAY_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    loaded = set(subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stderr.split())
    assert "click" in loaded
    heavy = {"numpy", "yaml", "asyncio", "assay.launch.sweep", "assay.web.command", "assay.models.public"}
    assert loaded.isdisjoint(heavy)
    assert not (tmp_path / "cache").exists()


# ---------------------------------------------------------------- install


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "a home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_a_startup_file_gets_one_line_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dotfiles = home / "dotfiles"
    dotfiles.write_text("alias l=ls")  # without an end of line
    (home / ".bashrc").symlink_to(dotfiles)
    for _ in range(2):
        assert run(["completion", "install", "bash"]) == 0
    script = home / ".local/share/assay/completion.bash"
    assert dotfiles.read_text() == f"alias l=ls\nsource '{script}'\n"
    assert (home / ".bashrc").is_symlink()
    assert "complete -F" in script.read_text()
    assert f"source '{script}'" in capsys.readouterr().out


def test_another_shell_and_a_home_that_cannot_be_written_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for shell, message in (("/bin/tcsh", "$SHELL is tcsh: the shells are bash, zsh"), ("", "SHELL is not set")):
        monkeypatch.setenv("SHELL", shell)
        assert run(["completion", "install"]) == 2
        assert message in capsys.readouterr().err
        assert list(home.iterdir()) == []
    (home / ".local").write_text("a file")
    assert run(["completion", "install", "bash"]) == 4
    assert "cannot be written" in capsys.readouterr().err
    assert run(["completion", "install", "bash", "--print"]) == 0
    assert capsys.readouterr().out.startswith("# Completion of assay in bash")


# ---------------------------------------------------------------- real shells

STARTS = {"bash": ("bash", "--noprofile", "-i"), "zsh": ("zsh", "-i"), "fish": ("fish", "-i")}


class Terminal:
    """A shell with a person in front of it."""

    def __init__(self, argv: tuple[str, ...], folder: Path, env: dict[str, str]) -> None:
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], argv, env)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + SLOW_S
        while text.encode() not in self.text:
            assert time.monotonic() < end, self.text.decode(errors="replace")
            if select.select([self.fd], [], [], 0.5)[0]:
                self.text += os.read(self.fd, 65536)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(name, marks=pytest.mark.services("shells")) for name in ("zsh", "fish"))]
)
def test_a_real_shell_completes(shell: str, bench: Bench, home: Path) -> None:
    assert run(["completion", "install", shell]) == 0
    assert bench.assay("ls", "fit").returncode == 0  # the index knows it
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | bench.extra | {"PATH": path, "TERM": "dumb", "PS1": "> ", "HISTFILE": "/dev/null"}
    terminal = Terminal(STARTS[shell], bench.folder, env)
    try:
        for typed, completed in (
            ("assay show fi\tlr=0.1,n=7\t", f"assay show fit/{GOOD}"),
            ("assay sum fit --sort lo\t--md", "assay sum fit --sort loss --md"),
            ("assay run stu\t", "assay run study.yml"),
        ):
            terminal.text = b""
            terminal.type(f"{typed}\x01echo se''en: \r")  # the line is printed instead of being called
            terminal.wait_for(f"seen: {completed}")
    finally:
        terminal.close()
