"""The convergence harness's YAML: what it becomes, what it warns about, and every mistake with its place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from tests.golden_training import CONFIG

from assay.config.source import parse_documents
from assay.errors import ConfigError
from assay.golden.harness_file import looks_like_convergence, parse_convergence
from assay.golden.values import FlagSpec, GoldenTest, MissingFlag, MissingOption, MissingSection
from assay.values.study import Problem

DOCUMENT = r"""
bert:
    directory: "applications/bert"
    executable:
        - "python3"
        - "bert.py"
    log_output: "stdout"
    log_parsing:
        step_num:
            regex: "Iteration:\\s+(\\d+)"
        model_save:
            regex: "Saving model to: ([^\\s+]+)"
        loss:
            regex: "Loss\\s+\\(MLM\\s+NSP\\):\\s+([\\d\\.]+)\\s+([\\d\\.]+)"
            labels:
                - MLM
                - NSP
    metrics:
        loss:
            margin: 0.1
            comparison: "<="
    recording:
        steps_to_record_after_save: 3
    flags:
        common:
            log_steps:
                key: "--steps-per-log"
                value: 1
            config:
                key: "--config"
                value: "configs/demo.json"
        gather:
            checkpoint_output:
                set_in_script: true
                key: "--checkpoint-dir"
            misc:
                save_interval:
                    key: "--epochs-per-save"
                    value: 5
                epochs_to_run:
                    key: "--epochs"
                    value: 200
        run:
            checkpoint_input:
                key: "--onnx-checkpoint"
                set_in_script: true
            start_step:
                key: "--continue-training-from-epoch"
                set_in_script: true
            run_for:
                key: "--epochs"
                set_in_script: true
            misc:
                engine_cache:
                    key: "--engine-cache"
                    value: "__demo_runtest_engine_cache"
"""


def parse(text: str, needs: Any = ("gather", "run")) -> tuple[tuple[GoldenTest, ...], tuple[Problem, ...]]:
    return parse_convergence(parse_documents(text, "c.yml", flavour="originals"), needs)


def config(change: Any = None) -> str:
    test = copy.deepcopy(CONFIG)
    if change:
        change(test)
    return yaml.safe_dump({"demo": test}, sort_keys=False)


def put(value: Any, *path: str) -> Any:
    def change(test: Any) -> None:
        for key in path[:-1]:
            test = test[key]
        test[path[-1]] = value

    return change


def drop(*path: str) -> Any:
    def change(test: Any) -> None:
        for key in path[:-1]:
            test = test[key]
        del test[path[-1]]

    return change


def problems(text: str, needs: Any = ("gather", "run")) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(text, needs)
    return list(caught.value.problems)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what it becomes


def test_the_documents_example() -> None:
    (test,), warnings = parse(DOCUMENT)
    assert not warnings
    assert (test.name, test.directory, test.executable) == ("bert", "applications/bert", ("python3", "bert.py"))
    assert (test.stream, test.steps_to_record, test.same_line, test.replicas) == ("stdout", 3, True, 0)
    assert test.step.regex == r"Iteration:\s+(\d+)"
    assert test.save.regex == r"Saving model to: ([^\s+]+)"
    (loss,) = test.metrics
    assert (loss.metric, loss.labels) == ("loss", ("MLM", "NSP"))
    (rule,) = test.rules
    assert (rule.metric, rule.kind, rule.operator, rule.margin, rule.labels) == (
        "loss",
        "margin",
        "<=",
        0.1,
        ("MLM", "NSP"),
    )
    assert test.gather_flags == (
        FlagSpec("checkpoint_output", "--checkpoint-dir", is_set=True),
        FlagSpec("save_interval", "--epochs-per-save", "5"),
        FlagSpec("epochs_to_run", "--epochs", "200"),
        FlagSpec("log_steps", "--steps-per-log", "1"),
        FlagSpec("config", "--config", "configs/demo.json"),
    )
    assert [flag.key for flag in test.run_flags] == [
        "--onnx-checkpoint", "--continue-training-from-epoch", "--epochs", "--engine-cache", "--steps-per-log", "--config",
    ]  # fmt: skip


def test_the_order_of_flags_is_ours_whatever_the_files() -> None:
    def change(test: Any) -> None:
        run = test["flags"]["run"]
        test["flags"]["run"] = {"misc": {"x": {"key": "-x"}}, **dict(reversed(list(run.items())))}

    (test,), _ = parse(config(change))
    assert [flag.name for flag in test.run_flags] == ["checkpoint_input", "start_step", "run_for", "x"]


def test_every_top_level_name_is_a_test() -> None:
    text = yaml.safe_dump({"one": CONFIG, "two": CONFIG, "three": CONFIG}, sort_keys=False)
    assert [test.name for test in parse(text)[0]] == ["one", "two", "three"]


def test_the_stream_may_be_left_out_and_so_may_the_folder() -> None:
    (test,), _ = parse(config(lambda test: (drop("log_output")(test), drop("directory")(test))))
    assert (test.stream, test.directory) == ("stdout", None)


def test_a_parser_that_no_metric_uses_is_legal() -> None:
    (test,), warnings = parse(config(put({"regex": "Acc: (.+)"}, "log_parsing", "acc")))
    assert [pattern.metric for pattern in test.metrics] == ["loss", "acc"]
    assert not warnings


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (0.5, "0.5"), (True, "True"), ("a b", "a b"), ("", ""), (None, None)]
)
def test_values_are_texts_as_the_original_passed_them(value: Any, text: str | None) -> None:
    (test,), _ = parse(config(put({"key": "--x", "value": value}, "flags", "common", "x")))
    assert test.gather_flags[-1] == FlagSpec("x", "--x", text)


def test_numbers_that_yaml_reads_as_text_are_margins_too() -> None:
    (test,), _ = parse(config().replace("margin: 0.05", "margin: 1e-4"))
    assert test.rules[0].margin == 1e-4


def test_the_flags_of_a_mode_that_is_not_used_may_be_missing() -> None:
    (test,), warnings = parse(config(drop("flags", "run", "run_for")), ("gather",))
    assert [flag.name for flag in test.run_flags if flag.is_set] == ["checkpoint_input", "start_step"]
    assert "checking will need it" in warnings[0].message
    (test,), warnings = parse(config(put({}, "flags", "gather")), ("run",))
    assert not any(flag.is_set for flag in test.gather_flags)
    assert "gathering will need it" in warnings[0].message


def test_it_is_recognised_by_its_content() -> None:
    assert looks_like_convergence(parse_documents(config(), "c.yml"))
    assert not looks_like_convergence(parse_documents("study: x\ncommand: y\n", "c.yml"))


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (put(["a", "b"], "log_parsing", "loss", "labels"), "demo.log_parsing.loss.labels", "2 labels for 1 groups"),
        (put({"margin": 1, "comparison": "=="}, "metrics", "acc"), "demo.metrics.acc", "no parser reads this metric"),
        (put(0, "metrics", "loss", "margin"), "demo.metrics.loss.margin", "a margin of 0"),
        (put({"key": "--x", "help": "y"}, "flags", "common", "x"), "demo.flags.common.x.help", "unknown key"),
        (put({"key": "--x", "value": 1}, "flags", "gather", "x"), "demo.flags.gather.x", "this flag is ignored"),
        (put(1, "flags", "run", "run_for", "value"), "demo.flags.run.run_for", "decided by the harness"),
        (put(1, "colour"), "demo.colour", "unknown key"),
        (
            put({"key": "--n", "value": 9, "set_in_script": False}, "flags", "run", "run_for"),
            "demo.flags.run.run_for",
            "replaces ours",
        ),
        (
            put({"key": "--x", "set_in_script": True}, "flags", "common", "x"),
            "demo.flags.common.x.set_in_script",
            "nothing sets this flag: it is left out",
        ),
    ],
)
def test_the_originals_format_warns_where_the_original_went_on(change: Any, key: str, words: str) -> None:
    (_,), warnings = parse(config(change))
    (warning,) = warnings
    assert warning.key == key
    assert words in warning.message
    assert warning.position is not None
    assert warning.position.file == "c.yml"


def test_labels_that_do_not_fit_are_not_used() -> None:
    (test,), _ = parse(config(put(["a", "b"], "log_parsing", "loss", "labels")))
    assert test.metrics[0].labels == ()
    assert test.rules[0].labels == ()


def test_a_key_given_twice_warns_and_the_last_counts() -> None:
    text = config().replace("  recording:\n", "  recording:\n    steps_to_record_after_save: 2\n")
    (test,), warnings = parse(text)
    assert test.steps_to_record == 4
    assert "twice" in warnings[0].message


@pytest.mark.parametrize("mode", ["gather", "run"])
def test_set_in_script_on_a_flag_under_misc_leaves_the_flag_out(mode: str) -> None:
    flags = {"x": {"key": "--x", "value": 5, "set_in_script": True}, "y": {"key": "--y", "value": 6}}
    (test,), _ = parse(config(put(flags, "flags", mode, "misc")))
    found = test.gather_flags if mode == "gather" else test.run_flags
    assert [flag.key for flag in found if not flag.is_set] == ["--y"]


def test_a_fixed_value_replaces_ours() -> None:
    change = put({"key": "--n", "value": 9, "set_in_script": False}, "flags", "run", "run_for")
    (test,), _ = parse(config(change))
    assert FlagSpec("run_for", "--n", "9") in test.run_flags


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("change", "kind", "key", "words"),
    [
        (drop("executable"), MissingOption, "demo", "the section executable is missing"),
        (drop("log_parsing"), MissingOption, "demo", "the section log_parsing is missing"),
        (drop("metrics"), MissingOption, "demo", "the section metrics is missing"),
        (drop("recording"), MissingOption, "demo", "the section recording is missing"),
        (drop("flags"), MissingOption, "demo", "the section flags is missing"),
        (drop("flags", "gather"), MissingSection, "demo.flags", "the section gather is missing"),
        (drop("flags", "run"), MissingSection, "demo.flags", "the section run is missing"),
        (drop("flags", "gather", "checkpoint_output"), MissingFlag, "demo.flags.gather", "checkpoint_output"),
        (drop("flags", "run", "checkpoint_input"), MissingFlag, "demo.flags.run", "checkpoint_input"),
        (drop("flags", "run", "start_step"), MissingFlag, "demo.flags.run", "start_step"),
        (drop("flags", "run", "run_for"), MissingFlag, "demo.flags.run", "run_for"),
        (drop("flags", "run", "run_for", "key"), MissingFlag, "demo.flags.run.run_for", "has no `key`"),
        (drop("log_parsing", "step_num"), MissingOption, "demo.log_parsing", "the parser step_num is missing"),
        (drop("log_parsing", "model_save"), MissingOption, "demo.log_parsing", "the parser model_save is missing"),
        (drop("log_parsing", "loss", "regex"), MissingOption, "demo.log_parsing.loss", "has no `regex`"),
        (drop("metrics", "loss", "margin"), MissingOption, "demo.metrics.loss", "has no `margin`"),
        (drop("metrics", "loss", "comparison"), MissingOption, "demo.metrics.loss", "has no `comparison`"),
        (drop("recording", "steps_to_record_after_save"), MissingOption, "demo.recording", "is missing"),
        (put("Loss: (", "log_parsing", "loss", "regex"), Problem, "demo.log_parsing.loss.regex", "is broken"),
        (put("Loss", "log_parsing", "loss", "regex"), Problem, "demo.log_parsing.loss.regex", "has no group"),
        (put("Step", "log_parsing", "step_num", "regex"), Problem, "demo.log_parsing.step_num.regex", "has no group"),
        (put("=>", "metrics", "loss", "comparison"), Problem, "demo.metrics.loss.comparison", "must be one of"),
        (put(-0.1, "metrics", "loss", "margin"), Problem, "demo.metrics.loss.margin", "0 or more"),
        (put("much", "metrics", "loss", "margin"), Problem, "demo.metrics.loss.margin", "0 or more"),
        (put(float("nan"), "metrics", "loss", "margin"), Problem, "demo.metrics.loss.margin", "0 or more"),
        (put(True, "metrics", "loss", "margin"), Problem, "demo.metrics.loss.margin", "0 or more"),
        (put({}, "metrics"), Problem, "demo.metrics", "is empty"),
        (
            put(0, "recording", "steps_to_record_after_save"),
            Problem,
            "demo.recording.steps_to_record_after_save",
            "1 or more",
        ),
        (
            put("x", "recording", "steps_to_record_after_save"),
            Problem,
            "demo.recording.steps_to_record_after_save",
            "whole number",
        ),
        (put("both", "log_output"), Problem, "demo.log_output", "must be one of stdout, stderr"),
        (put([], "executable"), Problem, "demo.executable", "empty list"),
        (
            put({"key": "--x", "value": [1]}, "flags", "common", "x"),
            Problem,
            "demo.flags.common.x.value",
            "a single value",
        ),
        (put([], "flags", "common"), Problem, "demo.flags.common", "a mapping of flags"),
        (put(5, "flags", "gather"), Problem, "demo.flags.gather", "a mapping of flags"),
    ],
)
def test_every_mistake_has_its_position(change: Any, kind: type[Problem], key: str, words: str) -> None:
    (problem,) = problems(config(change))
    assert type(problem) is kind
    assert problem.key == key
    assert words in problem.message
    assert problem.position is not None
    assert problem.position.line >= 1


def test_all_mistakes_are_reported_at_once() -> None:
    def change(test: Any) -> None:
        put("=>", "metrics", "loss", "comparison")(test)
        put("(", "log_parsing", "loss", "regex")(test)
        drop("flags", "run", "run_for")(test)

    found = problems(config(change))
    assert len(found) == 3
    assert [problem.position.line for problem in found if problem.position] == sorted(
        p.position.line for p in found if p.position
    )


@pytest.mark.parametrize("text", ["demo: 5\n", "demo: [1]\n", "demo:\n"])
def test_a_test_that_is_no_mapping(text: str) -> None:
    assert "must be a test" in problems(text)[0].message


@pytest.mark.parametrize("name", ["a/b", ".hidden", "../up"])
def test_a_name_that_cannot_be_a_file(name: str) -> None:
    assert "cannot name a test" in problems(yaml.safe_dump({name: CONFIG}))[0].message


def test_a_second_document_is_refused() -> None:
    assert "one document" in problems(config() + "---\n" + config())[0].message
