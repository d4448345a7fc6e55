"""Secrets in a study: they reach the program, and nothing else that Assay writes or prints."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench

from assay.launch import run_dir_builder
from assay.record import run_directory
from assay.system.files import try_text
from assay.values import layout

PLANTED = {
    "env": "plantedEnvValue77",
    "number": "8812736455",
    "param_a": "plantedParam'Aa1",
    "param_b": "plantedParam Bb2",
    "flag": "plantedFlag#33",
    "assigned": "plantedAssigned44",
    "form": "ghp_plantedForm0123456789",
    "url": "plantedUrlPass55",
    "dotenv": "plantedDotenv66",
    "diff": "plantedDiff88",
    "typed": "plantedTyped99",
}

CHECK = """
import hashlib, os, sys
given = [os.environ["HF_TOKEN"], os.environ["DB_PASSWORD"], os.environ["LATER_TOKEN"], *sys.argv[1:]]
open(os.path.join(os.environ["ASSAY_RUN_DIR"], "seen"), "a").write(
    "".join(hashlib.sha256(each.encode()).hexdigest() + "\\n" for each in given))
print("loss 0.5")
"""

STUDY = f"""
study: s
command: >-
  LATER_TOKEN={PLANTED["assigned"]} {sys.executable} check.py {{api_key}} --token '{PLANTED["flag"]}' {PLANTED["form"]}
  https://bob:{PLANTED["url"]}@host/x {{lr}}
params: {{api_key: ["{PLANTED["param_a"]}", "{PLANTED["param_b"]}"], lr: 0.1, max_tokens: 512}}
env: {{HF_TOKEN: {PLANTED["env"]}, DB_PASSWORD: {PLANTED["number"]}, TOKENIZERS_PARALLELISM: "false"}}
metrics: {{loss: 'loss ({{number}})'}}
"""


@pytest.fixture
def planted(own_bench: Bench) -> Bench:
    own_bench.write("check.py", CHECK)
    own_bench.write(".env", f"TOKEN={PLANTED['dotenv']}\n")
    own_bench.write("conf.yml", "password: nothing\n")
    own_bench.write("s.yml", "study: s\ncommand: 'true'\n")
    for words in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=own_bench.folder, check=True)
    own_bench.write(".env", f"TOKEN={PLANTED['dotenv']}2\n")
    own_bench.write("conf.yml", f"password: {PLANTED['diff']}\nlr: 2\n")
    own_bench.write("s.yml", STUDY)
    return own_bench


def find_planted(folder: Path) -> dict[str, set[str]]:
    """Find files that contain a planted value, except the user's own and copies of a program's configuration."""
    found: dict[str, set[str]] = {}
    own = {folder / "work" / name for name in (".env", "conf.yml", "s.yml")}
    for base, _, names in os.walk(folder):
        for path in (Path(base, name) for name in names):
            if ".git" in path.parts or path in own or path.is_symlink() or path.name == "conf.yml":
                continue
            content = path.read_bytes()
            for name, value in PLANTED.items():
                if value.encode() in content or value.replace("'", "'\\''").encode() in content:
                    found.setdefault(str(path.relative_to(folder)), set()).add(name)
    return found


def find_run(bench: Bench) -> Path:
    (found,) = (path.parent for path in bench.root.glob("s/*/run.json"))
    return found


@pytest.mark.needs(plots=True)
def test_planted_secrets_reach_the_program_and_nothing_that_is_written_or_printed(
    planted: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["assay", "run", "s.yml", "--token", PLANTED["typed"]])
    printed = []
    for words in (["run", "s.yml", "-n"], ["run", "s.yml", "-n", "--json"], ["run", "s.yml", "-j", "1", "--plain"]):
        result = cli(*words)
        assert result.code == 0, result.err
        printed.append(result.out + result.err)
    assert "***" in printed[0]
    assert "max_tokens" in printed[1]
    keys = [f"s/{row['name']}" for row in json.loads(cli("ls", "s", "--json").out)]
    reading = [["ls"], ["ls", "s"], ["sum", "s"], ["sum", "s", "--json"], ["sum", "s", "--csv"], ["diff", *keys]]
    reading += [["show", keys[0]], ["show", keys[0], "--json"], ["diff", "--code", *keys], ["logs", keys[0]]]
    reading += [["rerun", *keys], ["index", "rebuild"], ["ls", "--json"], ["plot", "s"]]
    for words in reading:
        result = cli(*words)
        assert result.code in (0, 1, 3), (words, result.err)
        printed.append(result.out + result.err)
    text = "".join(printed) + " ".join(keys)
    assert [name for name, value in PLANTED.items() if value in text] == []

    found = find_planted(planted.folder.parent)
    kept = {str(path.relative_to(planted.folder.parent)) for path in planted.root.glob("s/.assay/files/*.yml")}
    assert len(kept) == 1, "a copy of the study's file"
    assert set(found) == {f"work/runs/{key}/{layout.SECRETS_FILE}" for key in keys} | kept
    for path in found:
        assert (planted.folder.parent / path).stat().st_mode & 0o777 == 0o600
    common = [PLANTED["env"], PLANTED["number"], PLANTED["assigned"]]
    flag = ["--token", PLANTED["flag"], PLANTED["form"], f"https://bob:{PLANTED['url']}@host/x", "0.1"]
    expected = sorted(
        [hashlib.sha256(value.encode()).hexdigest() for value in (*common, PLANTED[name], *flag)] * 2
        for name in ("param_a", "param_b")
    )
    assert sorted((planted.root / key / "seen").read_text().split() for key in keys) == expected


def test_a_run_with_secrets_can_be_started_by_hand(planted: Bench, cli: Cli) -> None:
    assert cli("run", "s.yml", "-j", "1", "--quiet").code == 0
    run = next(path.parent for path in planted.root.glob("s/*/job.sh"))
    assert subprocess.run(["bash", "job.sh"], cwd=run, check=False).returncode == 0
    assert len((run / "seen").read_text().split()) == 2 * 9


def test_a_limited_run_has_its_secrets(planted: Bench, cli: Cli) -> None:
    planted.write("s.yml", STUDY + "timeout: 60\n")
    assert cli("run", "s.yml", "-j", "1", "--quiet").code == 0
    assert len(list(planted.root.glob("s/*/seen"))) == 2


def test_a_replaced_token_reaches_the_runs_that_are_tried_again(own_bench: Bench, cli: Cli) -> None:
    text = "study: s\ncommand: '[ \"$HF_TOKEN\" = goodToken123 ]'\nenv: {HF_TOKEN: %s}\n"
    assert cli("run", own_bench.write("s.yml", text % "oldToken123"), "-j", "1", "--quiet").code == 1
    cli("run", own_bench.write("s.yml", text % "goodToken123"), "-j", "1", "--quiet", "--retry", "failed").ended(0)
    assert len(list(own_bench.root.glob("s/*/run.json"))) == 1  # variables are no part of a run's identity


def test_no_secrets_are_looked_for_in_runs_that_have_none(
    own_bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of thousands of finished runs would read thousands of files in each call."""
    file = own_bench.write("s.yml", "study: s\ncommand: 'true {x}'\nparams: {x: [1, 2]}\n")
    assert cli("run", file, "-j", "1", "--quiet").code == 0
    read: list[str] = []
    monkeypatch.setattr(run_dir_builder, "try_text", lambda path: read.append(os.path.basename(path)) or try_text(path))
    assert cli("run", file, "-j", "1", "--quiet").code == 0
    assert read == ["job.sh"] * 2  # to see whether it is complete


def test_another_secret_parameter_is_another_run(own_bench: Bench, cli: Cli) -> None:
    text = "study: s\ncommand: 'true {token}'\nparams: {token: %s}\n"
    for token, count in (("firstToken1", 1), ("firstToken1", 1), ("otherToken2", 2)):
        assert cli("run", own_bench.write("s.yml", text % token), "-j", "1", "--quiet").code == 0
        assert len(list(own_bench.root.glob("s/*/run.json"))) == count


def test_without_its_secrets_a_run_fails_and_gives_the_reason(own_bench: Bench, cli: Cli) -> None:
    file = own_bench.write("s.yml", "study: s\ncommand: 'true'\nenv: {HF_TOKEN: someToken123}\n")
    assert cli("run", file, "-j", "1", "--quiet").code == 0
    secrets = find_run(own_bench) / "secrets.sh"
    for harm in (lambda: secrets.write_text(""), secrets.unlink):
        harm()
        assert cli("rerun", "s").code == 1
        assert "secrets.sh cannot be read or is damaged" in cli("logs", "s").out
    assert cli("run", file, "-j", "1", "--quiet", "--retry", "failed").code == 0
    assert secrets.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("call", [["run", "s.yml", "-j", "1", "--quiet", "--force"], ["rerun", "s"]])
def test_a_damaged_job_of_a_run_with_secrets_is_built_again_without_them(
    own_bench: Bench, cli: Cli, call: list[str]
) -> None:
    text = "study: s\ncommand: '[ $HF_TOKEN = goodToken123 ] && [ {token} = otherToken456 ]'\n"
    own_bench.write("s.yml", f"{text}env: {{HF_TOKEN: goodToken123}}\nparams: {{token: otherToken456}}\n")
    assert cli("run", "s.yml", "-j", "1", "--quiet").code == 0
    job = find_run(own_bench) / "job.sh"
    whole = job.read_text()
    job.write_text("")
    assert cli(*call).code == 0
    assert job.read_text() == whole


def test_a_setting_marks_and_unmarks_names_and_files(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("assay.toml", 'secret_names = ["MY_*", "!HF_TOKEN"]\nsecret_files = ["*.lic", "!.env"]\n')
    own_bench.write("a.lic", "x")
    own_bench.write(".env", "x")
    file = own_bench.write("s.yml", "study: s\ncommand: 'true'\nenv: {HF_TOKEN: shownToken1, MY_THING: hiddenThing2}\n")
    assert cli("run", file, "-j", "1", "--quiet").code == 0
    run = find_run(own_bench)
    assert "shownToken1" in (run / "job.sh").read_text()
    assert "hiddenThing2" not in (run / "job.sh").read_text() + (run / "run.json").read_text()
    assert [(run / "code" / name).is_symlink() for name in ("a.lic", ".env")] == [True, False]


def test_a_setting_that_is_no_list_of_patterns_is_refused(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("assay.toml", 'secret_names = "MY_*"\n')
    cli("run", own_bench.write("s.yml", "command: 'true'\n")).ended(2, "secret_names: must be a list of patterns")


@pytest.mark.needs(compat=True)
def test_runx_files_keep_their_secrets_apart(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("check.py", "import sys; sys.exit(sys.argv[-1] != 'planted' + 'Runx123')")
    text = f"CMD: {sys.executable} check.py\nHPARAMS: {{lr: 1, api_key: plantedRunx123, RUNX.TAG: 'k{{api_key}}'}}\n"
    cli("runx", own_bench.write("sweep.yml", text), "-i").ended(0).printed("--api_key ***")
    run = next(path.parent for path in own_bench.root.glob("sweep/*/job.sh"))
    assert "plantedRunx123" not in run.name
    holders = [path.name for path in run.rglob("*") if path.is_file() and "plantedRunx123" in path.read_text()]
    assert sorted(holders) == ["secrets.sh", "sweep.yml"]  # the latter is a link to the user's own
    assert (run / "code/sweep.yml").is_symlink()
    assert subprocess.run(["bash", "submit_cmd.sh"], cwd=run, check=False).returncode == 0


@pytest.mark.needs(compat=True)
def test_mlrunner_files_keep_their_secrets_apart(own_bench: Bench, cli: Cli) -> None:
    text = "template: {train: 'test {token} = plantedMl123 && touch {_output}/made'}\nresource: [cpu]\n---\ntoken: [plantedMl123]\n"
    own_bench.write("params.yaml", text)
    for flags in ([], ["--no-subdir", "-o", "flat"]):
        result = cli("mlrunner", *flags)
        assert result.code == 0, result.err
        assert "plantedMl123" not in result.out + result.err
    assert list((own_bench.folder / "output").glob("*/made")) == [
        next((own_bench.folder / "output").glob("T*")) / "made"
    ]
    assert (own_bench.folder / "flat/made").exists()
    for folder in ("output", "flat"):
        for path in (own_bench.folder / folder).rglob("*"):
            if path.is_file() and "plantedMl123" in path.read_text(errors="replace"):
                assert path.name in ("secrets.sh", "params.yaml") or path.parent.name == layout.FILES_DIR
                assert path.name == "params.yaml" or path.stat().st_mode & 0o777 == 0o600
                assert path.stat().st_mode & 0o077 == 0


@pytest.mark.needs(farms=True)
def test_a_farm_is_given_no_secret(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("submit.sh", 'echo "$@" >> given; bash -c "$1"\n')
    text = (
        "study: s\ncommand: test {token} = plantedFarm123\nparams: {token: plantedFarm123}\n"
        "farms: {f: {submit: 'bash SUBMIT {command}'}}\non: f\n"
    ).replace("SUBMIT", str(own_bench.folder / "submit.sh"))
    assert cli("run", own_bench.write("s.yml", text), "--quiet").code == 0
    run = find_run(own_bench)
    for path in run.iterdir():
        if path.is_file() and path.name != "secrets.sh":
            assert "plantedFarm123" not in path.read_text(), path
    assert "plantedFarm123" not in (run / "given").read_text()


def test_directories_of_earlier_versions_run_again_and_are_shown_without_their_secrets(
    own_bench: Bench, cli: Cli
) -> None:
    file = own_bench.write("s.yml", "study: s\ncommand: '[ $A_TOKEN = X ] && [ {token} = X ]'\nparams: {token: X}\n")
    own_bench.write("assay.toml", 'secret_names = ["!*"]\n')
    assert cli("run", file, "-j", "1", "--quiet").code == 1  # A_TOKEN is not set
    run = find_run(own_bench)
    for name in ("run.json", "job.sh"):
        text = (run / name).read_text().replace("$A_TOKEN", "X")
        (run / name).write_text(text.replace(" X", " plantedOld12").replace('"X"', '"plantedOld12"'))
    (own_bench.folder / "assay.toml").unlink()
    assert not (run / "secrets.sh").exists()
    assert cli("rerun", "s").code == 0
    reading = [["ls", "s"], ["show", f"s/{run.name}"], ["show", f"s/{run.name}", "--json"], ["sum", "s", "--json"]]
    printed = "".join(cli(*words).out for words in [*reading, ["index", "rebuild"], *reading])
    assert "***" in printed
    assert "plantedOld12" not in printed


def test_what_the_originals_wrote_is_tabled_without_its_secrets(own_bench: Bench, cli: Cli) -> None:
    folder = own_bench.folder / "logs/exp/one"
    folder.mkdir(parents=True)
    (folder / "hparams.json").write_text('{"lr": 0.1, "api_key": "plantedRunxOriginal1"}')
    (folder / "metrics.csv").write_text("val,accuracy,0.5,epoch,1,timestamp,1\n")
    printed = cli("sumx", "exp", "--logroot", "logs").out + cli("sum", "logs/exp", "--json").out
    assert "0.5" in printed
    assert "plantedRunxOriginal1" not in printed


# ---------------------------------------------------------------- variables that change between attempts


ENV_STUDY = """
study: e
command: 'echo "tok=$HF_TOKEN foo=$FOO new=$NEW"; exit 1'
code: live
env: {env}
"""


def test_changed_variables_reach_the_next_attempt(cli: Cli, own_bench: Bench) -> None:
    run = own_bench.root / "e" / "run"

    def attempt(env: str, *words: str) -> str:
        own_bench.write("e.yml", ENV_STUDY.replace("{env}", env))
        assert cli("run", "e.yml", "--slots", "0", *words).code == 1
        number = len(list(run.glob("outcome.*")))
        return (run / ("run.log" if number == 1 else f"run.{number}.log")).read_text()

    assert attempt("{HF_TOKEN: aaa1, FOO: one}") == "tok=aaa1 foo=one new=\n"
    assert attempt("{HF_TOKEN: bbb2, FOO: two}", "--retry", "failed") == "tok=bbb2 foo=two new=\n"
    assert attempt("{HF_TOKEN: bbb2, NEW: x}", "--force") == "tok=bbb2 foo= new=x\n"
    assert attempt("{HF_TOKEN: bbb2, NEW: x}", "--force") == "tok=bbb2 foo= new=x\n"
    kept = {path.name: path.read_text() for path in run.glob("job.*.sh")}
    assert sorted(kept) == ["job.1.sh", "job.2.sh"]
    assert [re.findall("FOO=.*", text)[0].replace("'", "") for _, text in sorted(kept.items())] == [
        "FOO=one",
        "FOO=two",
    ]
    assert not any("aaa1" in text or "bbb2" in text for text in (*kept.values(), (run / "job.sh").read_text()))
    assert [name for name, _ in json.loads((run / "run.json").read_text())["spec"]["env"]] == ["HF_TOKEN", "NEW"]
    assert attempt("{NEW: y}", "--retry", "failed") == "tok= foo= new=y\n"
    assert not (run / "secrets.sh").exists()
    assert attempt("{HF_TOKEN: ccc3, NEW: y}", "--retry", "failed") == "tok=ccc3 foo= new=y\n"


def test_a_supervisor_that_is_killed_while_it_changes_the_variables(
    cli: Cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own_bench.root / "e" / "run"
    own_bench.write("e.yml", ENV_STUDY.replace("{env}", "{FOO: one}"))
    cli("run", "e.yml", "--slots", "0")
    own_bench.write("e.yml", ENV_STUDY.replace("{env}", "{FOO: two}"))
    before = (run / "run.json").read_text()
    with monkeypatch.context() as patched:

        def fail(_record: object) -> str:
            raise OSError(28, "No space left on device")

        patched.setattr(run_directory, "render_record", fail)
        cli("run", "e.yml", "--slots", "0", "--retry", "failed")
    assert (run / "run.json").read_text() == before
    assert not (run / "lease.2").exists()
    cli("run", "e.yml", "--slots", "0", "--retry", "failed")
    assert (run / "run.2.log").read_text() == "tok= foo=two new=\n"
    assert "one" in (run / "job.1.sh").read_text()
