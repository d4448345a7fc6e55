"""The convergence harness's YAML: the tests that it becomes, its warnings, and every mistake with its position."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.golden_training import CONFIG

from assay.config.source import parse_documents
from assay.errors import ConfigError
from assay.golden.harness_file import looks_like_convergence, parse_convergence
from assay.golden.values import FlagSpec, GoldenTest, MissingFlag, MissingOption, MissingSection
from assay.values.study import Problem

Change = Callable[[Any], None]
DOCUMENT = r"""
bert:
    directory: "applications/bert"
    executable: ["python3", "bert.py"]
    log_output: "stdout"
    log_parsing:
        step_num: {regex: "Iteration:\\s+(\\d+)"}
        model_save: {regex: "Saving model to: ([^\\s+]+)"}
        loss:
            regex: "Loss\\s+\\(MLM\\s+NSP\\):\\s+([\\d\\.]+)\\s+([\\d\\.]+)"
            labels: [MLM, NSP]
    metrics:
        loss: {margin: 0.1, comparison: "<="}
    recording:
        steps_to_record_after_save: 3
    flags:
        common:
            log_steps: {key: "--steps-per-log", value: 1}
            config: {key: "--config", value: "configs/demo.json"}
        gather:
            checkpoint_output: {set_in_script: true, key: "--checkpoint-dir"}
            misc:
                save_interval: {key: "--epochs-per-save", value: 5}
                epochs_to_run: {key: "--epochs", value: 200}
        run:
            checkpoint_input: {key: "--onnx-checkpoint", set_in_script: true}
            start_step: {key: "--continue-training-from-epoch", set_in_script: true}
            run_for: {key: "--epochs", set_in_script: true}
            misc:
                engine_cache: {key: "--engine-cache", value: "__demo_runtest_engine_cache"}
"""


def parse(text: str, needs: Any = ("gather", "run")) -> tuple[tuple[GoldenTest, ...], tuple[Problem, ...]]:
    return parse_convergence(parse_documents(text, "c.yml", flavour="originals"), needs)


def config(*changes: Change) -> str:
    test = copy.deepcopy(CONFIG)
    for change in changes:
        change(test)
    return yaml.safe_dump({"demo": test}, sort_keys=False)


def put(value: Any, path: str) -> Change:
    """Put another value at keys that are separated by spaces; `...`: remove it."""

    def change(test: Any) -> None:
        *keys, last = path.split()
        for key in keys:
            test = test[key]
        test[last] = value
        if value is ...:
            del test[last]

    return change


def drop(path: str) -> Change:
    return put(..., path)


def problems(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return list(caught.value.problems)  # type: ignore[arg-type]


def test_the_documents_example() -> None:
    (test,), warnings = parse(DOCUMENT)
    assert not warnings
    assert (test.name, test.directory, test.executable) == ("bert", "applications/bert", ("python3", "bert.py"))
    assert (test.stream, test.steps_to_record, test.same_line, test.replicas) == ("stdout", 3, True, 0)
    assert test.step.regex == r"Iteration:\s+(\d+)"
    assert test.save.regex == r"Saving model to: ([^\s+]+)"
    (loss,), (rule,) = test.metrics, test.rules
    assert (loss.metric, loss.labels) == ("loss", ("MLM", "NSP"))
    assert (rule.metric, rule.kind, rule.operator, rule.margin) == ("loss", "margin", "<=", 0.1)
    assert rule.labels == loss.labels
    assert test.gather_flags == (
        FlagSpec("checkpoint_output", "--checkpoint-dir", is_set=True),
        FlagSpec("save_interval", "--epochs-per-save", "5"),
        FlagSpec("epochs_to_run", "--epochs", "200"),
        FlagSpec("log_steps", "--steps-per-log", "1"),
        FlagSpec("config", "--config", "configs/demo.json"),
    )
    keys = "--onnx-checkpoint --continue-training-from-epoch --epochs --engine-cache --steps-per-log --config"
    assert [flag.key for flag in test.run_flags] == keys.split()


def test_the_order_of_flags_is_ours_whatever_the_files_and_every_name_is_a_test() -> None:
    run = {"misc": {"x": {"key": "-x"}}, **dict(reversed(list(CONFIG["flags"]["run"].items())))}
    (test,), _ = parse(config(put(run, "flags run")))
    assert [flag.name for flag in test.run_flags] == ["checkpoint_input", "start_step", "run_for", "x"]
    text = yaml.safe_dump({"one": CONFIG, "two": CONFIG, "three": CONFIG}, sort_keys=False)
    assert [test.name for test in parse(text)[0]] == ["one", "two", "three"]
    assert looks_like_convergence(parse_documents(text, "c.yml"))
    assert not looks_like_convergence(parse_documents("study: x\ncommand: y\n", "c.yml"))


def test_what_may_be_left_out_or_written_in_another_way_also_in_a_mode_that_is_not_used() -> None:
    (test,), warnings = parse(config(drop("log_output"), drop("directory")))
    assert (test.stream, test.directory, warnings) == ("stdout", None, ())
    (test,), warnings = parse(config(put({"regex": "Acc: (.+)"}, "log_parsing acc")))
    assert ([pattern.metric for pattern in test.metrics], warnings) == (["loss", "acc"], ()), "no metric uses it"
    values = {7: "7", 0.5: "0.5", True: "True", "a b": "a b", "": "", None: None}
    for value, text in values.items():
        (test,), _ = parse(config(put({"key": "--x", "value": value}, "flags common x")))
        assert test.gather_flags[-1] == FlagSpec("x", "--x", text), "as the original passed it"
    (test,), _ = parse(config().replace("margin: 0.05", "margin: 1e-4"))
    assert test.rules[0].margin == 1e-4, "YAML reads it as a text"
    (test,), warnings = parse(config(drop("flags run run_for")), ("gather",))
    assert [flag.name for flag in test.run_flags if flag.is_set] == ["checkpoint_input", "start_step"]
    assert "checking will need it" in warnings[0].message
    (test,), warnings = parse(config(put({}, "flags gather")), ("run",))
    assert not any(flag.is_set for flag in test.gather_flags)
    assert "gathering will need it" in warnings[0].message


FIXED = {"key": "--n", "value": 9, "set_in_script": False}
SET = {"key": "--x", "value": 5, "set_in_script": True}


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (put(["a", "b"], "log_parsing loss labels"), "log_parsing.loss.labels", "2 labels for 1 groups"),
        (put({"margin": 1, "comparison": "=="}, "metrics acc"), "metrics.acc", "no parser reads this metric"),
        (put(0, "metrics loss margin"), "metrics.loss.margin", "a margin of 0"),
        (put({"key": "--x", "help": "y"}, "flags common x"), "flags.common.x.help", "unknown key"),
        (put({"key": "--x", "value": 1}, "flags gather x"), "flags.gather.x", "this flag is ignored"),
        (put(1, "flags run run_for value"), "flags.run.run_for", "decided by the harness"),
        (put(1, "colour"), "colour", "unknown key"),
        (put(FIXED, "flags run run_for"), "flags.run.run_for", "replaces ours"),
        (put(SET, "flags common x"), "flags.common.x.set_in_script", "nothing sets this flag: it is left out"),
    ],
)
def test_the_originals_format_warns_where_the_original_went_on(change: Change, key: str, words: str) -> None:
    (_,), (warning,) = parse(config(change))
    assert (warning.key, words in warning.message) == (f"demo.{key}", True)
    assert warning.position is not None
    assert warning.position.file == "c.yml"


def test_what_a_warning_is_about_has_an_effect() -> None:
    (test,), _ = parse(config(put(["a", "b"], "log_parsing loss labels")))
    assert test.metrics[0].labels == test.rules[0].labels == (), "labels that do not fit are not used"
    text = config().replace("  recording:\n", "  recording:\n    steps_to_record_after_save: 2\n")
    (test,), warnings = parse(text)
    assert test.steps_to_record == 4, "of a key given twice the last counts"
    assert "twice" in warnings[0].message
    misc = {"x": SET, "y": {"key": "--y", "value": 6}}
    (test,), _ = parse(config(put(misc, "flags gather misc"), put(misc, "flags run misc")))
    for flags in (test.gather_flags, test.run_flags):
        assert [flag.key for flag in flags if not flag.is_set] == ["--y"]
    (test,), _ = parse(config(put(FIXED, "flags run run_for")))
    assert FlagSpec("run_for", "--n", "9") in test.run_flags


@pytest.mark.parametrize(
    ("change", "kind", "key", "words"),
    [
        *(
            (drop(section), MissingOption, "", f"the section {section} is missing")
            for section in ("executable", "log_parsing", "metrics", "recording", "flags")
        ),
        (drop("flags gather"), MissingSection, ".flags", "the section gather is missing"),
        (drop("flags run"), MissingSection, ".flags", "the section run is missing"),
        (drop("flags gather checkpoint_output"), MissingFlag, ".flags.gather", "checkpoint_output"),
        (drop("flags run checkpoint_input"), MissingFlag, ".flags.run", "checkpoint_input"),
        (drop("flags run start_step"), MissingFlag, ".flags.run", "start_step"),
        (drop("flags run run_for"), MissingFlag, ".flags.run", "run_for"),
        (drop("flags run run_for key"), MissingFlag, ".flags.run.run_for", "has no `key`"),
        (drop("log_parsing step_num"), MissingOption, ".log_parsing", "the parser step_num is missing"),
        (drop("log_parsing model_save"), MissingOption, ".log_parsing", "the parser model_save is missing"),
        (drop("log_parsing loss regex"), MissingOption, ".log_parsing.loss", "has no `regex`"),
        (drop("metrics loss margin"), MissingOption, ".metrics.loss", "has no `margin`"),
        (drop("metrics loss comparison"), MissingOption, ".metrics.loss", "has no `comparison`"),
        (drop("recording steps_to_record_after_save"), MissingOption, ".recording", "is missing"),
        (put("Loss: (", "log_parsing loss regex"), Problem, ".log_parsing.loss.regex", "is broken"),
        (put("Loss", "log_parsing loss regex"), Problem, ".log_parsing.loss.regex", "has no group"),
        (put("Step", "log_parsing step_num regex"), Problem, ".log_parsing.step_num.regex", "has no group"),
        (put("=>", "metrics loss comparison"), Problem, ".metrics.loss.comparison", "must be one of"),
        *(
            (put(margin, "metrics loss margin"), Problem, ".metrics.loss.margin", "0 or more")
            for margin in (-0.1, "much", float("nan"), True)
        ),
        (put({}, "metrics"), Problem, ".metrics", "is empty"),
        *(
            (put(value, f"recording {key}"), Problem, f".recording.{key}", words)
            for key in ("steps_to_record_after_save",)
            for value, words in ((0, "1 or more"), ("x", "whole number"))
        ),
        (put("both", "log_output"), Problem, ".log_output", "must be one of stdout, stderr"),
        (put([], "executable"), Problem, ".executable", "empty list"),
        (put("python3 train.py", "executable"), Problem, ".executable", "not a string"),
        (put({"key": "-x", "value": [1]}, "flags common x"), Problem, ".flags.common.x.value", "a single value"),
        (put([], "flags common"), Problem, ".flags.common", "a mapping of flags"),
        (put(5, "flags gather"), Problem, ".flags.gather", "a mapping of flags"),
    ],
)
def test_every_mistake_has_its_position(change: Change, kind: type[Problem], key: str, words: str) -> None:
    (problem,) = problems(config(change))
    assert (type(problem), problem.key, words in problem.message) == (kind, f"demo{key}", True), problem
    assert problem.position is not None
    assert problem.position.line >= 1


def test_all_mistakes_are_reported_at_once_and_what_is_not_a_file_of_tests() -> None:
    changes = put("=>", "metrics loss comparison"), put("(", "log_parsing loss regex"), drop("flags run run_for")
    found = [problem.position.line for problem in problems(config(*changes)) if problem.position]
    assert len(found) == 3
    assert found == sorted(found)
    for text in ("demo: 5\n", "demo: [1]\n", "demo:\n"):
        assert "must be a test" in problems(text)[0].message
    for name in ("a/b", ".hidden", "../up"):
        assert "cannot name a test" in problems(yaml.safe_dump({name: CONFIG}))[0].message
    assert "one document" in problems(config() + "---\n" + config())[0].message
