"""The documents keep step: every study shown can be run, every key and every option has its place."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.reference_page import PAGES
from tests.test_frozen import list_commands

from assay.cli.main import build_cli
from assay.compat.mlrunner import command as mlrunner
from assay.compat.runx import command as runx
from assay.compat.runx import sumx
from assay.config.fields import LoadOptions
from assay.config.load import load_study
from assay.config.native import KEYS
from assay.config.settings import load_settings
from assay.errors import ConfigError
from assay.launch.prepared import RunOptions
from assay.launch.sweep import prepare
from assay.models.backends.command import FLAG_NAMES, KNOWN
from assay.models.config import settings as models
from assay.models.config import targets
from assay.models.pytest_support import fixtures, options
from assay.plan.expand import build_plan
from assay.values.run import Plan

TOP = Path(__file__).parent.parent
cli = build_cli()
NATIVE_FILES = tuple((TOP / "docs" / "reference").glob("native-file*.md"))
SETTINGS = TOP / "docs" / "reference" / "settings-models.md"
TORQ = TOP / "docs" / "how-to" / "coming-from-torq.md"
PARSERS = {"runx": runx.build_parser, "sumx": sumx.build_parser, "mlrunner": mlrunner.build_parser}
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NPU = '[tool.assay.targets.npu]\nrun = "my-runner {artifact}"'  # what other examples are like
STUDY = re.compile(r"^```yaml study\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def markdown_files() -> list[Path]:
    return sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])


def find_studies(path: Path) -> list[str]:
    return STUDY.findall(path.read_text(encoding="utf-8"))


def all_studies() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(TOP)}#{number}", text)
        for path in markdown_files()
        for number, text in enumerate(find_studies(path), 1)
    ]


def plan_of(text: str, folder: Path) -> Plan:
    (folder / "study.yml").write_text(text, encoding="utf-8")
    options = LoadOptions(cwd=str(folder), home=str(folder))
    study = load_study("study.yml", options)
    if study.search is None:
        return build_plan(study)
    prepared = prepare(RunOptions("study.yml", load=options, root=str(folder)))  # its runs are proposed one by one
    return Plan(study, prepared.samples, (), prepared.plan.warnings)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in all_studies()])
def test_every_study_shown_can_be_run(text: str, tmp_path: Path) -> None:
    plan = plan_of(text, tmp_path)
    assert plan.study.dialect == "native"
    assert plan.runs


# What a page says about the number of runs.
@pytest.mark.parametrize(
    ("study", "runs"),
    [("first", 4), ("two-commands", 2), ("axes", 24), ("zipped", 6), ("random-search", 30), ("noise", 5)],
)
def test_a_study_has_as_many_runs_as_its_page_says(study: str, runs: int, tmp_path: Path) -> None:
    (text,) = [text for _, text in all_studies() if text.startswith(f"study: {study}\n")]
    assert len(plan_of(text, tmp_path).runs) == runs


def test_no_study_shown_gives_a_warning(tmp_path: Path) -> None:
    """An example that makes Assay grumble teaches a bad habit."""
    assert len(all_studies()) > 20
    warned = {name: [problem.key for problem in plan_of(text, tmp_path).warnings] for name, text in all_studies()}
    assert {name: keys for name, keys in warned.items() if keys} == {}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_an_example_in_the_reference(key: str) -> None:
    text = "".join(study for page in NATIVE_FILES for study in find_studies(page))
    assert re.search(rf"^{key}:|[{{,] ?{key}: ", text, re.MULTILINE), f"no example uses {key}"


def test_a_study_that_is_wrong_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```yaml study\nstudy: x\ncomand: true\n```\n\n```yaml\nnot: looked at\n```\n", encoding="utf-8")
    (text,) = find_studies(page)
    with pytest.raises(ConfigError, match="unknown key"):
        plan_of(text, tmp_path)


# ---------------------------------------------------------------- settings


def names_in(path: Path, heading: str | None = None) -> set[str]:
    """What stands in backticks in a page, or in one part of it: `a`, `b.NAME` and `{c}` name a, b and c."""
    text = path.read_text(encoding="utf-8")
    if heading is not None:
        found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert found, f"{path.name} has no part `## {heading}`"
        text = found[1]
    return set(re.findall(r"`\{?([a-z]\w*)\}?(?:\.[A-Z]+)?`", text))


def test_every_key_of_targets_and_models_and_every_placeholder_is_described() -> None:
    placeholders = {name for names in KNOWN.values() for name in names}
    assert {*targets.KEYS, *placeholders, *FLAG_NAMES} - names_in(SETTINGS, "targets") == set()
    assert {*models._KEYS, *models._TOLERANCE_KEYS} - names_in(SETTINGS, "models") == set()


def test_the_settings_shown_are_understood(tmp_path: Path) -> None:
    """Each TOML block of the pages about models is a settings file that Assay takes."""
    pages = [SETTINGS, TORQ, *(TOP / "docs" / "how-to").glob("*model*.md")]
    shown = [text for page in pages for text in TOML.findall(page.read_text(encoding="utf-8")) if "[tool.assay" in text]
    assert len(shown) >= 5
    for number, text in enumerate(shown):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts = [text] if 'like = "npu"' not in text or "[tool.assay.targets.npu]" in text else [NPU, text]
        (folder / "pyproject.toml").write_text("\n".join(parts), encoding="utf-8")
        settings = load_settings(str(folder), {"HOME": str(folder)})
        models.read_model_settings(settings)
        for name in targets.read_target_tables(settings):
            targets.parse_target(name, settings)


def test_every_option_of_pytest_is_described() -> None:
    """In both spellings."""
    known = {name for option in options.ModelOptions.OPTIONS.values() for name in option.names}
    table = re.search(r"^## Options\n(.*?)^## ", TORQ.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table
    assert known - shown_options(table[1]) == set()


def test_the_fixtures_that_are_described_exist() -> None:
    described = re.search(
        r"^## Fixtures\n(.*?)^A test that", TORQ.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert described
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", described[1], re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert len(named) == 8
    assert named <= set(fixtures.NAMES)


# ---------------------------------------------------------------- options


def section_of(command: str) -> str:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.search(rf"^## assay {command}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/reference/commands-*.md have no section `## assay {command}`"
    return found[1]


def known_options(name: str) -> set[str]:
    if name in PARSERS:
        shown = [action for action in PARSERS[name]()._actions if action.help != "==SUPPRESS=="]
        return {word for action in shown for word in action.option_strings} - {"-h", "--help"}
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    params = [each for _, inner in list_commands(command, ()) for each in inner.params]  # of its subcommands, too
    return {word for option in params if isinstance(option, click.Option) for word in option.opts}


def shown_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", " ".join(re.findall(r"`([^`]+)`", text))))


def test_every_option_is_described_in_its_section() -> None:
    names = cli.list_commands(click.Context(cli))
    missing = {name: known_options(name) - shown_options(section_of(name)) for name in names}
    assert {name: options for name, options in missing.items() if options} == {}


def test_options_are_found() -> None:
    assert {"-n", "--dry-run", "--slots"} <= known_options("run")
    assert "--file" in known_options("index")
    assert {"-i", "--no_cooldir"} <= known_options("runx")
    shown = shown_options("| `-n`, `--dry-run` | not -x; `diff -u`, `a-b`, `--retry failed` |")
    assert shown == {"-n", "--dry-run", "-u", "--retry"}
