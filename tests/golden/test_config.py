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
from assay.system.fast_dataclasses import replace

TOP = Path(__file__).parents[2]
FENCE = re.compile(r"^```yaml(?: study)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXACT = "{loss: exact}"
SHORT = r"""
study: demo
command: python3 training.py
metrics: {loss: 'Loss: ({number})'}
golden: {segment: 6}
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter the folder: a native study runs in the folder from which it is called."""
    monkeypatch.chdir(tmp_path)


def load(text: str) -> GoldenTest:
    Path("g.yml").write_text(text)
    file = load_golden_file("g.yml")
    assert file.dialect == "native"
    assert file.study is not None
    return file.tests[0]


def change(old: str, new: str, text: str = NATIVE) -> str:
    assert old in text
    return text.replace(old, new)


def refuse(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert "g.yml:" in str(caught.value)
    return str(caught.value)


def test_a_section_becomes_a_test_and_a_segment_and_a_metric_are_enough() -> None:
    test = load(NATIVE)
    assert (test.name, test.steps_to_record, test.stream, test.same_line) == ("demo", 6, "both", False)
    assert test.gather_flags == (FlagSpec("checkpoint_output", "--ckpt", is_set=True),)
    assert [flag.name for flag in test.run_flags] == ["checkpoint_input", "start_step", "run_for"]
    assert (test.replicas, test.most_checks) == (1, 3)
    assert [(rule.metric, rule.kind) for rule in test.rules] == [("loss", "exact")]
    assert load(change("  replicas: 2\n", "")).replicas == 4, "five in all"
    assert load(change("replicas: 2", "replicas: 1")).replicas == 0
    amount = load(change("length: --until", "length: {flag: --num, counts: segment}"))
    assert FlagSpec("run_length", "--num", is_set=True) in amount.run_flags
    test = load(SHORT)
    assert (test.step, test.save, test.gather_flags, test.run_flags) == (None, None, (), ())
    assert (test.from_start, test.has_length, test.replicas) == (True, False, 4)
    assert [(rule.metric, rule.kind) for rule in test.rules] == [("loss", "paired")]
    with_length = load(change("segment: 6", "segment: 6, length: --until", SHORT))
    assert (with_length.from_start, with_length.has_length) == (True, True)


def test_the_example_in_the_documentation_is_a_good_file() -> None:
    text = (config.__doc__ or "").split("named and loaded:\n", 1)[1].split("\nThe flags are put", 1)[0]
    test = load("\n".join(line[4:] for line in text.split("\n")))
    assert [rule.metric for rule in test.rules] == ["loss", "grad_norm"]
    assert [flag.key for flag in test.gather_flags] == ["--checkpoint-dir", "--steps", "300", "--save-interval", "100"]
    assert test.run_flags[-1] == FlagSpec("check", "--no-eval")
    assert test.replicas == 4


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
def test_rules(written: str, rule: Rule) -> None:
    (found,) = load(change(EXACT, f"{{loss: {written}}}")).rules
    assert found.position is not None
    assert replace(found, position=None) == rule


def test_metrics_without_rules_named_groups_variants_and_faults() -> None:
    two = change("  metrics: {loss: exact}\n", "").replace("  loss:", "  acc: 'Acc: ({number})'\n  loss:")
    assert [(rule.metric, rule.kind) for rule in load(two).rules] == [("acc", "paired"), ("loss", "paired")]
    text = change("  loss: 'Loss: ({number})'", "  all: 'Loss: (?P<loss>\\S+) Acc: (?P<acc>\\S+)'")
    assert [rule.metric for rule in load(change(EXACT, "{loss: exact, acc: exact}", text)).rules] == ["loss", "acc"]
    section = """  variants:
    two-threads: {env: {OMP_NUM_THREADS: 2, MODE: a b}}
    halves: {flags: --parts 2 --name 'a b'}
  selftest: {env: {BREAK: [one, 2]}, flags: {--lr: [x0.9, 0.5], --wd: x0}}
"""
    test = load(NATIVE + section)
    assert test.variants == (
        Variant("two-threads", (("OMP_NUM_THREADS", "2"), ("MODE", "a b"))),
        Variant("halves", (), ("--parts", "2", "--name", "a b")),
    )
    assert [each.title for each in test.variants] == ["OMP_NUM_THREADS=2 MODE='a b'", "--parts 2 --name 'a b'"]
    faults = [("env", "BREAK", "one"), ("env", "BREAK", "2"), ("flag", "--lr", "x0.9"), ("flag", "--lr", "0.5")]
    assert test.selftest == tuple(Fault(*each) for each in (*faults, ("flag", "--wd", "x0")))  # type: ignore[arg-type]
    titles = [fault.title for fault in (*test.selftest[1:3], Fault("flag", "--bare", ""))]
    assert titles == ["BREAK=2", "--lr x0.9", "--bare"]


FRACTION = "must be a fraction above 0"
MISTAKES = [
    ("  save: 'Saving model to: (\\S+)'\n", "", "golden: save is missing"),
    ("  checkpoint: --ckpt\n", "", "golden: checkpoint is missing"),
    ("  resume: --load\n", "", "golden: resume is missing"),
    ("(\\S+)'", "\\S+'", "golden.save: no group holds the checkpoint's path"),
    ("(\\S+)'", "(?P<step>\\S+)'", "golden.save: no group holds the checkpoint's path"),
    ("(\\S+)'", "(\\S+'", "golden.save: the regular expression is broken"),
    ("  step: 'Iteration: (\\d+)'\n", "", "metrics: no pattern reads the step"),
    ("'Loss: ({number})'", "{regex: 'Loss: (\\S+)', labels: [a, b]}", "2 labels for 1 groups"),
    (EXACT, "{los: exact}", "golden.metrics.los: no pattern reads this metric\n    did you mean 'loss'?"),
    (EXACT, "{loss: exakt}", "golden.metrics.loss: must be one of paired, exact, unmatched"),
    (EXACT, "{loss: {operator: '=>', margin: 1%}}", "golden.metrics.loss.operator: must be one of"),
    (EXACT, "{loss: {operator: '<=', margin: 0}}", f"golden.metrics.loss.margin: {FRACTION}"),
    (EXACT, "{loss: {operator: '<=', margin: -5%}}", f"golden.metrics.loss.margin: {FRACTION}"),
    (EXACT, "{loss: {operator: '<='}}", "golden.metrics.loss: has no `margin`"),
    (EXACT, "{loss: margin}", "a margin needs its operator and its size"),
    (EXACT, "{loss: margin}", "loss: {operator: '<=', margin: 0.1}"),
    (EXACT, "{loss: {rule: exact, delta: 1%}}", "golden.metrics.loss.delta: does not go with the rule exact"),
    (EXACT, "{loss: {rule: paired, margin: 1%}}", "golden.metrics.loss.margin: does not go with the rule paired"),
    (EXACT, "{loss: {delta: nan}}", f"golden.metrics.loss.delta: {FRACTION}"),
    (EXACT, "{loss: {alpha: 2}}", f"golden.metrics.loss.alpha: {FRACTION}"),
    (EXACT, "{loss: {wndow: 5}}", "golden.metrics.loss.wndow: unknown key\n    did you mean 'window'?"),
    (EXACT, "{}", "golden.metrics: is empty"),
    ("replicas: 2", "replicas: 0", "golden.replicas: must be a whole number, 1 or more"),
    ("replicas: 2", 'gather: "it\'s"', "golden.gather: cannot be split into words"),
    ("length: --until", "length: {counts: total}", "golden.length: has no `flag`"),
    ("resume: --load", "resum: --load", "golden.resum: unknown key\n    did you mean 'resume'?"),
    (EXACT, f"{EXACT}\n  variants: [a]", "golden.variants"),
    (EXACT, f"{EXACT}\n  variants: {{a: {{}}}}", "changes nothing"),
    (EXACT, f"{EXACT}\n  variants: {{a: {{enviroment: {{B: 1}}}}}}", "known: env, flags"),
    (EXACT, f'{EXACT}\n  variants: {{a: {{flags: "--x \'open"}}}}', "cannot be split into words"),
    (EXACT, f"{EXACT}\n  variants: {{a: {{env: 3}}}}", "golden.variants.a.env"),
    (EXACT, f"{EXACT}\n  variants: {{a: --x}}", "golden.variants.a"),
    (EXACT, f"{EXACT}\n  selftest: {{flag: {{--lr: 1}}}}", "g.yml:16:14 golden.selftest.flag: unknown key"),
    (EXACT, f"{EXACT}\n  selftest: [a]", "g.yml:16:13 golden.selftest: must be a mapping"),
    (EXACT, f"{EXACT}\n  selftest: {{env: [a]}}", "must be a mapping of names to values"),
    (EXACT, f"{EXACT}\n  selftest: {{env: {{A: {{b: c}}}}}}", "must be a value, or a list of values to try"),
    (EXACT, f"{EXACT}\n  selftest: {{env: {{}}}}", "is empty"),
]
SECTIONS = [
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
    ("{segment: 6, check: --x 1}", "put the arguments into `command`: gathering and checking run the same"),
    ("{segment: 6, same: {a: {flag: --x}}}", "5:33 golden.same.a.flag: unknown key\n    did you mean 'flags'"),
    ("{segment: 6, same: {a: {}}}", "golden.same.a: changes nothing"),
    ("{segment: 6, same: {canonical: {flags: -x}}}", "canonical: is how reports call the command as it is"),
    ("{segment: 6, same: {'': {flags: -x}}}", "is how reports call the command as it is"),
    ("{segment: 6, same: [a]}", "golden.same: must be a mapping of names to env and flags"),
    ("{segment: 6, same: {a: {flags: training.py}}}", "g.yml:5:32 golden.same.a: is the canonical configuration"),
]


CASES = [*((*each, NATIVE) for each in MISTAKES), *(("{segment: 6}", *each, SHORT) for each in SECTIONS)]


@pytest.mark.parametrize(("old", "new", "words", "text"), CASES)
def test_mistakes(old: str, new: str, words: str, text: str) -> None:
    assert words in refuse(change(old, new, text))


def test_what_is_missing_is_named_and_the_originals_files_are_recognised(tmp_path: Path) -> None:
    message = refuse(change("metrics: {loss: 'Loss: ({number})'}\n", "", SHORT))
    assert "g.yml:4:1 golden: nothing would be compared" in message
    assert "add patterns under metrics, as in loss: 'loss ({number})'" in message
    assert "there is no `golden:` section" in refuse("study: x\ncommand: y\n")
    with pytest.raises(UsageError, match="there is no file") as caught:
        load_golden_file("none.yml")
    assert "golden:" in (caught.value.hint or "")
    lab = Lab(tmp_path)
    file = load_golden_file(str(lab.file))
    assert (file.dialect, [test.name for test in file.tests]) == ("convergence", ["demo"])
    assert len(file.config_hash) == 64
    lab.config = {"golden": lab.test}  # a test of that name is the original's
    lab.write()
    assert load_golden_file(str(lab.file)).dialect == "convergence"


def find_shown() -> list[tuple[str, str]]:
    pages = sorted((TOP / "docs").rglob("*.md"))
    found = [(path, text) for path in pages for text in FENCE.findall(path.read_text(encoding="utf-8"))]
    whole = [(path, text) for path, text in found if re.search(r"^golden:|^  log_parsing:", text, re.MULTILINE)]
    return [(path.name, text) for path, text in whole if not text.startswith("golden:")]


def test_every_golden_file_of_the_documents_and_examples_can_be_used() -> None:
    examples = [
        (path, (TOP / "examples" / path).read_text()) for path in ("charlm/golden.yml", "convergence/demo_config.yml")
    ]
    shown = find_shown()
    assert len(shown) >= 3
    assert any("log_parsing" in text for _, text in shown)
    for name, text in (*shown, *examples):
        Path("golden.yml").write_text(text)
        file = load_golden_file("golden.yml")
        assert (bool(file.tests), file.warnings) == (True, ()), name
