"""Every command that a golden, a benchmark or a model prints is executed against the root that printed it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from onnx import helper
from tests.bench_samples import execution, write_module
from tests.example_models import EXAMPLES, write_chain, write_model
from tests.finished_study import Bench
from tests.golden_training import NATIVE, Lab
from tests.printed_commands import find_commands, find_roots, paste
from tests.web_client import open_client

from assay.bench.flow.archive import write_as_run
from assay.follow.api import StudyLocation
from assay.system.fast_dataclasses import replace

ELSEWHERE = ("--root", "else where")
GOLDEN = ("config.yml", "-s", "a store", *ELSEWHERE)
FORMS = ("--html", "report.html", "--md", "report.md", "--junit", "report.xml")
TWO = NATIVE.replace("{loss: exact}", "{loss: exact, acc: exact}").replace(
    "golden:\n", "  acc: 'Acc: ({number})'\ngolden:\n"
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ask(bench: Bench, *words: str, codes: tuple[int, ...] = (0,)) -> list[str]:
    """The commands that a call prints, in the terminal and in every form of its report."""
    done = bench.assay(*words)
    assert done.returncode in codes, f"{words}\n{done.stdout}{done.stderr}"
    texts = [done.stdout, done.stderr]
    for name in FORMS[1::2]:
        path = bench.folder / name
        if path.exists():
            texts.append(path.read_text())
            path.unlink()
    return list(dict.fromkeys(command for text in texts for command in find_commands(text)))


def read_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    bench.enter(monkeypatch)
    found = []
    with open_client(bench.folder / "else where") as client:
        for address in addresses:
            page = client.get(address)
            assert page.status_code == 200, page.text
            found += find_commands(page.text)
    return list(dict.fromkeys(found))


def choose(commands: list[str], *words: str) -> str:
    (found,) = (command for command in commands if all(word in command for word in words))
    return found


# ---------------------------------------------------------------- golden recordings


@pytest.fixture
def lab(bench: Bench) -> Lab:
    found = Lab(bench.folder)
    found.write_native(TWO)
    return found


def check_golden(bench: Bench, commands: list[str]) -> None:
    """Those that only look first; and after each rebase a check judges, and passes."""
    rebases = [command for command in commands if " rebase " in command]
    for command in commands:
        if command not in rebases:
            assert "demo: " in paste(bench, command).stdout, command
    for command in sorted(rebases, key=lambda command: "--from check" not in command):
        done = paste(bench, command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert bench.assay("golden", "check", *GOLDEN, "-q").returncode == 0, command


def test_what_is_printed_about_a_golden_works(bench: Bench, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (gather,) = ask(bench, "golden", "check", *GOLDEN, *FORMS, codes=(2,))
    assert paste(bench, gather).returncode == 0
    assert find_roots(bench.folder) == {bench.folder / "else where"}
    commands = ask(bench, "golden", "check", *GOLDEN, *FORMS)
    commands += ask(bench, "golden", "show", "a store", "--html", "report.html")
    lab.change(scale=1.5)
    changed = ask(bench, "golden", "check", *GOLDEN, *FORMS, codes=(3,))
    assert changed == ask(bench, "golden", "check", *GOLDEN, "--json", codes=(3,))
    assert changed == ask(bench, "report", "golden-demo", *ELSEWHERE, "-o", "-")
    pages = read_pages(bench, monkeypatch, "/goldens", "/goldens/golden-demo")
    assert set(changed) < set(pages)
    assert paste(bench, choose(changed, "--allow-changed")).returncode == 0
    check_golden(bench, [*commands, *pages])


def test_what_is_printed_about_a_golden_that_is_judged_in_part_works(bench: Bench, lab: Lab) -> None:
    assert bench.assay("golden", "gather", *GOLDEN, "-q").returncode == 0
    lab.write_native()
    commands = ask(bench, "golden", "check", *GOLDEN, *FORMS, codes=(3,))
    assert "loss" in paste(bench, choose(commands, "--only loss")).stdout
    check_golden(bench, commands)


@pytest.mark.needs(compat=True)
def test_what_is_printed_about_a_golden_of_the_harness_works(
    bench: Bench, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write()
    harness = ("convergence", "-t", "config.yml", "-s", "a store", *ELSEWHERE)
    assert bench.assay(*harness, "-g").returncode == 0
    lab.change(scale=1.5)
    commands = ask(bench, "golden", "check", *GOLDEN, *FORMS, codes=(1,))
    commands += ask(bench, *harness, codes=(1,))
    commands += ask(bench, "report", "golden-demo", *ELSEWHERE, "-o", "-")
    commands += read_pages(bench, monkeypatch, "/goldens", "/goldens/golden-demo")
    assert choose(list(dict.fromkeys(commands)), " check ")
    check_golden(bench, list(dict.fromkeys(commands)))


# ---------------------------------------------------------------- benchmarks


def write_benchmarks(bench: Bench) -> None:
    """`writes` became worse; `fixed` differs between the labels a and b; `environment` was executed once, `good` twice
    and on a busy machine."""
    write_module(bench.folder)
    location = StudyLocation(str(bench.folder / "else where"), "bench")
    Path(location.dir).mkdir(parents=True)
    made = [("mod.B.writes", 10 + 2 * (n >= 12) + 0.01 * (n % 3), None, ()) for n in range(24)]
    made += [("mod.B.fixed", 1 + 0.01 * n + (n >= 8), "ab"[n >= 8], ()) for n in range(16)]
    made += [("mod.B.fixed", 1.0, "c", ()), ("mod.B.environment", 1.0, None, ())]
    made += [("mod.B.good", 1.0 + n / 10, None, ("others used it",) * (n > 2)) for n in range(6)]
    for number, (method, value, label, disturbed) in enumerate(made):
        each = execution(number, value, label=label, contaminated=disturbed)
        each = replace(each, method=method, result=replace(each.result, name=method, cpu_time=value))
        assert write_as_run(location, each, each.label)


def test_what_is_printed_about_benchmarks_works(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write_benchmarks(bench)
    history = ("bench", "history", "wall_time")
    (again,) = ask(bench, *history, "mod.B.environment", *ELSEWHERE, codes=(2,))
    (see,) = ask(bench, "bench", "triage", "wall_time", "mod.B.good", "last", "ack", *ELSEWHERE, codes=(2,))
    commands = [again, see]
    for words, codes in [
        ((*history, "mod.B.writes"), (1,)),
        ((*history, "mod.B.good"), (3,)),
        (("bench", "run", "mod.B.dies"), (1,)),
        (("bench", "compare", "a", "b"), (1,)),
        (("bench", "compare", "a", "c"), (1, 3)),
    ]:
        commands += ask(bench, *words, *ELSEWHERE, *FORMS[2:], codes=codes)
        commands += ask(bench, *words, *ELSEWHERE, "--json", codes=codes)
    commands += ask(bench, "bench", "table", *ELSEWHERE)
    for name in ("bench", "bench/mod.B.writes", "bench/mod.B.good", "bench/a..b"):
        commands += ask(bench, "report", name, *ELSEWHERE, "-o", "-")
    place = "/benchmarks/bench"
    pages = [f"{place}/history?method=mod.B.{name}" for name in ("writes", "good", "dies")]
    pages += [f"{place}/environments?method=mod.B.fixed", f"{place}/compare?base=a&head=b&method=mod.B.fixed"]
    commands = list(dict.fromkeys([*commands, *read_pages(bench, monkeypatch, "/benchmarks", *pages)]))
    assert choose(commands, " run mod.B.dies ")
    assert choose(commands, " compare a b ")
    for command in commands:
        (shown,) = re.findall(r"mod\.B\.\w+", command) if " table " not in command else ["label"]
        assert shown in paste(bench, command).stdout, command
    assert choose(commands, " triage ", "mod.B.writes")
    assert bench.assay(*history, "mod.B.writes", *ELSEWHERE).returncode == 0, "acknowledged"
    assert choose(commands, " history ", "mod.B.good", "--all")
    assert any(" history cpu_time mod.B.good --root" in command for command in commands)
    assert bench.assay(*history, "mod.B.environment", *ELSEWHERE, "--all").returncode != 2


# ---------------------------------------------------------------- models


@pytest.fixture
def chain(bench: Bench) -> str:
    shutil.copy(EXAMPLES / "faulty.py", bench.folder)
    target = '[tool.assay.targets.faulty]\nbackend = "faulty:FaultyBackend"\nfault = {kind = "scaled", at = "sum"}\n'
    bench.write("pyproject.toml", target)
    (bench.folder / "my models").mkdir()
    name = "my models/it's a chain.onnx"
    write_chain(bench.folder / name)
    return name


@pytest.mark.services("backends")
def test_what_is_printed_about_a_wrong_model_works(bench: Bench, chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manner = ("--target", "faulty", *ELSEWHERE)
    commands = ask(bench, "model", "check", chain, *manner, *FORMS, codes=(1,))
    commands += ask(bench, "model", "bisect", chain, *manner, codes=(1,))
    # on the terminal from here, in files by whole paths
    reduce = {command for command in commands if " reduce " in command}
    assert {command.startswith("cd ") for command in reduce} == {True, False}
    done, *_ = [paste(bench, command) for command in reduce]
    assert "smallest model: " in done.stdout, done.stdout
    commands += find_commands(done.stdout)
    commands += ask(bench, "model", "check", chain, *manner, "--json", codes=(1,))
    commands += ask(bench, "report", "model", *ELSEWHERE, "-o", "-")
    runs = [path.parent.name for path in (bench.folder / "else where/model").glob("*/run.json")]
    commands += read_pages(bench, monkeypatch, "/models", *(f"/models/model/checks/{run}" for run in runs))
    commands = list(dict.fromkeys(command for command in commands if command not in reduce))
    for command in commands:
        done = paste(bench, command)
        if " diff " in command:
            assert "0.01" in done.stdout, "how far it is off"
        else:
            assert done.stdout.startswith("FAIL it's a chain_reduced"), done.stdout


def test_what_is_printed_about_a_model_that_is_right_works(bench: Bench, chain: str) -> None:
    (check,) = ask(bench, "model", "reduce", chain, "--target", "ort", *ELSEWHERE)
    assert "3 layers" in paste(bench, check).stdout


@pytest.mark.services("backends")
def test_what_is_printed_about_a_refused_reference_works(bench: Bench) -> None:
    write_model(
        bench.folder / "it's old.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]}, opset=1
    )
    found = ask(bench, "model", "check", "it's old.onnx", "--target", "reference", *ELSEWHERE, *FORMS, codes=(1,))
    assert len(found) == 1, "\n".join(found)
    assert paste(bench, found[0]).returncode == 0
    (converted,) = bench.folder.glob("*_opset*.onnx")
    assert bench.assay("model", "check", converted.name, "--target", "reference", *ELSEWHERE).returncode == 0
