"""The native file: everything wrong with it is reported at once, with its place; what is right becomes a Study."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.native import KEYS, parse_native
from assay.config.source import parse_documents
from assay.errors import ConfigError
from assay.system.fast_dataclasses import replace
from assay.values.series import NUMBER, expand_number
from assay.values.study import CodePolicy, Farm, Resources, Subset

SKETCH = r"""
study: norm-ablation
commands:
  train: python train.py --data {data} --norm {norm} [lr] [early-stop] --out {run.dir}
  test:  python test.py --ckpt {run.dir}/last.pt
params: {data: cifar10, norm: batch, lr: 0.1, early-stop: false, seed: [0, 1, 2]}
sweep:
  - {norm: [new, batch], lr: [0.1, 0.05]}
  - {norm: batch, early-stop: [true, false]}
subset: {count: 20, seed: 7}
metrics:
  step: 'step (\d+)'
  loss: 'loss[= ]({number})'
resources: {gpus: 1}
timeout: 2h
retries: 1
checks: [{metric: test.accuracy, at: last, min: 0.9}]
"""


def study(text: str, path: str = "dir/f.yml"):
    return parse_native(parse_documents(text, path), path, "/place")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        study(text)
    return [str(problem) for problem in caught.value.problems]


def refused(more: str, command: str = "command: echo\n") -> str:
    return "\n".join(problems(command + more))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("comand: x\ncommand: y", "1:1 comand:", "did you mean 'command'"),
        ("params: {a: 1}", "1:1", "there is no command"),
        ("command: a\ncommands: {b: c}", "1:1 command:", "either command or commands"),
        ("command:", "1:9 command:", "must be the text of a command, not nothing"),
        ("command: [a, b]", "1:10 command:", "not a list"),
        ("command: '  '", "1:10 command:", "empty text"),
        ("command: {x} y: 3", "1:", "broken YAML"),
        ("commands: {}", "1:11 commands:", "is empty"),
        ("commands: {a b: x}", "1:12 commands.a b:", "cannot name a command"),
        ("commands: {job: x}", "1:12 commands.job:", "job.log"),
        ("commands: {a: {timeout: 1h}}", "1:12 commands.a:", "has no command"),
        ("commands: {a: {run: x, timeut: 1h}}", "1:24 commands.a.timeut:", "did you mean 'timeout'"),
        ("command: a\nparams: {x: 1}\nparams: {y: 1}", "3:1 params:", "twice"),
        ("command: a\nparams: {x: 1, x: 2}", "2:16 params.x:", "twice"),
        ("command: a\n---\ncommand: b", "3:1", "one document"),
        ("command: a 'b", "1:10 command:", "never closed"),
        ("command: a {lr}\nparams: {lt: 1}", "1:10 command:", "lr is not a parameter"),
        ("command: a [lr]", "1:10 command:", "[[lr]]"),
        ("command: a {run.dri}", "1:10 command:", "did you mean 'run.dir'"),
        ("command: a {x}\nsweep: [{x: 1}, {y: 1}]", "1:10 command:", "x has no value in the sweep at line 2"),
    ],
)
def test_what_is_wrong_with_commands(text, place, words):
    found = "\n".join(problems(text))
    assert f"dir/f.yml:{place}" in found
    assert words in found


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("study: a/b", "study: 'a/b' cannot name a study"),
        ("study: .a", "cannot name a study"),
        ("study: [a]", "study: must be a text"),
        ("repeat: 0", "repeat: must be a whole number, 1 or more, not 0"),
        ("repeat: many", "not the text 'many'"),
        ("retries: -1", "retries: must be a whole number, 0 or more"),
        ("retries: true", "retries: must be a whole number"),
        ("priority: 1.5", "priority: must be a whole number"),
        ("timeout: soon", "timeout: must be a duration"),
        ("timeout: 0", "timeout: must be a duration"),
        ("timeout: -5", "timeout: must be a duration"),
        ("timeout: 5 parsecs", "timeout: must be a duration"),
        ("resources: 3", "resources: must be a mapping"),
        ("resources: {gpu: 1}", "did you mean 'gpus'"),
        ("resources: {gpus: -1}", "resources.gpus"),
        ("resources: {cpus: 0}", "resources.cpus"),
        ("resources: {runs_per_gpu: 0}", "resources.runs_per_gpu"),
        ("resources: {gpu_memory: lots}", "resources.gpu_memory: must be a size"),
        ("slots: 3", "slots: must be a list such as"),
        ("slots: []", "slots: is an empty list"),
        ("slots: [[0]]", "slots[0]"),
        ("env: {A-B: 1}", "env.A-B: cannot name a variable"),
        ("env: {A: [1]}", "env.A: must be a single value"),
        ("env: {A: }", "env.A: must be a single value"),
        ("code: lve", "did you mean 'live'"),
        ("code: {ignor: [a]}", "did you mean 'ignore'"),
        ("code: {link_ignored: maybe}", "code.link_ignored: must be true or false"),
        ("code: {kind: 3}", "code.kind: must be one of snapshot, live"),
        ("root: [a]", "root: must be a folder"),
        ("subset: 3", "subset: must be a mapping"),
        ("subset: {seed: 3}", "subset: has no count"),
        ("subset: {count: 0}", "subset.count"),
        ("subset: {count: 3, seed: x}", "subset.seed"),
        ("params: {a: {uniform: [0, 1]}}", "a: a random axis needs a count"),
    ],
)
def test_what_is_wrong_with_a_field(more, words):
    assert words in refused(more)


@pytest.mark.needs(farms=True)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("farms: {a: {kind: slrm}}", "did you mean 'slurm'"),
        ("farms: {a: {kind: slurm, partion: x}}", "did you mean 'partition'?"),
        ("farms: {a: {kind: slurm, time: soon}}", "farms.a.time: must be a duration"),
        ("farms: {a: {kind: slurm, memory: lots}}", "farms.a.memory: must be a size"),
        ("farms: {a: {kind: slurm, nodes: 0}}", "farms.a.nodes: must be a whole number, 1 or more"),
        ("farms: {a: {kind: slurm, gpus: a100}}", "farms.a.gpus: must be a whole number, 0 or more, or TYPE:NUMBER"),
        ("farms: {a: {kind: slurm, gpus: 'a100:0'}}", "as in `a100:2`, or `1g.5gb:1` for a MIG slice"),
        ("farms: {a: {kind: slurm, gpus: -1}}", "farms.a.gpus: must be a whole number, 0 or more"),
        ("farms: {a: {kind: slurm, tasks_per_node: 0}}", "farms.a.tasks_per_node: must be a whole number, 1 or more"),
        ("farms: {a: {kind: slurm, srun_flags: [--x]}}", "farms.a.srun_flags: srun does not start the commands"),
        ("farms: {a: {kind: slurm, pack: 0}}", "farms.a.pack: must be a whole number, 1 or more"),
        ("farms: {a: {kind: slurm, pack: 4, signal: USR1@1m}}", "farms.a.pack: packed runs get no signal"),
        ("farms: {a: {kind: slurm, runtime: docker, container: x}}", "farms.a.runtime"),
        ("farms: {a: {kind: slurm, runtime: pyxis}}", "farms.a.runtime: there is no container"),
        ("farms: {a: {kind: slurm, container: [a]}}", "farms.a.container: must be a text"),
        (
            "farms: {a: {kind: slurm, container: x.sif, mounts: [data]}}",
            "farms.a.mounts: 'data' is not an absolute path",
        ),
        ("farms: {a: {kind: slurm, container: x.sif, mounts: [/a:/b:rx]}}", "farms.a.mounts: '/a:/b:rx'"),
        ("farms: {a: {kind: slurm, flags: {a: 1}}}", "farms.a.flags: must be a string or a list of strings"),
        ("farms: {a: {kind: ray, gpus: -1}}", "farms.a.gpus: must be a number, 0 or more"),
        ("farms: {a: {kind: ray, resources: {tpu: x}}}", "farms.a.resources.tpu: must be a number"),
        ("farms: {a: {kind: ssh}}", "farms.a: a farm of the kind ssh needs hosts"),
        ("farms: {a: {kind: ssh, hosts: [b], slots: {c: 2}}}", "farms.a.slots: c is not among the hosts: b"),
        ("farms: {a: {kind: ssh, hosts: [b], slots: {b: 0}}}", "farms.a.slots.b: must be a whole number, 1 or more"),
        ("farms: {a: {kind: ssh, hosts: []}}", "farms.a.hosts: does not name a host"),
        ("farms: {a: {kind: ssh, hosts: [g, -oProxyCommand=x]}}", "farms.a.hosts: '-oProxyCommand=x' is not a host"),
        ("farms: {a: {kind: ssh, hosts: [b], slots: 100000000000}}", "slots: must be a whole number, 1000 or less"),
        ("farms: {a: {kind: ssh, hosts: [b], gpus: {b: 1001}}}", "gpus.b: must be a whole number, 1000 or less"),
        ("farms: {a: {kind: ssh, hosts: [b], gpus: x}}", "farms.a.gpus: must be a whole number"),
        ("farms: {a: {kind: slurm, lost_after: soon}}", "farms.a.lost_after: must be a duration"),
        ("farms: {a: {kind: slurm, lost_after: -5m}}", "farms.a.lost_after: must be a duration"),
        ("farms: {a: {kind: ray, lost_after: 0}}", "farms.a.lost_after: must be a duration"),
        ("farms: {a: {kind: ssh, hosts: [b], lost_after: [1m]}}", "farms.a.lost_after: must be a duration"),
        ("farms: {a: {cancel: x}}", "farms.a: has neither a submit command"),
        ("farms: {a: qsub}", "farms.a: must be a mapping"),
        ("farms: {a: {submit: x, cancell: y}}", "did you mean 'cancel'"),
    ],
)
def test_what_is_wrong_with_a_farm(more, words):
    """It is kept with that farm: the study runs elsewhere."""
    found = study(f"command: x\n{more}")
    assert words in "\n".join(map(str, found.farms["a"].problems))
    assert "dir/f.yml:2:" in str(found.farms["a"].problems[0])


def test_all_problems_come_at_once_and_in_order():
    found = problems("study: a/b\ncomand: x\ntimeout: soon\nretries: -1\nparams: {a: []}\n")
    assert [line.split(" ")[0] for line in found] == [
        "dir/f.yml:1:1",
        "dir/f.yml:1:8",
        "dir/f.yml:2:1",
        "dir/f.yml:3:10",
        "dir/f.yml:4:10",
        "dir/f.yml:5:13",
    ]


def test_every_key_is_known_by_its_own_name():
    assert refused("\n".join(f"{key}x: 1" for key in KEYS)).count("unknown key") == len(KEYS)


def test_the_sketch_of_the_product_page():
    found = study(SKETCH)
    assert (found.name, found.dialect, found.source, found.folder) == ("norm-ablation", "native", "dir/f.yml", "/place")
    assert [command.name for command in found.commands] == ["train", "test"]
    first, second = found.sweeps
    assert list(first.axes) == ["data", "norm", "lr", "early-stop", "seed"]
    assert [axis.values for axis in first.axes.values()] == [
        ("cifar10",), ("new", "batch"), (0.1, 0.05), (False,), (0, 1, 2),
    ]  # fmt: skip
    assert second.axes["early-stop"].values == (True, False)
    assert found.subset == Subset(20, 7)
    assert (found.timeout_s, found.retries, found.resources) == (7200.0, 1, Resources(gpus=1))
    assert [(pattern.metric, pattern.regex[:10]) for pattern in found.metrics] == [
        ("step", r"step (\d+)"),
        ("loss", "loss[= ](["),
    ]
    assert [(check.metric, check.at, check.min, check.max) for check in found.checks] == [
        ("test.accuracy", "last", 0.9, None)
    ]


def test_the_smallest_file_is_named_by_its_path():
    found = study("command: echo hi\n", "some/where/demo.yml")
    assert found.name == "demo"
    assert [command.name for command in found.commands] == ["run"]
    assert [dict(sweep.axes) for sweep in found.sweeps] == [{}]


@pytest.mark.needs(farms=True)
def test_every_other_field():
    found = study(
        """
        study: 2024
        commands:
          a: {run: echo, timeout: 1h30m}
        repeat: 3
        priority: -2
        slots: [0, "1,2", cpu]
        env: {A: 1e-4, B: no, C: ''}
        code: {ignore: ['*.pt', data], link_ignored: false}
        root: ../out
        on: big
        farms: {big: {submit: 'qsub {script}', cancel: 'qdel {id}', remote_root: /r}}
        resources: {gpus: 2, cpus: 4, gpu_memory: 10GB, runs_per_gpu: 3}
        """
    )
    assert found.name == "2024"
    assert found.commands[0].timeout_s == 5400
    assert (found.repeat, found.priority, found.slots) == (3, -2, ("0", "1,2", "cpu"))
    assert found.env == (("A", "1e-4"), ("B", "no"), ("C", ""))
    assert found.code == CodePolicy("snapshot", ("*.pt", "data"), link_ignored=False)
    assert found.root == "/place/out"
    assert found.farm == "big"
    big = replace(found.farms["big"], position=None)
    assert big == Farm("big", "template", "qsub {script}", remote_root="/r", cancel="qdel {id}")
    assert found.resources == Resources(2, 4, 10_000_000_000, 3)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("params: {lr: 1, min_lr: '{lr}'}", [("min_lr", "{lr}", 2)]),
        ("params:\n  lr: 1\n  b: [x, 'a{lr}{lr}/{run.dir}']", [("b", "{lr}", 4), ("b", "{run.dir}", 4)]),
        ("params: {lr: 1, b: [['{lr}', 2]]}", [("b", "{lr}", 2)]),
        ("params: {lr: 1}\nsweep: [{b: '{lr}'}, {c: '{b}', d: '{c}'}]", [("b", "{lr}", 3), ("d", "{c}", 3)]),
        ("params: {lr: 1}\nenv: {A: '{lr}', B: '{x}'}", [("env.A", "{lr}", 3)]),
        ("params: {lr: 1, b: ['{{lr}}', '${lr}', '{x}', '{lr', 'lr'], c: {range: 3}}", []),
    ],
)
def test_a_value_that_names_a_parameter_in_braces_gives_a_warning(more, found):
    warnings = study("command: echo\n" + more).warnings
    assert [(each.key, each.message.split()[0], each.position.line) for each in warnings] == found


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.1, 0.2", "for 2 values write [0.1, 0.2]"),
        ("-1,2e3,.5", "for 3 values write [-1,2e3,.5]"),
        ("0..3", "for a range write {range: [0, 4]}"),
        ("3 .. -1", "for a range write {range: [-1, 4]}"),
        ("1e-3..1e-1", "for a range write {uniform: [1e-3, 1e-1]}"),
        ("range:3", "for a range write {range: 3}"),
    ],
)
def test_a_text_that_looks_like_several_numbers_gives_a_warning(text, meant):
    (found,) = study(f"command: echo\nparams:\n  lr: {text}\n").warnings
    assert str(found).startswith(f"dir/f.yml:3:7 params.lr: {text!r} is one text\n    {meant};")
    for other in (f"'{text}'", meant.partition(" write ")[2]):
        assert not study(f"command: echo\nparams:\n  lr: {other}\nsubset: {{count: 1}}\n").warnings


@pytest.mark.parametrize("text", ["1:30", "a, b", "1, b", "../3", "1..", "range:a", "2024-01-02", "1.2.3"])
def test_another_text_gives_no_warning(text):
    assert not study(f"command: echo\nparams:\n  lr: {text}\n").warnings


def test_code_may_be_live_in_a_word():
    assert study("command: a\ncode: live\n").code == CodePolicy("live")


def test_a_flag_may_be_missing_in_one_sweep():
    found = study("command: a [x]\nsweep: [{x: 1}, {y: 1}]\n")
    assert [list(sweep.axes) for sweep in found.sweeps] == [["x"], ["y"]]


@pytest.mark.parametrize("count", [1, 6, 50])
def test_another_kind_of_file_is_refused_once(count):
    found = problems("".join(f"qq{number}: secret\n" for number in range(count)))
    assert len(found) == 1
    assert found[0].startswith("dir/f.yml:1:1 this does not look like a study file: it has the unknown keys 'qq0'")
    assert found[0].count("qq") == min(count, 3)
    assert "command: python train.py" in found[0]


def test_many_unknown_keys_beside_known_ones():
    text = "study: x\ncommand: a\n"
    few, many = ("".join(f"qq{number}: 1\n" for number in range(count)) for count in (5, 6))
    assert [line.count("unknown key") for line in problems(text + few)] == [1] * 5
    assert len(problems(text + many)) == 1


def test_slips_are_named_one_by_one_even_when_nothing_else_is_there():
    assert "Comand: unknown key\n    did you mean 'command'" in refused("Comand: x", command="")


HEAD = "commands: {train: a, test: b}\n"


def metric_study(text: str):
    return parse_native(parse_documents(HEAD + text, "f.yml"), "f.yml", "/work")


def metric_refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        metric_study(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("metrics: 3", "2:10 metrics:", "must be a mapping"),
        ("metrics: {}", "2:10 metrics:", "is empty"),
        (
            "metrics: {a: '('}",
            "2:14 metrics.a:",
            "the regular expression is broken: missing ), unterminated subpattern at position 0 in '('",
        ),
        ("metrics: {a: 'loss'}", "2:14 metrics.a:", "the pattern has no group"),
        ("metrics: {a: []}", "2:14 metrics.a:", "empty list"),
        ("metrics: {a: ['(x)', 'y']}", "2:22 metrics.a[1]:", "no group"),
        ("metrics: {a: }", "metrics.a:", "must be a regular expression, not nothing"),
        ("metrics: {a: {}}", "metrics.a:", "give one of regex"),
        ("metrics: {a: {regex: (a), jsonl: b}}", "metrics.a:", "give one of regex"),
        ("metrics: {a: {regx: (a)}}", "metrics.a.regx:", "did you mean 'regex'"),
        ("metrics: {a: {regex: (a)(b), labels: [x]}}", "metrics.a.regex:", "1 labels for 2 groups"),
        ("metrics: {a: {regex: (a), command: tset}}", "metrics.a.command:", "did you mean 'test'"),
        ("metrics: {a: {regex: (a), step: s}}", "metrics.a.step:", "goes with jsonl"),
        ("metrics: {a: {csv: x, labels: [b]}}", "metrics.a.labels:", "does not go with csv"),
        ("metrics: {a: {jsonl: /x}}", "metrics.a.jsonl:", "inside the run's directory"),
        ("metrics: {a: {jsonl: ../x}}", "metrics.a.jsonl:", "inside the run's directory"),
        ("metrics: {a: {jsonl: [x]}}", "metrics.a.jsonl:", "must be a path"),
        ("checks: 3", "2:9 checks:", "must be a list of checks"),
        ("checks: []", "2:9 checks:", "empty list"),
        ("checks: [a]", "checks[0]:", "must be a mapping"),
        ("checks: [{max: 1}]", "checks[0]:", "has no metric"),
        ("checks: [{metric: a}]", "checks[0]:", "has no bound"),
        ("checks: [{metric: a, min: 2, max: 1}]", "checks[0]:", "nothing can pass"),
        ("checks: [{metric: a, min: x}]", "checks[0].min:", "must be a number"),
        ("checks: [{metric: a, max: .nan}]", "checks[0].max:", "must be a number"),
        ("checks: [{metric: a, max: 1, at: lst}]", "checks[0].at:", "did you mean 'last'"),
        ("checks: [{metric: a, max: 1, att: last}]", "checks[0].att:", "did you mean 'at'"),
    ],
)
def test_what_is_wrong(text, place, words):
    found = metric_refused(text)
    assert place in found
    assert words in found


def test_every_form_of_a_metric():
    found = metric_study(
        "metrics:\n"
        "  a: 'a=(.*)'\n"
        "  b: ['x (.)', 'y (.)']\n"
        "  c: {regex: '(.)/(.)', labels: [p, q], command: test}\n"
        "  d: {jsonl: 'm/*.jsonl', step: it}\n"
        "  e: {csv: m.csv}\n"
        "  f: {tensorboard: .}\n"
    ).metrics
    shown = [
        (m.metric, m.regex, m.labels, m.command) if hasattr(m, "regex") else (m.kind, m.path, m.step) for m in found
    ]
    assert shown == [
        ("a", "a=(.*)", (), None),
        ("b", "x (.)", (), None),
        ("b", "y (.)", (), None),
        ("c", "(.)/(.)", ("p", "q"), "test"),
        ("jsonl", "m/*.jsonl", "it"),
        ("csv", "m.csv", None),
        ("tensorboard", ".", None),
    ]


def test_checks():
    found = metric_study("checks: [{metric: a, max: 1}, {metric: b, at: best, min: 0, max: 0}]").checks
    assert [(check.metric, check.at, check.min, check.max) for check in found] == [
        ("a", "last", None, 1),
        ("b", "best", 0, 0),
    ]


@pytest.mark.parametrize(
    "text", ["1", "-1", "+1.5", ".5", "5.", "1e-4", "2E+10", "nan", "NaN", "inf", "-Inf", "Infinity"]
)
def test_a_number_pattern_takes_every_spelling(text):
    match = re.fullmatch(NUMBER, text)
    assert match
    float(match.group())


@pytest.mark.parametrize("text", ["", "-", "e5", "abc", "."])
def test_a_number_pattern_takes_nothing_else(text):
    assert re.fullmatch(NUMBER, text) is None


@given(st.floats())
def test_every_float_is_found_whole(number):
    match = re.search(expand_number("loss={number}"), f"loss={number!r}, next")
    assert match
    found = float(match[1])
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_a_number_without_a_group_gets_one_but_a_grouped_one_keeps_its_own():
    assert re.compile(expand_number("loss={number}")).groups == 1
    assert re.compile(expand_number("loss=({number})")).groups == 1
    assert re.compile(expand_number("(?P<a>{number})/{number}")).groups == 1


def test_resume_names_the_parameter_that_takes_a_checkpoint():
    found = study("command: x [init] {a}\nparams: {a: 1}\nresume: init\n").resume
    assert found is not None
    assert found.param == "init"
    assert "**/*.pt" in found.files
    found = study("command: x [init]\nresume: {param: init, files: 'ckpt/*.bin'}\n").resume
    assert found is not None
    assert found.files == ("ckpt/*.bin",)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("command: x {a}\nparams: {a: 1}\nresume: init\n", "no command takes 'init'"),
        ("command: x [init]\nresume: {files: x}\n", "has no `param`"),
        ("command: x [init]\nresume: {param: init, files: ../x}\n", "inside the run's directory"),
        ("command: x [init]\nresume: {param: init, file: x}\n", "did you mean 'files'?"),
        ("command: x [init]\nresume: {param: init, files: []}\n", "does not name checkpoints"),
        ("command: x [init]\nresume: [init]\n", "must be the name of a parameter"),
        ("command: x {init}\nresume: init\n", "init has no value"),
    ],
)
def test_a_bad_resume_is_refused(text, part):
    assert any(part in problem for problem in problems(text))
