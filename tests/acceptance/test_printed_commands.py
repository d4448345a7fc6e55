"""Every command that a report, a page or a hint prints is executed against the study that printed it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.exchange.test_received import RUN, STUDY, Owner, forge_best, nothing, pull_interrupted
from tests.finished_study import Bench, until
from tests.printed_commands import check_command, find_attempts, find_commands
from tests.web_client import open_client

# items with parameters of their own, values and names that a shell would take apart, and a run that fails
ITEMS = r"""
study: "it's odd & (new)"
command: >-
  echo step 1 loss {lr}; echo {text}; test {text} != 'bad one' || exit 3; true [beta] [momentum] [-n] [a b] [x.y]
params: {lr: 0.5}
sweep:
  - {text: "it's", beta: 1, -n: 3}
  - {text: 'a "b" $HOME; c', momentum: 0.5, 'a b': 1}
  - {text: 'bad one', x.y: "ü*?[a] #1"}
  - {text: '-n'}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
"""
ONLY_ODD_NAMES = r"""
study: names
command: echo loss 1 [-n] [a/b] [--c]
params: {-n: [1, 2], a/b: 2, --c: 1}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""
VARIED = r"""
study: varied
command: echo step 1 loss {start}
params: {start: [0.25, 0.75]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
"""
PRUNED = r"""
study: pruned
command: for i in 1 2 3 4 5; do echo "step $i loss {x}"; sleep 0.2; done
params: {x: [1, 500]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
stop: [{rule: bounds, metric: loss, max: 100}]
resources: {gpus: 0}
"""
SEARCH = r"""
study: tuned
command: 'echo loss {x}; [ {kind} != b ]'
params: {x: {range: 9}, kind: [a, b]}
metrics: {loss: 'loss ({number})'}
search: {sampler: grid, metric: loss, trials: 5}
resources: {gpus: 0}
"""
SECRET = r"""
study: secret
command: echo loss {lr}; true {api_key}
params: {lr: [1, 2], api_key: hunter2hunter2}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""
LONG = r"""
study: long
command: 'echo "step 1 loss {x}"; test -e GO || sleep 300'
params: {x: [1, 2, 3]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
code: live
"""
RUNX = "CMD: 'echo loss 1'\nHPARAMS: [{lr: [1, 2], text: some}, {beta: 3, other: 4}]\n"
MLRUNNER = "template:\n  train: echo loss {lr} [b]\ndefault: {b: 1}\nresource: [0]\n---\nlr: [1, 2]\n---\nlr: 7\nb: 5\n"
SCRIPT = "import assay\nassay.log(loss=2, step=1)\n"
CHART = '"Step","calm-sun-1 - loss"\n"1","0.5"\n"2","0.25"\n'


HERE: tuple[str, ...] = ()
ELSEWHERE = ("--root", "else where/it's")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path).enter(monkeypatch)


def collect(bench: Bench, study: Path) -> tuple[list[str], list[str]]:
    """What every reading command and page says about a study: its commands; and which calls failed."""
    name = str(study.relative_to(bench.folder)) if study.parent != bench.root else study.name
    runs = sorted(Path(each).name for each in find_attempts(study))
    calls = [["ls", name], ["sum", name], ["best", name], ["best", name, "--json"], ["report", name, "-o", "-"]]
    calls += [
        ["importance", name],
        ["show", f"{name}/no such run"],
        ["diff", f"{name}/{runs[0]}", f"{name}/{runs[-1]}"],
    ]
    calls += [["show", f"{name}/{run}"] for run in runs]
    for run in runs[:2]:
        calls += [["report", f"{name}/{run}", "-o", "-"], ["logs", f"{name}/{run}"]]
    texts, failed = [], []
    for call in calls:
        done = bench.read(*(call if not name.startswith("-") else [call[0], "--", *call[1:]]))
        failed += [f"{call}: {done.stderr}"] if done.returncode > 2 else []
        texts += [done.stdout, done.stderr]
    return [command for text in texts for command in find_commands(text)], failed


def collect_pages(study: Path) -> list[str]:
    found = []
    with open_client(study.parent) as client:
        for run in sorted(Path(each).name for each in find_attempts(study)):
            page = client.get(f"/studies/{study.name}/runs/{run}")
            assert page.status_code == 200, page.text
            found += find_commands(page.text)
        found += find_commands(client.get(f"/studies/{study.name}").text)
        found += find_commands(client.get(f"/studies/{study.name}/best").text)
    return found


def check_all(bench: Bench, study: Path, printed: str) -> list[str]:
    """Execute everything that was printed about the study, each command once. Gives the commands."""
    commands, failed = collect(bench, study)
    assert not failed
    commands = list(dict.fromkeys([*find_commands(printed), *commands, *collect_pages(study)]))
    assert commands, "nothing was printed"
    for command in commands:
        check_command(bench, command)
    return commands


def run_study(bench: Bench, text: str, place: tuple[str, ...], code: int = 0) -> tuple[Path, str]:
    done = bench.assay("run", bench.write("the study.yml", text), "-j", "2", "--plain", *place)
    assert done.returncode == code, done.stderr
    (path,) = {Path(each).parent for each in find_attempts(bench.folder)}
    return path, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        pytest.param(ITEMS, 1, HERE, id="items"),
        pytest.param(ONLY_ODD_NAMES, 0, HERE, id="names"),
        pytest.param(PRUNED, 0, HERE, id="pruned"),
        pytest.param(SEARCH, 1, ELSEWHERE, id="search elsewhere"),
        pytest.param(SECRET, 0, HERE, id="secret"),
    ],
)
def test_what_is_printed_about_a_study_works(bench: Bench, text: str, code: int, place: tuple[str, ...]) -> None:
    study, printed = run_study(bench, text, place, code)
    commands = check_all(bench, study, printed)
    assert any(command.startswith("assay rerun") for command in commands)
    assert any(command.startswith("assay run ") for command in commands) or text is SECRET


def test_the_report_of_varied_runs_starts_no_new_ones(bench: Bench) -> None:
    study, printed = run_study(bench, VARIED, ELSEWHERE)
    name = str(study.relative_to(bench.folder))
    assert bench.assay("rerun", f"{name}/start=0.25", "start=0.5").returncode == 0
    commands = check_all(bench, study, printed)
    assert not any(command.startswith("assay run") and "start=0.5" in command for command in commands)
    (bench.folder / "the study.yml").write_text(VARIED.replace("step 1", "step 2"))
    commands, _ = collect(bench, study)
    assert not any(command.startswith("assay run ") for command in commands), "the file has changed since"


def test_what_is_printed_about_an_interrupted_study_works(bench: Bench) -> None:
    bench.write("study.yml", LONG)
    program = bench.start("run", "study.yml", "-j", "1", "--plain")
    until(lambda: list(bench.folder.rglob("lease.1")), "it runs")
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    (bench.folder / "GO").touch()
    study = bench.root / "long"
    before = find_attempts(bench.folder)
    commands, failed = collect(bench, study)
    assert not failed
    commands = list(dict.fromkeys([*find_commands(out + err), *commands, *collect_pages(study)]))
    again = [command for command in commands if command.startswith("assay run ") or "--follow" in command]
    assert again[0].startswith("assay run ")
    for command in commands:
        if command not in again:
            check_command(bench, command)
    assert find_attempts(bench.folder).keys() == before.keys()
    assert bench.assay("run", "study.yml", "-j", "1", "--quiet").returncode == 0
    assert len(find_attempts(bench.folder)) == 3
    for command in again:
        check_command(bench, command)


def test_what_is_printed_about_stopped_runs_works(bench: Bench) -> None:
    bench.write("study.yml", LONG)
    program = bench.start("run", "study.yml", "-j", "3", "--plain")
    until(lambda: len(list(bench.folder.rglob("lease.1"))) == 3, "all run")
    page = collect_pages(bench.root / "long")
    assert not any(command.startswith("assay rerun") for command in page), "it still runs"
    assert bench.assay("stop", "long/x=1").returncode == 0
    (bench.folder / "GO").touch()
    assert bench.assay("stop", "long").returncode == 0
    out, err = program.communicate(timeout=60)
    check_all(bench, bench.root / "long", out + err)


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("dialect", ["runx", "mlrunner"])
def test_what_is_printed_about_other_tools_files_works(bench: Bench, dialect: str) -> None:
    text = RUNX if dialect == "runx" else MLRUNNER
    study, printed = run_study(bench, text, ())
    check_all(bench, study, printed)


def test_what_is_printed_about_uploaded_runs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that is here already too: it is compared with that one, since it is not adopted."""
    owner = Owner(tmp_path)
    owner.enter(monkeypatch)
    owner.train_elsewhere(STUDY)
    assert owner.assay("run", "mine.yml", "x=1", "--quiet").returncode == 0
    owner.take(owner.forge(nothing, state="done", run="x=2"))
    owner.take(owner.forge(forge_best, state="done", name="x=1 forged"))
    refused = [owner.assay("rerun", f"mine/{run}").stderr for run in ("x=2", "x=1 forged")]
    commands = check_all(owner, owner.root / "mine", "".join(refused))
    assert "assay adopt mine/x=2" in commands
    assert "assay diff mine/x=1 'mine/x=1 forged'" in commands
    assert not any("adopt" in command and "forged" in command for command in commands)


def test_what_is_printed_about_pulled_runs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path)
    owner.enter(monkeypatch)
    owner.train_elsewhere(STUDY)
    pull_interrupted(owner, {RUN: nothing})
    assert owner.assay("run", "mine.yml", "x=3", "--quiet").returncode == 0
    commands = check_all(owner, owner.root / "mine", owner.assay("rerun", "mine/x=2").stderr)
    assert {"assay adopt mine/x=1", "assay adopt mine/x=2"} <= {*commands}


def test_what_is_printed_about_runs_without_a_command_works(bench: Bench) -> None:
    bench.write("chart.csv", CHART)
    done = bench.assay("index", "ingest", "chart.csv")
    assert done.returncode == 0, done.stderr
    (study,) = {Path(each).parent for each in find_attempts(bench.folder)}
    commands = check_all(bench, study, done.stdout + done.stderr)
    assert not any(command.startswith(("assay rerun", "assay run ")) for command in commands)


def test_commands_are_found_in_texts_pages_and_json() -> None:
    assert find_commands("no study\n    see: assay ls 'a b'\n`assay sum x` shows\nassay show STUDY/RUN") == [
        "assay ls 'a b'",
        "assay sum x",
    ]
    assert find_commands("<p>do <code>assay ls &#x27;a b&#x27;</code></p>") == ["assay ls 'a b'"]
    assert find_commands(json.dumps({"hints": [{"next": "assay ls x"}]})) == ["assay ls x"]
    assert find_commands("reduce it:  cd '/a b' && assay model reduce x") == ["cd '/a b' && assay model reduce x"]
    assert find_commands("<?xml version='1.0'?><failure>once: assay ls &apos;a b&apos;</failure>") == ["assay ls 'a b'"]
    assert find_commands(r"gather it: \`assay ls a\_b\`") == ["assay ls a_b"], "Markdown"
