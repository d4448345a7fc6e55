"""The rules of the architecture: which module may import which, no cycles, one home per heavy library, light imports.

The rules are checked on the syntax trees of all modules, imports inside functions included, and then, for what a
user's program imports, in fresh processes. The checker itself is tested on small trees that break each rule.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# The core, lowest first. A package may import every layer below its own, and nothing beside it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("system",),
    ("values",),
    ("plugins",),
    ("config", "plan", "code", "execute", "observe", "record", "judge", "show"),
    ("follow",),
    ("reading",),
    ("launch",),
    ("script",),
    ("runs",),
    ("handle",),
    ("api",),
    ("assay",),  # assay/__init__.py: its names load on first use
    ("cli",),
    ("__main__",),
)
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}
PLUGINS = (
    *("search", "farms", "plots", "golden", "bench", "models", "web", "exchange", "compat", "start", "gate", "mcp"),
    "trace",
)
OWNERS = {  # modules that users import by these names, and the plug-in that each belongs to
    **dict.fromkeys(("wandb", "lightning", "transformers"), "exchange"),
    **dict.fromkeys(("logx", "checkpoint", "examine", "convergence"), "compat"),
}

# Imported into users' programs: they import values, system, errors and one another.
_FACES = "script logx checkpoint wandb lightning transformers bench"
_OF_EXCHANGE = "script_run shim.wandb wandb_media"
_OF_BENCH = (
    "child command command_profile framework profiling benchmark values.execution suites suite_benchmark asv_suite "
    "pytest_suite"
)
_OF_TRACE = "compiled digest files imports kernels modules naming ops placement recorder rows sitecustomize state"
IN_USERS_PROGRAMS = (
    *(f"assay.{name}" for name in _FACES.split()),
    *(f"assay.exchange.{name}" for name in _OF_EXCHANGE.split()),
    *(f"assay.bench.{name}" for name in _OF_BENCH.split()),
    *(f"assay.trace.inside.{name}" for name in _OF_TRACE.split()),
)

# Each library has its home.
HOMES: dict[str, tuple[str, ...]] = {
    "click": ("assay.cli",),
    "yaml": ("assay.config", "assay.compat.originals", "assay.golden.harness_file", "assay.examine"),
    "pynvml": ("assay.observe.devices",),
    "pandas": ("assay.runs", "assay.examine"),
    "matplotlib": ("assay.plots.figure",),
    "tensorboardX": ("assay.logx", "assay.exchange.export"),
    "torch": (
        "assay.logx",
        "assay.checkpoint",
        "assay.bench.profiling",
        "assay.models.backends.torch_backend",
        "assay.models.backends.torch_calls",
        "assay.trace.inside",
    ),
    "triton": ("assay.trace.inside.kernels",),
    "numpy": (
        *("assay.judge", "assay.golden.judge", "assay.bench.judge", "assay.models", "assay.checkpoint"),
        *("assay.trace.records", "assay.trace.judge"),
    ),
    "scipy": ("assay.judge", "assay.golden.judge", "assay.bench.judge", "assay.search.optuna_proposals"),
    "optuna": ("assay.search.optuna_proposals",),
    "cmaes": ("assay.search.optuna_proposals",),
    "ruptures": ("assay.bench.judge",),
    "pympler": ("assay.bench.asv_suite",),
    "pyarrow": ("assay.exchange.export",),
    "mlflow": ("assay.exchange.mlflow_export",),
    "ray": ("assay.farms.ray_bridge", "assay.farms.ray_nodes"),
    "psycopg": ("assay.exchange.postgres_index",),
    "onnx": ("assay.models",),
    "onnxruntime": ("assay.models",),
    "openvino": ("assay.models.backends",),
    "iree": ("assay.models.backends",),
    "ml_dtypes": ("assay.models",),
    "IPython": ("assay.show.notebook",),
    "lightning": ("assay.lightning",),
    "pytorch_lightning": ("assay.lightning",),
    "transformers": ("assay.transformers",),
    "fsspec": ("assay.exchange.store.object_store",),
    "azure": ("assay.exchange.store.object_store",),
    "httpx": ("assay.compat.perfzero.http_file",),
    "google": ("assay.compat.perfzero.uploads", "assay.models.graph.onnx_library"),  # the latter: protobuf's errors
    "starlette": ("assay.web", *(f"assay.{part}.web_pages" for part in (*PLUGINS, "compat.torq"))),
    "uvicorn": ("assay.web",),
    "h11": ("assay.web.connections",),  # uvicorn's
    "mcp": ("assay.mcp.server",),
    "jinja2": ("assay.show.html", "assay.web.site"),
    "markupsafe": ("assay.show.html",),
    "pytest": (
        "assay.bench.pytest_suite",
        "assay.golden.pytest_plugin",
        "assay.models.pytest_plugin",
        "assay.exchange.pytest_plugin",
        "assay.exchange.pytest_support",
        "assay.compat.torq.pytest_plugin",
        "assay.models.pytest_support",
        "assay.compat.torq.pytest_session",
        "assay.compat.torq.pytest_uploads",
    ),
}
# what users of that library import from us; the plug-in that is about one
NAMED_FOR_A_LIBRARY = ("assay.lightning", "assay.transformers", "assay.mcp")
# the others only inside the function that needs them
AT_TOP_LEVEL = {"click", "httpx", "yaml", "starlette", "uvicorn", "h11", "jinja2", "markupsafe", "pytest"}
SYSTEM_MODULES = {"fcntl", "termios", "tty", "pty"}
SYSTEM_CALLS = {
    *(f"os.{name}" for name in ("replace", "rename", "renames", "isatty", "get_terminal_size")),
    *("shutil.get_terminal_size", "shutil.move"),
}
SYSTEM_ATTRIBUTES = {name.rpartition(".")[2] for name in SYSTEM_CALLS}
_PARTS = SYSTEM_MODULES | SYSTEM_ATTRIBUTES - {"replace"}
SYSTEM_HINT = re.compile(rf"/proc|[\"']git[\"']|os\.replace|from os import|\b({'|'.join(sorted(_PARTS))})\b")
REGISTERED = re.compile(r"(assay(?:\.\w+)+):\w+")  # how registries name what they will import
IN_CALLS = re.compile(rf"import_module|__import__|[\"']{REGISTERED.pattern}[\"']")
EMPTY_WORDS = {"utils", "util", "misc", "helpers", "helper", "common", "manager", "tools"}

_LIGHT = "api script logx examine runs wandb lightning transformers cli.main bench"
LIGHT = ["assay", *(f"assay.{name}" for name in _LIGHT.split())]  # importing one loads the standard library alone


# ---------------------------------------------------------------- reading the tree


@dataclass(frozen=True)
class Import:
    target: str
    line: int
    top_level: bool
    level: int = 0  # dots of a relative import


@dataclass
class Module:
    name: str
    imports: list[Import] = field(default_factory=list)


def load_sources(folder: Path) -> dict[str, str]:
    return {module_name(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


parse = functools.cache(ast.parse)


def parse_modules(sources: Mapping[str, str]) -> dict[str, Module]:
    return {
        name: Module(name, list(find_imports(parse(text), sources, in_calls=bool(IN_CALLS.search(text)))))
        for name, text in sources.items()
    }


def find_imports(tree: ast.Module, known: Mapping[str, object], *, in_calls: bool = True) -> Iterator[Import]:
    """`in_calls`: also those that a call or a registry names, which are looked for in expressions."""
    left: deque[tuple[ast.AST, bool]] = deque([(tree, False)])
    kinds = ast.AST if in_calls else (ast.stmt, ast.ExceptHandler, ast.match_case)
    while left:
        node, is_deferred = left.popleft()
        is_deferred = is_deferred or is_deferring(node)
        left.extend((inner, is_deferred) for inner in ast.iter_child_nodes(node) if isinstance(inner, kinds))
        for target, level in import_targets(node, known):
            yield Import(target, getattr(node, "lineno", 0), not is_deferred, level)


def is_deferring(node: ast.AST) -> bool:
    """What stands in a function, or for the type checker only, is not loaded by importing the module."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute):
        return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"} and not node.orelse
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def import_targets(node: ast.AST, known: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield (inner if inner in known else base), node.level
    elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"}:
        yield from ((text, 0) for text in literal_text(node.args[:1]))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # "assay.execute.local:LocalExecutor": how lazy registries name what they will import
        match = REGISTERED.fullmatch(node.value)
        if match:
            yield match[1], 0


def called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def literal_text(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def part_of(module: str) -> str:
    """`assay.record.index.sqlite` → `record`; a module that users import belongs to its plug-in."""
    part = "assay" if module == "assay" else module.split(".")[1]
    return OWNERS.get(part, part)


def is_inside(module: str, home: str) -> bool:
    return module == home or module.startswith(home + ".")


# ---------------------------------------------------------------- the rules


def layer_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    """Rule 1, and absolute imports only."""
    for module in modules.values():
        part = part_of(module.name)
        if part not in LEVELS and part not in PLUGINS:
            yield f"{module.name}: {part} is not a package of the architecture"
            continue
        for found in module.imports:
            if found.level:
                yield f"{module.name}:{found.line}: relative import"
            elif is_inside(found.target, "assay") and not may_import(module.name, found.target):
                yield f"{module.name}:{found.line}: must not import {found.target}"


def may_import(importer: str, target: str) -> bool:
    part, other = part_of(importer), part_of(target)
    if importer in IN_USERS_PROGRAMS:
        return target in IN_USERS_PROGRAMS or other in ("values", "system", "errors")
    if part == other:
        return True
    if target == "assay":  # the version
        return part in ("cli", "__main__", *PLUGINS)
    if other in PLUGINS:  # by another plug-in, if it needs that one; by the core never
        return part in PLUGINS and is_inside(target, f"assay.{other}.api") and other in find_needs(importer)
    if part in PLUGINS:
        return other not in ("cli", "__main__", "assay")
    return LEVELS[other] < LEVELS[part]


@functools.cache
def load_needs() -> dict[str, frozenset[str]]:
    """Of each plug-in of ours, as its `plugin.py` declares them."""
    found = {}
    for part in PLUGINS:
        declared = importlib.import_module(f"assay.{part}.plugin").PLUGIN
        for plugin in declared if isinstance(declared, tuple) else (declared,):
            found[plugin.name] = frozenset(plugin.needs)
    return found


def find_needs(module: str) -> frozenset[str]:
    parts = module.split(".")
    owner = OWNED_MODULES.get(parts[1]) if len(parts) == 2 else None
    inner = parts[2] if len(parts) > 2 else ""
    own = inner if parts[1] == "compat" else f"{parts[1]}-{inner}"  # a folder that is a plug-in of its own
    name = owner or (own if own in load_needs() else part_of(module))
    served = ("web",) if parts[-1] == "web_pages" else ()
    return load_needs().get(name, frozenset()).union(served)


OWNED_MODULES = {"convergence": "harness", "logx": "runx", "checkpoint": "runx", "examine": "mlrunner"}


def home_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    """Rule 3: every library that is not the standard library has a home, and most are imported inside a function."""
    for module in modules.values():
        for found in module.imports:
            library = found.target.split(".")[0]
            if found.level or library == "assay" or library in sys.stdlib_module_names:
                continue
            homes = HOMES.get(library, ())
            if not any(is_inside(module.name, home) for home in homes):
                where = " or ".join(homes) or "nowhere: give it a home in architecture.md first"
                yield f"{module.name}:{found.line}: {library} is at home in {where}"
            elif found.top_level and (library not in AT_TOP_LEVEL or module.name in IN_USERS_PROGRAMS):
                yield f"{module.name}:{found.line}: {library} must be imported inside the function that needs it"


def cycle_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    """Rule 2: depth-first search; a module that is met again while it is being visited closes a cycle."""
    edges = {
        name: sorted({found.target for found in module.imports if found.target in modules and found.target != name})
        for name, module in modules.items()
    }
    done: set[str] = set()
    for start in sorted(edges):
        yield from visit(start, edges, [], done)


def visit(name: str, edges: Mapping[str, list[str]], path: list[str], done: set[str]) -> Iterator[str]:
    if name in path:
        yield " → ".join([*path[path.index(name) :], name])
        return
    if name in done:
        return
    path.append(name)
    for target in edges[name]:
        yield from visit(target, edges, path, done)
    path.pop()
    done.add(name)


def name_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    for name in modules:
        for word in name.split(".")[1:]:
            if word in EMPTY_WORDS:
                yield f"{name}: {word!r} says nothing about what is inside"
            if word in HOMES and not any(is_inside(name, each) for each in NAMED_FOR_A_LIBRARY):
                yield f"{name}: shadows the library {word}"


def system_problems(sources: Mapping[str, str]) -> Iterator[str]:
    """Rule 5: /proc, locks, renames, git and raw queries of the terminal occur in assay.system alone."""
    for name, text in sources.items():
        if is_inside(name, "assay.system") or not SYSTEM_HINT.search(text):
            continue
        tree = parse(text)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_prose = isinstance(node, ast.Constant) and id(node) in prose
            if not is_prose and (what := find_system_use(node)):
                yield f"{name}:{getattr(node, 'lineno', 0)}: {what} belongs in assay.system"


def find_system_use(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "/proc" if re.search(r"(^|[^\w/])/proc/|^/proc$", node.value) else None
    if isinstance(node, ast.List | ast.Tuple):
        return "git" if [*literal_text(node.elts[:1])] == ["git"] else None
    if isinstance(node, ast.Call) and called_name(node) in {"which", "execvp", "posix_spawnp"}:
        return "git" if [*literal_text(node.args[:1])] == ["git"] else None
    if isinstance(node, ast.Attribute):
        if node.attr not in SYSTEM_ATTRIBUTES:
            return None
        text = ast.unparse(node)
        is_raw = text in SYSTEM_CALLS or node.attr == "isatty" or (node.attr == "rename" and text != "files.rename")
        return text if is_raw else None
    names = []
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
        names = [target.split(".")[0] for target, _ in import_targets(node, {})]
    if isinstance(node, ast.ImportFrom):
        names += [f"{node.module}.{alias.name}" for alias in node.names]
    return next((name for name in names if name in SYSTEM_MODULES | SYSTEM_CALLS), None)


# ---------------------------------------------------------------- our tree


@pytest.fixture(scope="module")
def tree() -> dict[str, Module]:
    return parse_modules(load_sources(SOURCE))


def test_the_whole_tree_is_read(tree: dict[str, Module]) -> None:
    assert {"assay", "assay.errors", "assay.values.study", "assay.values.layout"} <= set(tree)
    assert sum(len(module.imports) for module in tree.values()) > 50


def test_imports_flow_down(tree: dict[str, Module]) -> None:
    assert list(layer_problems(tree)) == []


TOOLS = re.compile("runx|mlrunner|perfzero|torq", re.IGNORECASE)
NAMED = {  # lines of the core that name a tool
    "assay.launch.commands.run": 1,  # help texts, which users read: which files `assay run` takes,
    "assay.launch.commands.rerun": 1,
    "assay.reading.commands.index": 1,  # and which folders are read
    "assay.reading.commands.tables": 1,
    "assay.values.layout": 1,  # the settings file by which a command sees that a plug-in is to be asked
}


def test_the_core_names_no_other_tool() -> None:
    core = {name: text for name, text in load_sources(SOURCE).items() if part_of(name) not in PLUGINS}
    found = {name: sum(bool(TOOLS.search(line)) for line in text.splitlines()) for name, text in core.items()}
    assert {name: count for name, count in found.items() if count} == NAMED


def test_there_is_no_import_cycle(tree: dict[str, Module]) -> None:
    assert list(cycle_problems(tree)) == []


def test_each_library_is_imported_in_its_home(tree: dict[str, Module]) -> None:
    assert list(home_problems(tree)) == []


def test_module_names_say_something(tree: dict[str, Module]) -> None:
    assert list(name_problems(tree)) == []


def test_only_system_asks_the_operating_system() -> None:
    assert list(system_problems(load_sources(SOURCE))) == []


def test_each_name_of_a_registry_loads() -> None:
    """Rule 7: what is imported by name is a string `module:attribute`, and every such string resolves."""
    found = {text for source in load_sources(SOURCE).values() for text in find_registered(source)}
    assert {"assay.execute.local:LocalExecutor", "assay.models.backends.ort:OrtBackend"} <= found
    for text in sorted(found):
        module, _, attribute = text.partition(":")
        assert getattr(importlib.import_module(module), attribute, None) is not None, text


def find_registered(source: str) -> Iterator[str]:
    for node in ast.walk(parse(source)) if REGISTERED.search(source) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and REGISTERED.fullmatch(node.value):
            yield node.value


def test_our_own_modules_are_imported_by_whole_names_only() -> None:
    """A name that is put together from parts is found by no search, and by no check."""
    assert [name for name, text in load_sources(SOURCE).items() if "import_module(f" in text] == []


APIS = sorted(path.parent.name for path in (SOURCE / "assay").glob("*/api.py"))


@pytest.mark.parametrize("package", APIS)
def test_each_name_of_an_api_loads(package: str) -> None:
    api = importlib.import_module(f"assay.{package}.api")
    names = [name for names in api.HOMES.values() for name in names.split()]
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(api, name) is not None
    declared = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(declared) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {"annotations", "TYPE_CHECKING", "build_getattr"} == set(names), "what the type checker sees"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = api.nothing


# ---------------------------------------------------------------- light imports, in fresh processes

PROBE = """
import importlib, json, os, sys
before = set(sys.modules)
sys.argv = ["probe", "--no-such-flag", "no-such-file"]
importlib.import_module(sys.argv_module)
loaded = {name.split(".")[0] for name in set(sys.modules) - before} - {"assay"}
os.write(3, json.dumps(sorted(loaded - set(sys.stdlib_module_names))).encode())
"""


def import_in_fresh_process(name: str, folder: Path, source: Path = SOURCE) -> tuple[set[str], str]:
    """The libraries that importing `name` loads, and all that it prints."""
    read, write = os.pipe()
    code = PROBE.replace("sys.argv_module", repr(name)).replace("os.write(3", f"os.write({write}")
    try:
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            pass_fds=[write],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    with os.fdopen(read) as stream:
        loaded = stream.read()
    assert result.returncode == 0, result.stderr
    return set(json.loads(loaded)), result.stdout + result.stderr


@pytest.mark.parametrize("name", LIGHT)
def test_importing_is_light_and_silent(name: str, tmp_path: Path) -> None:
    loaded, printed = import_in_fresh_process(name, tmp_path)
    assert loaded == set()
    assert printed == ""
    assert list(tmp_path.iterdir()) == [], "importing wrote a file"


# ---------------------------------------------------------------- the checker sees what it must


def tree_of(**sources: str) -> dict[str, Module]:
    """A small tree: `record__index="import x"` is assay/record/index.py."""
    named = {("assay." + name.replace("__", ".")) if name != "assay" else name: text for name, text in sources.items()}
    return parse_modules(named)


@pytest.mark.parametrize(
    "sources",
    [
        {"system__files": "from assay.values import run", "values__run": ""},
        {"values__study": "import assay.record.run_directory", "record__run_directory": ""},
        {"plan__expand": "from assay.execute import local", "execute__local": ""},
        {"record__run_directory": "from assay.follow import refresh", "follow__refresh": ""},
        {"follow__refresh": "from assay.reading import best", "reading__best": ""},
        {"reading__best": "def f():\n    from assay.launch import rerun", "launch__rerun": ""},
        {"launch__sweep": "from assay.cli import main", "cli__main": ""},
        {"launch__sweep": "from assay.search import source", "search__source": ""},
        {"execute__registry": "EXECUTORS = {'ssh': 'assay.farms.ssh:SshExecutor'}", "farms__ssh": ""},
        {"cli__main": "if TYPE_CHECKING:\n    from assay.bench import api", "bench__api": ""},
        {"golden__flow__check": "from assay.bench import api", "bench__api": ""},
        {"golden__flow__check": "from assay.cli import main", "cli__main": ""},
        {"golden__web_pages": "from assay.web import site", "web__site": ""},
        {"compat__harness__command": "from assay.golden.flow import check", "golden__flow__check": ""},
        {"compat__runx__command": "from assay.golden import api", "golden__api": ""},
        {"runs": "from assay.cli import main", "cli__main": ""},
        {"script": "from assay.record import run_directory", "record__run_directory": ""},
        {"logx": "async def f():\n    import assay.reading.api", "reading__api": ""},
        {"bench__benchmark": "from assay.bench.flow import run", "bench__flow__run": ""},
        {"bench__child": "from assay.observe import machine", "observe__machine": ""},
        {"kitchen__sink": ""},
        {"plan__expand": "from . import naming", "plan__naming": ""},
        {"plan__expand": "from ..values import study", "values__study": ""},
    ],
)
def test_a_wrong_import_is_seen(sources: dict[str, str]) -> None:
    assert len(list(layer_problems(tree_of(**sources)))) == 1


def test_right_imports_are_left_alone() -> None:
    fine = tree_of(
        assay="def f():\n    from assay import script, runs",
        errors="import enum",
        system__files="from assay.errors import AssayError",
        values__run="from assay.values.study import Study\nfrom assay.errors import AssayError",
        values__study="from assay.system import files",
        plugins="from assay.system import files",
        record__index__base="",
        record__index__sqlite="from assay.record.index import base\nfrom assay.values import run",
        execute__registry="from assay import plugins",
        follow__refresh="from assay.record.index import sqlite",
        follow__api="from assay.follow.refresh import refresh_study",
        reading__best="from assay.follow import refresh",
        launch__sweep="from assay.reading import best",
        show__table="",
        golden__api="",
        golden__flow__check="from assay.follow import api\nfrom assay.golden.judge import window",
        golden__judge__window="",
        golden__web_pages="from assay.web import api",
        web__api="",
        bench="from assay.bench.benchmark import measure",
        bench__benchmark="from assay.values import run",
        compat__harness__command="from assay.golden import api\nfrom assay import __version__",
        cli__main="from assay import __version__\nfrom assay.launch import sweep",
        script="from assay.values import run",
        runs="from assay.follow import api",
    )
    assert list(layer_problems(fine)) == []
    assert list(cycle_problems(fine)) == []


def test_a_cycle_is_seen_also_through_functions_and_packages_and_a_diamond_is_none() -> None:
    modules = tree_of(
        plan__a="import assay.plan.b",
        plan__b="def f():\n    from assay.plan import c",
        plan__c="from assay.plan.a import x",
        plan__d="from assay.plan import a",
    )
    assert list(cycle_problems(modules)) == ["assay.plan.a → assay.plan.b → assay.plan.c → assay.plan.a"]
    modules = tree_of(plan="from assay.plan.a import x", plan__a="from assay.plan import y")
    assert list(cycle_problems(modules)) == ["assay.plan → assay.plan.a → assay.plan"]
    bottom = "import assay.plan.d"
    modules = tree_of(plan__a="import assay.plan.b, assay.plan.c", plan__b=bottom, plan__c=bottom, plan__d="")
    assert list(cycle_problems(modules)) == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"plan__expand": "import yaml"}, "yaml is at home in assay.config"),
        ({"record__run_directory": "def f():\n    import numpy as np"}, "numpy is at home in assay.judge"),
        ({"observe__readings": "import psutil"}, "psutil is at home in nowhere"),
        ({"execute__registry": "def f():\n    __import__('ray')"}, "ray is at home in assay.farms.ray_bridge"),
        ({"plots__figure": "import matplotlib"}, "must be imported inside the function"),
        ({"logx": "import torch"}, "must be imported inside the function"),
        ({"judge__window": "from scipy.stats import t"}, "must be imported inside the function"),
        ({"plots__figure": "if not TYPE_CHECKING:\n    import matplotlib"}, "must be imported inside the function"),
        ({"show__table": "if TYPE_CHECKING:\n    import matplotlib"}, "matplotlib is at home in assay.plots.figure"),
        ({"show__plots": "def f():\n    import matplotlib"}, "matplotlib is at home in assay.plots.figure"),
        (
            {"logx": "try:\n    import tensorboardX\nexcept ImportError:\n    pass"},
            "must be imported inside the function",
        ),
    ],
)
def test_a_library_away_from_home_is_seen(source: dict[str, str], complaint: str) -> None:
    (problem,) = home_problems(tree_of(**source))
    assert complaint in problem


def test_libraries_at_home_are_left_alone() -> None:
    fine = tree_of(
        cli__main="import click",
        config__source="import yaml",
        plots__figure="if TYPE_CHECKING:\n    from matplotlib import axes\ndef f():\n    import matplotlib.pyplot",
        judge__window="def f():\n    def g():\n        import numpy",
        logx="class L:\n    def save(self):\n        import torch",
        plan__select="import select, json, tomllib",
    )
    assert list(home_problems(fine)) == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("def f(pid):\n    return open(f'/proc/{pid}/stat')", "/proc"),
        ("NAME = '/proc'", "/proc"),
        ("SCRIPT = 'read -r boot < /proc/sys/kernel/random/boot_id'", "/proc"),
        ("import fcntl", "fcntl"),
        ("def f():\n    from fcntl import flock", "fcntl"),
        ("def f():\n    __import__('termios')", "termios"),
        ("import os\nos.replace('a', 'b')", "os.replace"),
        ("import os\nmove = os.rename", "os.rename"),
        ("from os import replace", "os.replace"),
        ("def f(path):\n    path.rename('b')", "path.rename"),
        ("import subprocess\nsubprocess.run(['git', 'status'])", "git"),
        ("ARGV = ('git', *WORDS)", "git"),
        ("import shutil\nshutil.which('git')", "git"),
        ("import os\nos.get_terminal_size(1)", "os.get_terminal_size"),
        ("import shutil\nshutil.get_terminal_size()", "shutil.get_terminal_size"),
        ("import sys\nsys.stdout.isatty()", "sys.stdout.isatty"),
    ],
)
def test_use_of_the_operating_system_elsewhere_is_seen(source: str, what: str) -> None:
    assert list(system_problems({"assay.system.files": source})) == []
    (problem,) = system_problems({"assay.show.table": source})
    assert problem.endswith(f": {what} belongs in assay.system")


def test_what_only_mentions_the_operating_system_is_left_alone() -> None:
    source = (
        '"What /proc/PID/stat shows."\ncheck("git", "mount /proc (containers)", "data/proc/x", files.rename("a", "b"))'
    )
    assert list(system_problems({"assay.show.table": source})) == []


@pytest.mark.parametrize("name", ["record__utils", "plan__helpers__names", "manager", "judge__numpy"])
def test_an_empty_name_is_seen(name: str) -> None:
    assert len(list(name_problems(tree_of(**{name: ""})))) == 1


@pytest.mark.parametrize(
    ("source", "loaded", "printed"),
    [("import yaml", {"yaml"}, ""), ("print('hello')", set(), "hello\n"), ("import json", set(), "")],
)
def test_a_heavy_or_loud_import_is_seen(tmp_path: Path, source: str, loaded: set[str], printed: str) -> None:
    package = tmp_path / "assay"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    found, text = import_in_fresh_process("assay", tmp_path, source=tmp_path)
    assert loaded <= found
    assert bool(found) == bool(loaded)
    assert text == printed


# Names that users import or that other tools gave; everything else has one name and one meaning.
SEVERAL = {"Study", "Run", "Series", "Settings", "UsageError", "Table", "Chart", "Image", "Histogram"}


def test_a_class_name_has_one_meaning() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and node.name not in SEVERAL:
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
