"""The `selftest` key of the golden section, and every golden file that the documents show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.errors import ConfigError
from assay.golden.config import load_golden_file
from assay.golden.values import Fault

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


def load(tmp_path, selftest):
    (tmp_path / "golden.yml").write_text(STUDY.replace("SELFTEST", selftest))
    return load_golden_file("golden.yml", cwd=str(tmp_path)).tests[0].selftest


def test_faults_are_read_in_their_order(tmp_path):
    text = "{env: {BREAK: [one, 2]}, flags: {--lr: [x0.9, 0.5], --wd: x0}}"
    assert load(tmp_path, text) == (
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
def test_what_is_wrong_is_said_with_its_position(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
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
    file = load_golden_file("golden.yml", cwd=str(tmp_path))
    assert file.tests
    assert file.warnings == ()


def test_both_kinds_are_shown():
    assert len(shown()) >= 3
    assert any("log_parsing" in text for _, text in shown())
