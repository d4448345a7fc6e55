"""The `golden:` section of a native study, which kind of file is which, and every golden file in the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.golden_training import NATIVE, Lab

from assay.errors import ConfigError, UsageError
from assay.golden import config
from assay.golden.config import load_golden_file
from assay.golden.values import Fault, FlagSpec, GoldenTest, Rule, Variant


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native study runs where it is called."""
    monkeypatch.chdir(tmp_path)


def load(tmp_path: Path, text: str) -> GoldenTest:
    (tmp_path / "g.yml").write_text(text)
    file = load_golden_file("g.yml")
    assert file.dialect == "native"
    assert file.study is not None
    return file.tests[0]


def refuse(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_a_section_becomes_a_test(tmp_path: Path) -> None:
    test = load(tmp_path, NATIVE)
    assert (test.name, test.steps_to_record, test.stream, test.same_line) == ("demo", 6, "both", False)
    assert test.gather_flags == (FlagSpec("checkpoint_output", "--ckpt", is_set=True),)
    assert [flag.name for flag in test.run_flags] == ["checkpoint_input", "start_step", "run_for"]
    assert (test.replicas, test.most_checks) == (1, 3)
    (rule,) = test.rules
    assert (rule.metric, rule.kind) == ("loss", "exact")


def test_the_example_in_the_documentation_is_a_good_file(tmp_path: Path) -> None:
    text = (config.__doc__ or "").split("named and loaded:\n", 1)[1].split("\nThe flags are put", 1)[0]
    lines = [line[4:] for line in text.split("\n")]
    test = load(tmp_path, "\n".join(lines))
    assert [rule.metric for rule in test.rules] == ["loss", "grad_norm"]
    assert [flag.key for flag in test.gather_flags] == ["--checkpoint-dir", "--steps", "300", "--save-interval", "100"]
    assert test.run_flags[-1] == FlagSpec("check", "--no-eval")
    assert test.replicas == 4


SHORT = r"""
study: demo
command: python3 training.py
metrics: {loss: 'Loss: ({number})'}
golden: {segment: 6}
"""


def test_a_segment_and_a_metric_are_enough(tmp_path: Path) -> None:
    test = load(tmp_path, SHORT)
    assert (test.step, test.save, test.gather_flags, test.run_flags) == (None, None, (), ())
    assert test.from_start
    assert not test.has_length
    assert [(rule.metric, rule.kind) for rule in test.rules] == [("loss", "paired")]
    assert test.replicas == 4
    with_length = load(tmp_path, SHORT.replace("segment: 6", "segment: 6, length: --until"))
    assert with_length.from_start
    assert with_length.has_length


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{segment: 0}", "g.yml:5:19 golden.segment: must be a whole number, 1 or more, not 0"),
        ("{segment: -3}", "golden.segment: must be a whole number, 1 or more, not -3"),
        ("{segment: many}", "golden.segment: must be a whole number, 1 or more, not the text 'many'"),
        ("{}", "g.yml:5:1 golden: segment is missing\n    how many steps are recorded, as in `segment: 300`"),
        ("300", "g.yml:5:9 golden: must be a mapping, not 300"),
        ("{segment: 6, checkpoints: no}", "golden.checkpoints: unknown key\n    did you mean 'checkpoint'"),
        ("{segment: 6, resume: --load}", "golden: save is missing"),
        ("{segment: 6, resume: --load}", "or leave out resume: every run then begins at step 0"),
        ("{segment: 6, start: --start}", "golden.start: is for checkpoints, and save, checkpoint, resume are missing"),
        ("{segment: 6, gather: --x 1}", "golden.gather: is for checkpoints"),
        (
            "{segment: 6, same: {a: {flag: --x}}}",
            "g.yml:5:33 golden.same.a.flag: unknown key\n    did you mean 'flags'",
        ),
        ("{segment: 6, same: {a: {}}}", "golden.same.a: changes nothing"),
        (
            "{segment: 6, same: {canonical: {flags: -x}}}",
            "golden.same.canonical: is how reports call the command as it is",
        ),
        ("{segment: 6, same: {'': {flags: -x}}}", "is how reports call the command as it is"),
        ("{segment: 6, same: [a]}", "golden.same: must be a mapping of names to env and flags"),
        ("{segment: 6, same: {a: {flags: training.py}}}", "g.yml:5:32 golden.same.a: is the canonical configuration"),
        ("{segment: 6, check: --x 1}", "put the arguments into `command`: gathering and checking run the same"),
    ],
)
def test_mistakes_without_checkpoints(tmp_path: Path, section: str, words: str) -> None:
    assert words in refuse(tmp_path, SHORT.replace("{segment: 6}", section))


def test_a_golden_without_any_metric_compares_nothing(tmp_path: Path) -> None:
    message = refuse(tmp_path, SHORT.replace("metrics: {loss: 'Loss: ({number})'}\n", ""))
    assert "g.yml:4:1 golden: nothing would be compared" in message
    assert "add patterns under metrics, as in loss: 'loss ({number})'" in message


@pytest.mark.parametrize("path", ["charlm/golden.yml", "convergence/demo_config.yml"])
def test_the_examples_are_good_files(path: str) -> None:
    file = load_golden_file(str(TOP / "examples" / path))
    assert file.tests
    assert not file.warnings


def test_without_rules_every_metric_is_paired(tmp_path: Path) -> None:
    test = load(
        tmp_path,
        NATIVE.replace("  metrics: {loss: exact}\n", "").replace("  loss:", "  acc: 'Acc: ({number})'\n  loss:"),
    )
    assert [(rule.metric, rule.kind) for rule in test.rules] == [("acc", "paired"), ("loss", "paired")]


def test_replicas_are_five_in_all_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, NATIVE.replace("  replicas: 2\n", "")).replicas == 4
    assert load(tmp_path, NATIVE.replace("replicas: 2", "replicas: 1")).replicas == 0


def test_an_amount_of_steps_instead_of_the_last_step(tmp_path: Path) -> None:
    test = load(tmp_path, NATIVE.replace("length: --until", "length: {flag: --num, counts: segment}"))
    assert FlagSpec("run_length", "--num", is_set=True) in test.run_flags


def test_named_groups_are_metrics(tmp_path: Path) -> None:
    text = NATIVE.replace("  loss: 'Loss: ({number})'", "  all: 'Loss: (?P<loss>\\S+) Acc: (?P<acc>\\S+)'").replace(
        "{loss: exact}", "{loss: exact, acc: exact}"
    )
    assert [rule.metric for rule in load(tmp_path, text).rules] == ["loss", "acc"]


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("paired", Rule("loss")),
        ("unmatched", Rule("loss", "unmatched")),
        ("{delta: 0.5%}", Rule("loss", delta=0.005)),
        (
            "{rule: paired, delta: 0.01, alpha: 0.05, window: 10, direction: both}",
            Rule("loss", delta=0.01, alpha=0.05, window=10, direction="both"),
        ),
        ("{operator: '<=', margin: 10%}", Rule("loss", "margin", operator="<=", margin=0.1)),
        ("{rule: margin, operator: '==', margin: 0.1}", Rule("loss", "margin", operator="==", margin=0.1)),
    ],
)
def test_rules(tmp_path: Path, written: str, rule: Rule) -> None:
    (found,) = load(tmp_path, NATIVE.replace("{loss: exact}", f"{{loss: {written}}}")).rules
    assert (found.kind, found.delta, found.alpha, found.window) == (rule.kind, rule.delta, rule.alpha, rule.window)
    assert (found.direction, found.operator, found.margin) == (rule.direction, rule.operator, rule.margin)
    assert found.position is not None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  save: 'Saving model to: (\\S+)'\n", "", "golden: save is missing"),
        ("  checkpoint: --ckpt\n", "", "golden: checkpoint is missing"),
        ("  resume: --load\n", "", "golden: resume is missing"),
        ("(\\S+)'", "\\S+'", "golden.save: no group holds the checkpoint's path"),
        ("(\\S+)'", "(?P<step>\\S+)'", "golden.save: no group holds the checkpoint's path"),
        ("(\\S+)'", "(\\S+'", "golden.save: the regular expression is broken"),
        ("  step: 'Iteration: (\\d+)'\n", "", "metrics: no pattern reads the step"),
        ("{loss: exact}", "{los: exact}", "golden.metrics.los: no pattern reads this metric\n    did you mean 'loss'?"),
        ("{loss: exact}", "{loss: exakt}", "golden.metrics.loss: must be one of paired, exact, unmatched"),
        ("{loss: exact}", "{loss: {operator: '=>', margin: 1%}}", "golden.metrics.loss.operator: must be one of"),
        (
            "{loss: exact}",
            "{loss: {operator: '<=', margin: 0}}",
            "golden.metrics.loss.margin: must be a fraction above 0",
        ),
        (
            "{loss: exact}",
            "{loss: {operator: '<=', margin: -5%}}",
            "golden.metrics.loss.margin: must be a fraction above 0",
        ),
        ("{loss: exact}", "{loss: {operator: '<='}}", "golden.metrics.loss: has no `margin`"),
        (
            "{loss: exact}",
            "{loss: {rule: exact, delta: 1%}}",
            "golden.metrics.loss.delta: does not go with the rule exact",
        ),
        (
            "{loss: exact}",
            "{loss: {rule: paired, margin: 1%}}",
            "golden.metrics.loss.margin: does not go with the rule paired",
        ),
        ("{loss: exact}", "{loss: {delta: nan}}", "golden.metrics.loss.delta: must be a fraction above 0"),
        ("{loss: exact}", "{loss: {alpha: 2}}", "golden.metrics.loss.alpha: must be a fraction above 0"),
        ("{loss: exact}", "{loss: {wndow: 5}}", "golden.metrics.loss.wndow: unknown key\n    did you mean 'window'?"),
        ("{loss: exact}", "{}", "golden.metrics: is empty"),
        ("replicas: 2", "replicas: 0", "golden.replicas: must be a whole number, 1 or more"),
        ("replicas: 2", 'gather: "it\'s"', "golden.gather: cannot be split into words"),
        ("length: --until", "length: {counts: total}", "golden.length: has no `flag`"),
        ("resume: --load", "resum: --load", "golden.resum: unknown key\n    did you mean 'resume'?"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in NATIVE
    message = refuse(tmp_path, NATIVE.replace(old, new))
    assert words in message
    assert "g.yml:" in message


def test_labels_that_do_not_fit_are_an_error_here(tmp_path: Path) -> None:
    message = refuse(
        tmp_path, NATIVE.replace("loss: 'Loss: ({number})'", "loss: {regex: 'Loss: (\\S+)', labels: [a, b]}")
    )
    assert "2 labels for 1 groups" in message


def test_a_native_file_without_the_section_reports_what_is_missing(tmp_path: Path) -> None:
    assert "there is no `golden:` section" in refuse(tmp_path, "study: x\ncommand: y\n")


def test_the_originals_files_are_recognised(tmp_path: Path) -> None:
    file = load_golden_file(str(Lab(tmp_path).file))
    assert (file.dialect, [test.name for test in file.tests]) == ("convergence", ["demo"])
    assert len(file.config_hash) == 64


def test_a_test_that_is_called_golden_is_the_originals(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.config = {"golden": lab.test}
    lab.write()
    assert load_golden_file(str(lab.file)).dialect == "convergence"


def test_a_missing_file_reports_what_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file") as caught:
        load_golden_file("none.yml")
    assert "golden:" in (caught.value.hint or "")


def test_a_bare_margin_shows_its_mapping_form(tmp_path: Path) -> None:
    text = (TOP / "examples" / "charlm/golden.yml").read_text()
    path = tmp_path / "golden.yml"
    path.write_text(text.replace("    loss: paired", "    loss: margin"))
    with pytest.raises(ConfigError, match="a margin needs its operator and its size") as caught:
        load_golden_file(str(path))
    assert "loss: {operator: '<=', margin: 0.1}" in str(caught.value)


def test_variants_are_environment_and_flags(tmp_path: Path) -> None:
    section = """  variants:
    two-threads: {env: {OMP_NUM_THREADS: 2, MODE: a b}}
    halves: {flags: --parts 2 --name 'a b'}
"""
    test = load(tmp_path, NATIVE + section)
    assert test.variants == (
        Variant("two-threads", (("OMP_NUM_THREADS", "2"), ("MODE", "a b"))),
        Variant("halves", (), ("--parts", "2", "--name", "a b")),
    )
    assert [variant.title for variant in test.variants] == [
        "OMP_NUM_THREADS=2 MODE='a b'",
        "--parts 2 --name 'a b'",
    ]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("variants: [a]", "golden.variants"),
        ("variants: {a: {}}", "changes nothing"),
        ("variants: {a: {enviroment: {B: 1}}}", "known: env, flags"),
        ('variants: {a: {flags: "--x \'open"}}', "cannot be split into words"),
        ("variants: {a: {env: 3}}", "golden.variants.a.env"),
        ("variants: {a: --x}", "golden.variants.a"),
    ],
)
def test_a_variant_that_cannot_be_used_is_refused(tmp_path: Path, section: str, words: str) -> None:
    assert words in refuse(tmp_path, f"{NATIVE}  {section}\n")


TOP = Path(__file__).parents[2]
FENCE = re.compile(r"^```yaml(?: study)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STUDY = r"""
study: little
command: python train.py --lr 0.1
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
golden:
  segment: 8
  save: 'saved (\S+)'
  checkpoint: --out
  resume: --from
  length: --steps
  selftest: SELFTEST
"""


def load_faults(tmp_path, selftest):
    (tmp_path / "golden.yml").write_text(STUDY.replace("SELFTEST", selftest))
    return load_golden_file("golden.yml").tests[0].selftest


def test_faults_are_read_in_their_order(tmp_path):
    text = "{env: {BREAK: [one, 2]}, flags: {--lr: [x0.9, 0.5], --wd: x0}}"
    assert load_faults(tmp_path, text) == (
        Fault("env", "BREAK", "one"),
        Fault("env", "BREAK", "2"),
        Fault("flag", "--lr", "x0.9"),
        Fault("flag", "--lr", "0.5"),
        Fault("flag", "--wd", "x0"),
    )


def test_a_fault_has_a_title():
    assert Fault("env", "A", "b").title == "A=b"
    assert Fault("flag", "--lr", "x2").title == "--lr x2"
    assert Fault("flag", "--bare", "").title == "--bare"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{flag: {--lr: 1}}", "unknown key"),
        ("[a]", "must be a mapping"),
        ("{env: [a]}", "must be a mapping of names to values"),
        ("{env: {A: {b: c}}}", "must be a value, or a list of values to try"),
        ("{env: {}}", "is empty"),
    ],
)
def test_what_is_wrong_is_reported_with_its_position(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load_faults(tmp_path, text)
    assert words in caught.value.render()
    assert "golden.yml:11:" in caught.value.render()


def shown() -> list[tuple[str, str]]:
    pages = sorted((TOP / "docs").rglob("*.md"))
    found = [(path, text) for path in pages for text in FENCE.findall(path.read_text(encoding="utf-8"))]
    whole = [(path, text) for path, text in found if re.search(r"^golden:|^  log_parsing:", text, re.MULTILINE)]
    return [
        (f"{path.name}-{number}", text) for number, (path, text) in enumerate(whole) if not text.startswith("golden:")
    ]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in shown()])
def test_every_golden_file_shown_can_be_used(tmp_path, text):
    (tmp_path / "golden.yml").write_text(text)
    file = load_golden_file("golden.yml")
    assert file.tests
    assert file.warnings == ()


def test_both_kinds_are_shown():
    assert len(shown()) >= 3
    assert any("log_parsing" in text for _, text in shown())
