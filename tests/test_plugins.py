"""Plug-ins of other distributions: what they add, and what happens with those that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.examples.test_plug_in import forget_plugins
from tests.finished_study import GOOD, Bench, until
from tests.web_client import open_client

import assay
from assay import plugins
from assay.__main__ import CHILDREN, run_child
from assay.cli.main import COMMANDS, run
from assay.config import native, settings
from assay.errors import InfrastructureError, NotFoundError
from assay.execute.places import find_executor
from assay.record.importers.registry import choose_importer, find_importers
from assay.record.importers.sample import Sample
from assay.values.plugin_checks import CORE_WORDS
from assay.web.interface import load_pages

HEAD = "from assay.plugins import Plugin\n"


def declare(fields: str, name: str = "bad") -> str:
    """The text of a module with a plug-in of these fields."""
    return f"{HEAD}PLUGIN = Plugin({name!r}, {fields})\n"


HELLO = declare("commands={'hello': ('hello_plugin.command:hello', 'Say hello.')}", "hello")
COMMAND = """
from assay.values.options import Request, option
class HelloRequest(Request):
    name: str = option("--name", default="you", help="Who.")
def hello(request: {annotation}, console):
    "Say hello."
    console.write(f"hello {{request.name}}\\n")
    return 0
"""

Install = Callable[..., None]
Examine = Callable[[], list[dict[str, str]]]


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`assay doctor` asks other programs for their versions, which takes longer than everything else here."""
    monkeypatch.setattr("assay.cli.doctor._get_output", lambda _arguments: "9.9")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A distribution with one entry point: `install("hello", text of its plug-in module, command=…)`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def write(name: str, text: str | None, **modules: str) -> None:
        package = site / f"{name}_plugin"
        package.mkdir()
        (package / "__init__.py").write_text("")
        for module, source in {**({"plugin": text} if text is not None else {}), **modules}.items():
            (package / f"{module}.py").write_text(source)
        info = site / f"{name}_plugin-1.0.dist-info"
        info.mkdir()
        target = f"{name}_plugin.plugin:PLUGIN"
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[assay.plugins]\n{name} = {target}\n")
        forget_plugins()

    yield write
    forget_plugins()
    for name in [name for name in sys.modules if "_plugin" in name and not name.startswith("assay")]:
        if name.partition(".")[0].endswith("_plugin"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the study files `plain.yml` and, with a key of a plug-in, `own.yml`."""
    monkeypatch.chdir(tmp_path)
    Path("plain.yml").write_text("command: 'true'\n")
    Path("own.yml").write_text("command: 'true'\ntimes: 3\n")
    return tmp_path


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, str]]]:
    """A function that returns the findings of `assay doctor`."""

    def call() -> list[dict[str, str]]:
        capsys.readouterr()
        assert run(["doctor", "--json"]) in (0, 1)
        findings: list[dict[str, str]] = json.loads(capsys.readouterr().out)["findings"]
        return findings

    return call


def find_texts() -> dict[str, str]:
    return {problem.name: problem.text for problem in plugins.find_problems()}


# ---------------------------------------------------------------- ours


def test_the_plug_ins_that_come_with_assay_are_whole() -> None:
    assert find_texts() == {}
    assert {"golden", "bench", "models", "search", "farms", "exchange", "web", "runx"} <= set(plugins.find_plugins())


def test_the_words_of_the_core_are_the_whole_list() -> None:
    assert CORE_WORDS["commands"] == set(COMMANDS)
    assert CORE_WORDS["children"] == set(CHILDREN)
    assert CORE_WORDS["executors"] == {"local"}
    for name in CORE_WORDS["executors"]:
        assert find_executor(name)
    assert CORE_WORDS["study_keys"] == set(native.KEYS) - {*plugins.merge("study_keys")}
    assert CORE_WORDS["settings"] == set(settings.KEYS) - {*plugins.merge("settings")}


def test_a_source_tree_that_is_not_installed_has_its_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    found = plugins.find_entry_points()
    assert {target for _, target in found} >= {"assay.golden.plugin:PLUGIN", "assay.compat.plugin:PLUGIN"}


# ---------------------------------------------------------------- those of others


@pytest.mark.parametrize("annotation", ["'HelloRequest'", "HelloRequest"], ids=["text", "class"])
def test_a_command_of_another_distribution(
    install: Install, capsys: pytest.CaptureFixture[str], annotation: str
) -> None:
    install("hello", HELLO, command=COMMAND.format(annotation=annotation))
    for words, printed in ((["hello"], "hello you"), (["hello", "--name=me"], "hello me"), (["--help"], "Say hello.")):
        assert run(words) == 0
        assert printed in capsys.readouterr().out
    assert run(["hello", "--nome", "me"]) == 2
    assert "--name" in capsys.readouterr().err


def test_the_help_has_the_commands_in_groups(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("hello", HELLO, command=COMMAND.format(annotation="HelloRequest"))
    install("other", HELLO.replace("hello", "other").replace("'Say other.'", "'Say it.', 'Read'"))
    assert run(["--help"]) == 0
    sections = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    found = {lines[0]: [line.split()[0] for line in lines[1:]] for lines in sections if lines[0].endswith(":")}
    order = ["Options:", "Start:", "Run:", "Read:", "Prove:", "Share:", "Maintain:", "Other tools:", "Plug-ins:"]
    assert list(found) == order
    assert found["Run:"] == ["run", "stop", "rerun", "wait"]
    assert found["Prove:"] == ["bench", "gate", "try", "tries", "golden", "model", "trace"]
    assert found["Read:"][-1] == "other"
    assert found["Plug-ins:"] == ["hello"]


def test_a_function_of_another_distribution_is_part_of_the_face(install: Install) -> None:
    text = declare("functions={'greet': 'hello_plugin.greetings:greet'}", "hello")
    install("hello", text, greetings="def greet():\n    return 'hello'\n")
    import assay

    try:
        assert assay.greet() == "hello"
    finally:
        vars(assay).pop("greet", None)


def test_an_executor_of_another_distribution_is_found_by_its_name_and_one_that_is_none_is_refused(
    install: Install,
) -> None:
    names = {name: f"hello_plugin.executor:{name}" for name in ("Elsewhere", "Nothing")}
    source = "from assay.execute.base import Executor\nclass Elsewhere(Executor): ...\nclass Nothing: ...\n"
    install("hello", declare(f"executors={names}", "hello"), executor=source)
    assert find_executor("Elsewhere").__name__ == "Elsewhere"
    with pytest.raises(InfrastructureError, match="Nothing is not a subclass of"):
        find_executor("Nothing")


PAGES = HEAD + "from assay.web.api import Pages\nPLUGIN = Plugin('bad', pages=('bad_plugin.plugin:PAGES',))\n"
NAVIGATION = PAGES + "from assay.web.api import Navigation\nPAGES = Pages(navigation=Navigation({}))\n"
ODD = "class Odd:\n    @property\n    def __class__(self): raise {}\n"
ENDS = (
    HEAD
    + """from assay.web.api import Pages
class Ends({}):
    __slots__ = ()
    def __getattribute__(self, name):
        if name == {!r}: raise SystemExit(0)
        return super().__getattribute__(name)
"""
)
TEXT = HEAD + "class Text(str):\n    __hash__ = None\n"
MAPPING = HEAD + "class Odd(dict):\n    def __iter__(self): raise SystemExit(0)\n"
BAD = [  # the text of a module, and why it cannot be used
    (None, "ModuleNotFoundError: No module named 'bad_plugin.plugin'"),
    ("1 / 0\n", "ZeroDivisionError"),
    ("raise SystemExit(3)\n", "SystemExit: 3"),
    ("print('hello')\n" + HEAD + "PLUGIN = Plugin('bad')\n", "prints when it is imported"),
    (HEAD, "AttributeError"),
    ("PLUGIN = {'name': 'bad'}\n", "dict is not an assay.plugins.Plugin"),
    (declare("comands={}"), "comands"),
    (HEAD + "PLUGIN = Plugin(7)\n", "name is 7"),
    (declare("children=('x',)"), "children must be a mapping"),
    (declare("commands={'x': 'a:b'}"), "commands: 'x' must have two texts"),
    (declare("children={'x': 'a.b'}"), "'a.b' is not of the form module:name"),
    (declare("functions={'x': print}"), "is not of the form module:name"),
    (declare("pages='a:b'"), "pages must be a tuple"),
    (declare("commands={'run': ('a:b', 'x')}"), "commands: 'run' is a word of the core"),
    (declare("commands={'bench': ('a:b', 'x')}"), "commands: 'bench' is offered by the plug-in bench already"),
    (HEAD + "PLUGIN = Plugin('bench')\n", "another plug-in has this name"),
    (declare("needs=('nothing',)"), "it needs the plug-in nothing"),
    (
        HEAD + "PLUGIN = (Plugin('bad', needs=('worse',)), Plugin('worse', needs=('bad',)))\n",
        "its needs are circular",
    ),
    (declare("pages=('bad_plugin.nothing:PAGES',)"), "No module named 'bad_plugin.nothing'"),
    (PAGES + "PAGES = {}\n", "dict is not an assay.web.api.Pages"),
    (PAGES + "PAGES = Pages(templates='/nothing')\n", "there is no folder /nothing"),
    (PAGES + "PAGES = Pages(['/bad'])\n", "routes: AttributeError"),
    ("class Odd(BaseException):\n    def __str__(self): 1 / 0\nraise Odd\n", "loaded: Odd"),
    ("class Ends(BaseException):\n    def __str__(self): raise Ends\nraise Ends\n", "loaded: Ends"),
    ("import sys\nsys.stdout.close()\n" + HEAD, "AttributeError"),
    ("import sys\nsys.stdout.close()\n" + declare(""), "closes standard output when it is imported"),
    ("PLUGIN = ()\n", "is an empty tuple"),
    (declare("needs='golden'"), "needs must be a tuple of texts"),
    (declare("doctor=('x',)"), "doctor must be a tuple of Part"),
    (declare("settings={5: 'a:b'}"), "settings: 5 is not a word"),
    (declare("commands={'a b': ('a:b', '')}"), "is not a word"),
    (declare("study_keys={'command': 'a:b'}"), "study_keys: 'command' is a word of the core"),
    (
        HEAD + "class Odd(dict):\n    def __iter__(self): 1 / 0\nPLUGIN = Plugin('bad', settings=Odd())\n",
        "ZeroDivisionError",
    ),
    (
        HEAD + "FIVE = 5\nPLUGIN = Plugin('bad', dialects={'other': 'bad_plugin.plugin:FIVE'})\n",
        "dialects: 'other' is not a Dialect of this name",
    ),
    (declare("commands={'x': ('bad_plugin.ends:x', 'x')}"), "SystemExit: 0"),
    (PAGES + "PAGES = Pages(navigation='x')\n", "navigation must not be of the type str"),
    (NAVIGATION.format("'x', '/x', 'high'"), "must have two texts and a number"),
    (NAVIGATION.format("None, None, 5"), "must have two texts and a number"),
    (PAGES + "PAGES = Pages(templates=1)\n", "templates must not be of the type int"),
    (PAGES + "PAGES = Pages(find_alarms=5)\n", "find_alarms must not be of the type int"),
    (declare("commands={'x': ('bad_plugin.nothing:x', 'x')}"), "No module named 'bad_plugin.nothing'"),
    ("class Odd(tuple):\n    def __iter__(self): 1 / 0\nPLUGIN = Odd((1, 2))\n", "Odd is not an assay.plugins.Plugin"),
    (ODD.format("SystemExit(0)") + "PLUGIN = Odd()\n", "Odd is not an assay.plugins.Plugin"),
    (ENDS.format("Plugin", "name") + "PLUGIN = Ends('bad')\n", "Ends is not an assay.plugins.Plugin"),
    (TEXT + "PLUGIN = Plugin(Text('bad'))\n", "name is 'bad': it must be a text"),
    (TEXT + "PLUGIN = Plugin('bad', needs=(Text('x'),))\n", "needs must be a tuple of texts"),
    (MAPPING + "PLUGIN = Plugin('bad', settings=Odd())\n", "SystemExit: 0"),
    (declare("run_steps={'x': 'bad_plugin.odd:VALUE'}"), "run_steps: bad_plugin.odd:VALUE: RuntimeError: read"),
    (declare("dialects={'x': 'bad_plugin.odd:VALUE'}"), "dialects: 'x' is not a Dialect of this name"),
    (PAGES + ODD.format("RuntimeError") + "PAGES = Odd()\n", "Odd is not an assay.web.api.Pages"),
    (PAGES + ODD.format("SystemExit(0)") + "PAGES = Pages(card=Odd())\n", "card: SystemExit: 0"),
    (PAGES + ENDS.format("Pages", "card") + "PAGES = Ends()\n", "Ends is not an assay.web.api.Pages"),
]


@pytest.mark.parametrize(("text", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_plug_in_that_cannot_be_used_is_named_and_left_out(
    install: Install, text: str | None, reason: str, examine: Examine
) -> None:
    odd = ODD.format("RuntimeError('read')").replace("__class__", "__mro__") + "VALUE = Odd()\n"
    install("bad", text, ends="print('left')\nraise SystemExit(0)\n", odd=odd)
    assert any(reason in problem for problem in find_texts().values()), find_texts()
    assert "golden" in plugins.find_plugins()
    assert [each["grade"] for each in examine() if reason in each["text"]][:1] == ["note"]
    assert run(["bench", "--help"]) == 0
    assert "bad" not in dict(load_pages())


def test_what_a_module_prints_stays_out_of_standard_output_and_threads_replace_nothing(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    prints = "import sys\nOUTPUT = sys.stdout\nprint('loaded')\n"
    install("two", HEAD + "PLUGIN = Plugin('two')\n", first=prints, second=prints)
    output = sys.stdout
    assert plugins.load("two_plugin.first:OUTPUT") is sys.stderr
    assert capsys.readouterr() == ("", "loaded\n")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(plugins.load("two_plugin.second:OUTPUT")))
    thread.start()
    thread.join()
    assert found == [output]
    assert sys.stdout is output


DIALECTS = """
from assay.plugins import Plugin
from assay.values.hooks import Dialect

PLUGIN = Plugin("odd", dialects={name: f"odd_plugin.plugin:{name}" for name in ("gone", "listed", "reads")})
listed = Dialect("listed", keys=["command"])
reads = Dialect("reads", folder_reader="odd_plugin.plugin:fail", roots_reader="odd_plugin.plugin:fail")

def fail(*_):
    raise RuntimeError("it fails")
"""


def write_run_of_runx(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "hparams.json").write_text('{"lr": 0.1}')
    (folder / "metrics.csv").write_text("val,1700000000,epoch,1,loss,0.5\n")


@pytest.mark.parametrize("ends", ["raise RuntimeError('it fails')", "raise SystemExit(0)", "return 7"])
def test_a_dialect_that_fails_costs_files_and_folders_of_other_tools_nothing(
    install: Install, folder: Path, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install("odd", DIALECTS.replace('raise RuntimeError("it fails")', ends))
    (folder / ".runx").write_text("LOGROOT: logs\n")
    (folder / "sweep.yml").write_text("CMD: 'true'\nHPARAMS: {lr: [1, 2]}\n")
    assert [each.name for each in plugins.find_dialects()][:1] == ["reads"]
    assert run(["run", "sweep.yml", "-n"]) == 0
    write_run_of_runx(folder / "logs" / "old" / "first")
    capsys.readouterr()
    assert run(["ls", "old"]) == 0
    assert "done" in capsys.readouterr().out


def test_a_folder_of_another_tool_is_read_again_when_its_plug_in_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run_of_runx(tmp_path / "old" / "first")
    with monkeypatch.context() as without:
        without.setattr(plugins, "find_dialects", tuple)
        assert run(["ls", "old", "--root", str(tmp_path)]) == 0
        assert "lost" in capsys.readouterr().out
    assert run(["ls", "old", "--root", str(tmp_path)]) == 0
    assert "done" in capsys.readouterr().out


def test_a_need_that_is_left_out_takes_those_that_need_it_along(install: Install) -> None:
    install("bad", HEAD + "PLUGIN = (Plugin('a', needs=('b',)), Plugin('b', needs=('gone',)), Plugin('c'))\n")
    assert {"a", "b", "c"} & set(plugins.find_plugins()) == {"c"}


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("import nothing_of_this_name\n", ("hello_plugin.command:hello cannot be loaded", "assay doctor")),
        ("def hello(console): ...\n", ("has no handler with a request",)),
    ],
)
def test_a_command_whose_handler_cannot_be_used_is_one_line(
    install: Install, source: str, printed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    install("hello", HELLO, command=source)
    assert run(["hello"]) == 4
    error = capsys.readouterr().err
    assert all(each in error for each in printed), error
    assert "Traceback" not in error


ODD_VALUES = {  # what a hook names -> what `assay doctor` says about it
    "commands={'zz': ('bad_plugin.x:number', 'Z.')}": "commands: bad_plugin.x:number has no argument `request`",
    "commands={'zz': ('bad_plugin.x:other', 'Z.')}": "commands: bad_plugin.x:other has no argument `request`",
    "run_steps={'zz': 'bad_plugin.x:number'}": "run_steps: bad_plugin.x:number is not a subclass of RunStep",
    "executors={'zz': 'bad_plugin.x:other'}": "executors: bad_plugin.x:other is not a subclass of Executor",
    "study_keys={'zz': 'bad_plugin.x:number'}": "study_keys: bad_plugin.x:number is not a function",
}


@pytest.mark.parametrize("hook", ODD_VALUES)
def test_a_value_that_its_hook_cannot_use_is_named(install: Install, hook: str, examine: Examine) -> None:
    install("bad", declare(hook), x="number = 3\ndef other(request: 'int | None'): ...\n")
    assert [each["text"].startswith(ODD_VALUES[hook]) for each in examine() if each["name"] == "bad"] == [True]


@pytest.mark.usefixtures("folder")
def test_a_step_that_is_none_ends_the_command_in_one_line(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("times", TIMES, steps=STEPS.replace("class Step(RunStep)", "class Step"))
    assert run(["run", "own.yml", "--plain"]) == 4
    assert "times_plugin.steps:Step is not a subclass of assay.launch.steps.RunStep" in capsys.readouterr().err


def test_what_is_loaded_by_name_says_what_is_wrong() -> None:
    with pytest.raises(InfrastructureError, match=r"assay\.nothing:x cannot be loaded"):
        plugins.load("assay.nothing:x")


def test_run_and_sum_do_not_load_a_plug_in(install: Install, tmp_path: Path) -> None:
    install("bad", "raise SystemExit('loaded')\n")
    (tmp_path / "one.yml").write_text("study: one\ncommand: echo 1\nresources: {gpus: 0}\n")
    for words in ("run one.yml -j 1", "sum one"):
        code = f"import sys; from assay.cli.main import run; code = run({words.split()!r}); print('bad_plugin.plugin' in sys.modules, code)"
        argv = [sys.executable, "-c", code]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False 0"


# ---------------------------------------------------------------- what a plug-in adds to a run

TIMES = (
    HEAD
    + """PLUGIN = Plugin(
    "times",
    options={"run": "times_plugin.steps:Options", "bench run": "times_plugin.steps:Options"},
    study_keys={"times": "times_plugin.steps:read"},
    run_steps={"times": "times_plugin.steps:Step"},
)
"""
)
STEPS = """
from assay.launch.steps import RunStep
from assay.values.options import Request, option
class Options(Request):
    times: tuple[str, ...] = option("--times", multiple=True, metavar="T", help="Which times.")
    root: str = option("--root", help="Not taken: the core has it.")
def read(fields, top, sweeps):
    return fields.integer(top["times"].node, "times", 1)
class Step(RunStep):
    def begin(self, context, loop):
        options = context.prepared.options
        self._asked = options.extras.get("times", context.prepared.study.extras.get("times"))
        self._kinds = []
        return loop
    def listen(self, event):
        self._kinds.append(event.kind)
    def describe_end(self, entries):
        return [f"times {self._asked}: {self._kinds[0]} {self._kinds[-1]}"]
    def end(self, outcome):
        return [f"{self._asked} ended as {type(outcome).__name__}"]
"""


@pytest.mark.usefixtures("folder")
def test_a_key_and_an_option_of_another_distribution_take_part_in_a_run(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("times", TIMES, steps=STEPS)
    Path("wrong.yml").write_text("command: 'true'\ntimes: many\nstudi: x\n")
    for words, line in (("plain.yml --times a --times=b", "times ('a', 'b'): started ended"), ("own.yml", "times 3: ")):
        assert run(["run", *words.split(), "--plain"]) == 0
        printed = capsys.readouterr().err
        assert line in printed
        assert printed.endswith(" ended as Report\n")
    assert run(["run", "plain.yml", "--force"]) == 0
    assert "times" not in capsys.readouterr().err
    assert run(["run", "wrong.yml"]) == 2
    printed = capsys.readouterr().err
    assert "wrong.yml:2:8 times: " in printed
    assert "wrong.yml:3:1 studi: unknown key" in printed
    assert run(["run", "--help"]) == 0
    assert capsys.readouterr().out.count("--root") == 1


@pytest.mark.usefixtures("folder")
def test_an_option_of_a_plug_in_is_a_keyword_of_run(install: Install) -> None:
    install("times", TIMES, steps=STEPS)
    outcome = assay.run("plain.yml", times="a", slots=1).wait()
    assert outcome.ok
    assert "('a',) ended as Report" in outcome.messages
    with pytest.raises(NotFoundError, match="did you mean 'times'"):
        assay.run("plain.yml", tims="a")


OPTIONS = {
    "not a request": ("Options = 5", "5 is not a subclass"),
    "a flag of the command": (
        "x: str = option('--x', '--json', help='')",
        "x: '--json' is already an option of the command",
    ),
    "a flag of click": ("x: str = option('-h', help='')", "x: '-h' is already an option of the command"),
    "one flag twice": (
        "x: str = option('--x', help='')\n    y: str = option('--x', help='')",
        "y: '--x' is already an option",
    ),
    "required": ("x: str = option('--x', required=True, help='')", "x must be an option that can be left out"),
    "an argument": ("x: str = argument('X')", "x must be an option that can be left out"),
    "no flag": (
        "x: str = option('x y', '', help='')",
        "x: 'x y' is already an option of the command, or not a valid name",
    ),
    "a name of requests": ("extras: str = option('--x', help='')", "extras is an attribute of every request"),
    "another name of them": ("EXTRAS: str = option('--x', help='')", "EXTRAS is an attribute of every request"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_a_command_cannot_have_are_named_and_left_out(
    install: Install, case: str, examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    text, reason = OPTIONS[case]
    head = "from assay.values.options import Request, argument, option\n"
    options = text if text.startswith("Options") else f"class Options(Request):\n    {text}"
    install("bad", declare("options={'run': 'bad_plugin.c:Options'}"), c=f"{head}{options}\n")
    assert run(["run", "plain.yml", "-j1", "--json"]) == 0  # -j1: only click reads it, with the options of plug-ins
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0
    named = [each["text"] for each in examine() if each["name"] == "bad"]
    assert [reason in each for each in named] == [True], named


def test_options_of_an_unknown_command_are_named(install: Install, examine: Examine) -> None:
    install("times", TIMES.replace("bench run", "bench walk"), steps=STEPS)
    named = [each["text"] for each in examine() if each["name"] == "times"]
    assert named == ["options of 'bench walk': there is no such command"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("error", ["RuntimeError('broken')", "SystemExit(0)"])
@pytest.mark.parametrize("method", ["listen", "end"])
def test_a_step_that_fails_while_runs_go_on_is_one_warning(
    install: Install, method: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = STEPS.replace("self._kinds = []", "self._kinds = ['']")  # none comes where `listen` fails
    install("times", TIMES, steps=f"{steps}    def {method}(self, _): raise {error}\n")
    Path("own.yml").write_text("command: 'true {x}'\nparams: {x: [1, 2]}\n")
    assert run(["run", "own.yml", "--times", "3", "--plain"]) == 0
    printed = capsys.readouterr().err
    assert printed.count(f"warning: times_plugin.steps.Step.{method} failed: {error}") == 1
    assert "2 done" in printed


@pytest.mark.usefixtures("folder")
def test_a_failure_of_a_plug_in_is_not_called_a_bug_of_assay(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("times", TIMES, steps=STEPS + "    def build_result(self): raise RuntimeError('broken')\n")
    assert run(["run", "own.yml", "--plain"]) == 4
    printed = capsys.readouterr().err
    assert "assay: the plug-in times_plugin failed: RuntimeError: broken\n" in printed
    assert "times_plugin/steps.py:" in printed
    assert "bug in Assay" not in printed


EXITS = {  # a plug-in's code that ends the program -> the arguments of `assay run`
    "    def prepare(self, prepared): raise SystemExit(0)\n": "own.yml",
    "    def check(self, prepared): raise SystemExit(0)\n": "own.yml",
    "def read(*_): raise SystemExit(0)\n": "own.yml",
    "def fail(text): raise SystemExit(0)\nclass Options(Request):\n    x: int = option('--x', type=fail, help='')\n": "plain.yml --x 1",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("code", EXITS)
def test_only_a_handler_may_end_the_program(install: Install, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    install("times", TIMES, steps=STEPS + code)
    assert run(["run", *EXITS[code].split(), "--plain"]) == 4
    assert "assay: the plug-in times_plugin failed: SystemExit: 0\n" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_value_of_another_type_names_the_function_that_returned_it(
    install: Install, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("times", TIMES, steps=STEPS + "    def prepare(self, prepared): return None\n")
    assert run(["run", "own.yml"]) == 4
    assert "assay: times_plugin.steps.Step.prepare returned no Prepared\n" in capsys.readouterr().err
    dialect = (
        "from assay.values.hooks import Dialect\nD = Dialect('dd', keys=frozenset(['dd']), parser='dd_plugin.d:max')\n"
    )
    install("dd", declare("dialects={'dd': 'dd_plugin.d:D'}", "dd"), d=dialect + "def max(*_): return 7\n")
    (folder / "dd.yml").write_text("dd: 1\n")
    plugins.find_dialects.cache_clear()
    assert run(["run", "dd.yml"]) == 4
    assert "assay: dd_plugin.d:max returned int, not a Study\n" in capsys.readouterr().err


def test_a_report_that_ends_the_program_is_left_out(
    install: Install, served: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", declare("reports=('bad_plugin.r:build',)"), r="def build(*_): raise SystemExit(0)\n")
    monkeypatch.chdir(served.root)
    assert run(["report", "fit", "--root", str(served.root), "-o", "fit.html"]) == 0
    assert "the plug-in bad cannot report fit: SystemExit: 0" in capsys.readouterr().err
    assert Path("fit.html").exists()


def test_an_executor_that_cannot_be_loaded_costs_other_farms_nothing(
    install: Install, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", declare("executors={'zz': 'bad_plugin.nothing:Z'}"))
    (folder / "farms.yml").write_text("command: 'true'\nfarms: {here: {kind: ray}}\n")
    assert run(["run", "farms.yml", "-n", "--on", "ssh:host"]) == 0
    assert run(["run", "farms.yml", "-n", "--on", "zz"]) == 4
    assert "bad_plugin.nothing:Z cannot be loaded: ModuleNotFoundError" in capsys.readouterr().err


LEAVING = {
    "sys.exit('bye')": (1, "bye\n"),
    "return 256": (1, "256\n"),
    "return 'x'": (1, "x\n"),
    "sys.exit(3)": (3, ""),
}


@pytest.mark.parametrize("line", LEAVING)
def test_how_a_handler_ends(install: Install, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = COMMAND.format(annotation="HelloRequest").replace("return 0", line)
    install("hello", HELLO, command=f"import sys\n{source}")
    assert (run(["hello"]), capsys.readouterr().err) == LEAVING[line]


def test_a_child_without_its_module_is_one_line(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("bad", declare("children={'zz': 'bad_plugin.nothing:main'}"))
    assert run_child("zz") == 4
    assert capsys.readouterr().err.startswith("assay: bad_plugin.nothing:main cannot be loaded: ModuleNotFoundError")


IMPORTERS = {
    "a text": "('a', 'b')",
    "a number": "5",
    "unknown gives": "(Importer('zz', 'ZZ', 'nothing', 'bad_plugin.c:fail'),)",
    "a name of another": "(Importer('wandb', 'ZZ', 'runs', 'bad_plugin.c:fail'),)",
}


@pytest.mark.parametrize("case", IMPORTERS)
def test_an_importer_that_cannot_be_used_is_named_and_left_out(install: Install, case: str, examine: Examine) -> None:
    before = find_importers()
    source = f"from assay.record.importers.registry import Importer\nIMPORTERS = {IMPORTERS[case]}\n"
    install("bad", declare("importers=('bad_plugin.c:IMPORTERS',)"), c=source)
    assert find_importers() == before
    named = [each["text"] for each in examine() if each["name"] == "bad"]
    assert named
    assert all("must be an Importer with a name of its own" in each for each in named)


@pytest.mark.parametrize("recognise", ["bad_plugin.c:fail", "bad_plugin.c:leave", "bad_plugin.nothing:fail"])
def test_an_importer_that_fails_to_recognise_leaves_the_file_to_others(
    install: Install, recognise: str, tmp_path: Path
) -> None:
    source = f"from assay.record.importers.registry import Importer\nIMPORTERS = (Importer('zz', 'ZZ', 'runs', {recognise!r}),)\n"
    install(
        "bad",
        declare("importers=('bad_plugin.c:IMPORTERS',)"),
        c=source + "def fail(sample): 1 / 0\ndef leave(sample): raise SystemExit(0)\n",
    )
    (tmp_path / "s" / "r").mkdir(parents=True)
    (tmp_path / "s" / "r" / "run.json").write_text("{}")
    chosen = choose_importer(Sample(str(tmp_path)), ("runs", "folders"))
    assert chosen is not None
    assert chosen.name == "assay"


# ---------------------------------------------------------------- pages

DEFECTS = """
from assay.web.api import Navigation, Pages, get, get_site
def fail(*_arguments):
    raise KeyError("nobody expects this")
def show(request):
    return get_site(request).render(request, "no-such-template.html")
PAGES = Pages([get("/bad", show)], Navigation("Bad", "/bad"), find_alarms=fail, card=fail, find_related=fail)
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "bad_plugin.web_pages:PAGES: the template no-such-template.html is missing"),
        ("<p>\n{% if %}", "bad_plugin.web_pages:PAGES: no-such-template.html, line 2: Expected an expression"),
        ("<p>", ""),
    ],
)
def test_a_page_whose_template_is_missing_is_named(
    install: Install, tmp_path: Path, examine: Examine, text: str | None, problem: str
) -> None:
    """By `assay doctor`; its other pages are served."""
    if text is not None:
        (tmp_path / "no-such-template.html").write_text(text)
    pages = DEFECTS.replace("find_alarms", f"templates={str(tmp_path)!r}, find_alarms")
    install("bad", declare("pages=('bad_plugin.web_pages:PAGES',)"), web_pages=pages)
    named = [each["text"] for each in examine() if "template" in each["text"] and each["grade"] == "note"]
    assert [each[: len(problem)] for each in named] == ([problem] if problem else []), named
    assert "bad" in dict(load_pages())


@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
def test_a_defect_of_a_plug_in_is_told_at_its_own_address(install: Install, served: Bench, error: str) -> None:
    modules = ("nothing:PAGES", "plugin:DAMAGED", "web_pages:PAGES")
    text = f"PLUGIN = Plugin('bad', pages={tuple(f'bad_plugin.{each}' for each in modules)!r})\nDAMAGED = None\n"
    install("bad", HEAD + text, web_pages=DEFECTS.replace("KeyError", error))
    with open_client(served.root) as client:
        studies = client.get("/studies")
        assert (studies.status_code, 'href="/bad"' in studies.text) == (200, True)
        for path in ("/studies/fit", "/studies/fit/best", f"/studies/fit/runs/{GOOD}", "/goldens", "/api/openapi.json"):
            assert client.get(path).status_code == 200, path
        until(lambda: f"bad cannot be judged: {error}" in client.get("/alarms").text, "the defect among the alarms")
        bad = client.get("/bad")
        assert (bad.status_code, "Assay could not make this page" in bad.text) == (500, True)


@pytest.mark.parametrize("answer", ["5", "[5]", "('no-such-template.html', {})", "[Alarm('/x', 'x', 'x', 'x', 'x')]"])
def test_an_answer_of_a_wrong_shape_is_left_out(install: Install, served: Bench, answer: str) -> None:
    answers = f"from assay.web.api import Alarm, Pages\ndef f(*_): return {answer}\nPAGES = Pages((), None, '', '', f, f, f)\n"
    install("bad", declare("pages=('bad_plugin.answers:PAGES',)"), answers=answers)
    with open_client(served.root) as client:
        until(lambda: "bad cannot be judged: TypeError" in client.get("/alarms").text, "the defect among the alarms")
        for path in ("/studies", "/studies/fit", "/studies/fit/best", f"/studies/fit/runs/{GOOD}"):
            assert client.get(path).status_code == 200, path


def test_receivers_of_the_settings_need_a_plug_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "find_plugins", dict)
    Path("assay.toml").write_text('notify = "true"\n')
    assert run(["run", "plain.yml"]) == 2
    assert f"notify in {folder}/assay.toml needs a plug-in that is not installed" in capsys.readouterr().err
    assert not Path("runs").exists()
