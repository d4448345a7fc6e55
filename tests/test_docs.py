"""The documents are true: links lead somewhere, commands exist and take the flags shown, every file is described."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.reference_page import COMMAND, PAGES, render_meaning, render_names, render_options, render_page
from tests.test_frozen import list_commands

from assay.bench import benchmark as bench_calls
from assay.bench import records as bench_records
from assay.bench.values import execution as bench_values
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
from assay.models import records as models_records
from assay.models.backends.command import FLAG_NAMES, KNOWN
from assay.models.config import settings as models
from assay.models.config import targets
from assay.models.pytest_support import fixtures, options
from assay.plan.expand import build_plan
from assay.values import layout
from assay.values.options import option
from assay.values.run import Plan

TOP = Path(__file__).parent.parent
cli = build_cli()
REFERENCE = TOP / "docs" / "reference"
FORMATS = sorted(REFERENCE.glob("formats*.md"))

FENCE = re.compile(r"^( *)(```+|~~~+) *(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
EXAMPLE_COMMAND = "longest"  # of examples/plug-in, which tests/examples/test_plug_in.py installs
SHELL_LANGUAGES = {"console", "bash", "sh", "shell"}


def markdown_files() -> list[Path]:
    folders = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), *(TOP / "examples").rglob("*.md")]
    return sorted(path for path in folders if "runs" not in path.relative_to(TOP).parts)


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


# ---------------------------------------------------------------- links


def broken_links(path: Path) -> list[str]:
    prose = INLINE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    targets = [match[1] or match[2] for match in LINK.finditer(prose)]
    return [target for target in targets if not is_outside(target) and not resolves(path, target)]


def is_outside(target: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*:", target))


def resolves(path: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    found = path.parent / file if file else path
    if not found.exists():
        return False
    return not anchor or (found.suffix == ".md" and anchor in anchors_of(found.read_text(encoding="utf-8")))


def anchors_of(text: str) -> set[str]:
    """As code forges make them: lower case, punctuation gone, spaces to dashes, numbered when repeated."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (numbered := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(numbered)
    return found


def test_every_relative_link_resolves() -> None:
    assert [f"{name_of(path)}: {link}" for path in markdown_files() for link in broken_links(path)] == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `Title` here\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md) [b](missing.md) [c](other.md#a-title-here) [d](other.md#nowhere) [e](#top) [f](#no)\n"
        "![g](missing.png) [h](https://example.invalid/x) [i](other.md#twice-1) [j](other.md#twice-2) `[k](missing)`\n"
        "```text\n[l](missing.md)\n```\n[ref]: gone.md\n"
    )
    expected = ["missing.md", "other.md#nowhere", "#no", "missing.png", "other.md#twice-2", "gone.md"]
    assert broken_links(page) == expected


def pages_linked_from(pages: set[Path]) -> set[Path]:
    """These pages, and those of the documents that a link on one of them leads to."""
    texts = {page: INLINE.sub("", FENCE.sub("", page.read_text(encoding="utf-8"))) for page in pages}
    targets = [(page, match[1]) for page, text in texts.items() for match in LINK.finditer(text) if match[1]]
    found = {(page.parent / target.partition("#")[0]).resolve() for page, target in targets if not is_outside(target)}
    return pages | {path for path in found if path.is_relative_to(TOP / "docs") and path.suffix == ".md"}


def test_every_page_is_two_clicks_from_the_start() -> None:
    found = pages_linked_from(pages_linked_from({(TOP / "docs" / "index.md").resolve()}))
    assert sorted({path.resolve() for path in (TOP / "docs").rglob("*.md")} - found) == []


# ---------------------------------------------------------------- commands


def shell_lines(text: str) -> Iterator[str]:
    """Command lines of the shell fences; in a console only what follows the prompt, continued lines joined."""
    for _, _, language, body in FENCE.findall(text):
        if language in SHELL_LANGUAGES:
            for line in body.replace("\\\n", " ").splitlines():
                stripped = line.strip()
                if language != "console":
                    yield stripped
                elif stripped.startswith("$ "):
                    yield stripped[2:].strip()


def assay_calls(text: str) -> list[list[str]]:
    """Arguments of every call of `assay` in the shell fences."""
    return [words[1:] for line in shell_lines(text) for words in split_commands(line) if words and words[0] == "assay"]


def split_commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a shell line; without what is redirected."""
    lexer = shlex.shlex(line.replace("2>&1", ""), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    command: list[str] = []
    skip = False
    for word in lexer:
        if set(word) <= set("|&;"):
            yield command
            command = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif command or "=" not in word:  # VAR=value before a command
            command.append(word)
    yield command


def named_commands(text: str) -> set[str]:
    """The first word after `assay` in inline code: `assay run FILE` names `run`; flags and patterns name nothing."""
    prose = FENCE.sub("", text)
    found = (re.match(r"assay ([a-z]\w*)\b", code.strip()) for code in INLINE.findall(prose))
    return {match[1] for match in found if match}


def click_problem(arguments: list[str]) -> str | None:
    """What click has to say about a command line, without running it."""
    try:
        check_arguments(cli, "assay", arguments, None)
    except click.exceptions.Exit:  # --help, --version
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


def check_arguments(command: click.Command, name: str, arguments: list[str], parent: click.Context | None) -> None:
    with command.make_context(name, list(arguments), parent=parent) as context:
        if isinstance(command, click.Group):
            rest = [*getattr(context, "_protected_args", []), *context.args]
            inner_name, inner, inner_arguments = command.resolve_command(context, rest)
            assert inner is not None
            check_arguments(inner, inner_name or "", inner_arguments, context)


def test_every_command_line_shown_is_understood() -> None:
    problems = []
    for path in markdown_files():
        calls = [call for call in assay_calls(path.read_text(encoding="utf-8")) if call[:1] != [EXAMPLE_COMMAND]]
        found = [(call, problem) for call in calls if (problem := click_problem(call))]
        problems += [f"{name_of(path)}: assay {shlex.join(call)}: {problem}" for call, problem in found]
    assert problems == []


def test_every_command_named_exists() -> None:
    known = command_names() | {EXAMPLE_COMMAND}
    named = {name_of(path): named_commands(path.read_text(encoding="utf-8")) - known for path in markdown_files()}
    assert {path: names for path, names in named.items() if names} == {}


def command_names() -> set[str]:
    return set(cli.list_commands(click.Context(cli)))


def test_every_command_is_described_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    shown = named_commands(text) | {call[0] for call in assay_calls(text) if call}
    shown |= {match for heading in HEADING.findall(text) for match in re.findall(r"assay (\w+)", heading)}
    assert command_names() - shown == set()


def test_every_command_and_option_has_a_help_text() -> None:
    for _, one in list_commands(cli, ()):
        assert one.get_short_help_str(), f"{one.name} says nothing about itself"
        options = [option for option in one.params if isinstance(option, click.Option)]
        silent = [option.name for option in options if not (option.help or option.hidden)]
        assert silent == [], f"{one.name} has options without a help text"


PAGE = """
Use `assay run FILE` or `assay nonsense`, not `assay --help` or `assay.log`.

```console
$ assay run study.yml --dry-run
expanding ...
$ ASSAY_ROOT=x assay run study.yml | head > file  # a comment
$ assay run --no-such-flag x && assay run
$ cd x; assay rum study.yml
```

```python
assay.log(loss=1)
```

```bash
assay run \\
  study.yml
```
"""


def test_command_lines_are_found_and_wrong_ones_refused() -> None:
    assert named_commands(PAGE) == {"run", "nonsense"}
    calls = assay_calls(PAGE)
    lines = "run study.yml --dry-run|run study.yml|run --no-such-flag x|run|rum study.yml|run study.yml"
    assert calls == [line.split() for line in lines.split("|")]
    assert [click_problem(call) is None for call in calls] == [True, True, False, False, False, True]
    assert click_problem(["--help"]) is None


# ---------------------------------------------------------------- make targets


def make_calls(text: str) -> set[str]:
    """The targets that a page names, inline or in a shell."""
    lines = [*shell_lines(text), *INLINE.findall(FENCE.sub("", text))]
    calls = [words for line in lines if "make " in line for words in split_commands(line) if words[:1] == ["make"]]
    return {word for words in calls for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = {name_of(path): make_calls(path.read_text(encoding="utf-8")) - targets for path in markdown_files()}
    assert {path: names for path, names in named.items() if names} == {}


def test_make_targets_are_found() -> None:
    page = "`make lint test`, `make`\n```console\n$ make demo  # do it\n$ cd x && make bench ARGS=-v\n```\n"
    assert make_calls(page) == {"lint", "test", "demo", "bench"}
    assert {"demo", "test"} <= make_calls((TOP / "README.md").read_text(encoding="utf-8"))


def test_extras_exist() -> None:
    known = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    paths = [*markdown_files(), *(TOP / "examples").rglob("*.yml"), *(TOP / "src").rglob("*.py")]
    named = [
        (name, path)
        for path in paths
        for name in re.findall(r"pip install '[./]*(?:assay)?\[([\w,]+)\]", path.read_text())
    ]
    assert len(named) > 20
    assert [name_of(path) for names, path in named if not set(names.split(",")) <= set(known)] == []


# ---------------------------------------------------------------- formats


def layout_names() -> dict[str, str]:
    """The files, folders and variables that users can see."""
    of_records = vars(bench_calls) | vars(bench_records) | vars(bench_values) | vars(models_records)
    named = {
        name: each for name, each in of_records.items() if name.endswith(("_FILE", "_DIR", "_PREFIX")) or "ENV_" in name
    }
    named |= vars(layout)
    constants = {name: value for name, value in named.items() if name.isupper() and isinstance(value, str)}
    numbered = ("lease", "stop", "token", "outcome")
    assert ".exit." in layout.exit_marker_name("train", 1, 0)
    return constants | {name: layout.numbered_name(name, 1).replace("1", "N") for name in numbered} | {"exit": ".exit."}


def test_every_file_is_described_in_the_formats_pages() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in FORMATS)
    assert [name for name in layout_names().values() if not is_named(name, text)] == []


def is_named(name: str, text: str) -> bool:
    """As a word of its own: `param` is not named by `params`."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)" if name[-1].isalnum() else re.escape(name), text) is not None


def test_a_name_inside_another_word_does_not_count() -> None:
    assert is_named("param", "the file `param` holds")
    assert is_named(".exit.", "`train.exit.0`")
    assert is_named("lease.N", "lease.N,")
    assert not is_named("param", "params")
    assert not is_named("stat", "state")
    assert not is_named("run.json", "run.jsonl")


def test_the_layout_is_read() -> None:
    assert {"run.json", "job.sh", "lease.N", "outcome.N", ".exit.", "ASSAY_ATTEMPT"} <= set(layout_names().values())


# ---------------------------------------------------------------- tables of options


def test_the_tables_are_those_of_the_declarations() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(text.count("<!-- options: ") for text in texts) > 30
    assert [render_page(text) for text in texts] == texts, f"write the pages again: {COMMAND}"


def test_a_change_of_a_table_is_seen() -> None:
    (page,) = [page for page in PAGES if page.stem == "commands-run"]
    text = page.read_text(encoding="utf-8").replace("| `--force` |", "| `--forse` |")
    assert render_page(text) != text


def test_rows() -> None:
    declared = option("-s", "--sort", metavar="NAME[:min|max]", multiple=True, help="Sort by a metric.")
    assert render_names(declared) == "`-s`, `--sort NAME[:min\\|max]`"
    assert render_meaning(declared) == "Sort by a metric. Repeatable."
    assert render_meaning(option("--n", type=int, default=3, help="How many.")) == "How many. Default: 3."
    assert render_meaning(option("--n", help="How many.  [default: all]")) == "How many. Default: all."
    assert render_names(option("--code", choices=("a", "b"), help="")) == "`--code a\\|b`"


def test_a_group_has_one_row_for_an_option_that_commands_share() -> None:
    rows = [row for row in render_options("golden") if "`--manifest-name NAME`" in row]
    assert [row.split(" | ")[1] for row in rows] == [
        "gather, check, explain, validate, import, show, rebase, selftest, blame, bisect"
    ]
    assert any(row.startswith("| `--good COMMIT` | bisect |") for row in render_options("golden"))


# ---------------------------------------------------------------- every study shown can be run, every key and every option has its place


NATIVE_FILES = tuple((TOP / "docs" / "reference").glob("native-file*.md"))
SETTINGS = TOP / "docs" / "reference" / "settings-models.md"
TORQ = TOP / "docs" / "how-to" / "coming-from-torq.md"
PARSERS = {"runx": runx.build_parser, "sumx": sumx.build_parser, "mlrunner": mlrunner.build_parser}
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NPU = '[tool.assay.targets.npu]\nrun = "my-runner {artifact}"'  # what other examples are like
STUDY = re.compile(r"^```yaml study\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
