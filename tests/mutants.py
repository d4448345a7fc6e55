"""Which changes of the source do the tests not notice? To be run by hand, before and after a change of the tests.

    python -m tests.mutants > before.jsonl
    python -m tests.mutants --again before.jsonl > after.jsonl

Each mutant is one small change in a copy of the tree: a comparison flipped, a number or a truth value changed, a
condition negated, a result replaced by None, a statement removed. The tests of its package are executed until the first
that fails; those that import its module come first. Tests that fail without any mutant are left out.
`--again` takes the mutants of an earlier run, by their function and text: lines may have moved.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.test_pages import build_environment

TOP = Path(__file__).parent.parent
PACKAGES = ("execute", "record", "judge", "launch")
SEED = 20261117
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.In: ast.NotIn, ast.Is: ast.IsNot
}  # fmt: skip
FLIPPED |= {other: op for op, other in FLIPPED.items()}
NOT_CODE = {"annotation", "returns", "decorator_list"}
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    path: str  # below the top of the tree
    function: str
    kind: str
    text: str  # the code that is replaced
    number: int  # of the mutants that are equal in all of this


@dataclass(frozen=True)
class Place:
    begin: tuple[int, int]
    end: tuple[int, int]
    new: str


# ---------------------------------------------------------------- finding them


def find_mutants(top: Path) -> dict[Mutant, Place]:
    found: dict[Mutant, Place] = {}
    for package in PACKAGES:
        for path in sorted((top / "src" / "assay" / package).rglob("*.py")):
            source, seen = path.read_text(encoding="utf-8"), Counter[tuple[str, ...]]()
            for function, kind, node, new in find_changes(ast.parse(source), ""):
                words = (str(path.relative_to(top)), function, kind, ast.get_source_segment(source, node) or "")
                place = Place((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), new)
                found[Mutant(*words, seen[words])] = place
                seen[words] += 1
    return found


def find_changes(node: ast.AST, function: str) -> Iterator[tuple[str, str, ast.expr | ast.stmt, str]]:
    if isinstance(node, ast.JoinedStr):  # positions inside of it are not those of the file
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    if function and isinstance(node, ast.expr | ast.stmt):
        yield from ((function, *change) for change in change_node(node))
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in NOT_CODE:
                yield from find_changes(child, function)


def change_node(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in FLIPPED:
            yield "comparison", node, ast.unparse(ast.Compare(left, [FLIPPED[type(op)]()], [right]))
        case ast.Constant(bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", node, str(value + 1)
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield "condition", test, f"(not ({ast.unparse(test)}))"
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", value, "None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise():
            yield "statement", node, "pass"


def apply(source: str, place: Place) -> str:
    lines = source.encode().splitlines(keepends=True)
    (first, left), (last, right) = place.begin, place.end
    changed = lines[first - 1][:left] + place.new.encode() + lines[last - 1][right:]
    return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()


# ---------------------------------------------------------------- executing tests


class Tree:
    """A copy of the tree with a Python that imports it."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "tree"
        shutil.copytree(TOP, self.top, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        self.python = build_environment(folder / "venv") / "python"
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        (site / "a.pth").write_text(f"{self.top / 'src'}\n")  # before the path of all packages
        self._clock = time.time()
        self._broken: dict[str, tuple[list[str], float]] = {}

    def write(self, path: str, text: str) -> None:
        """Write a file with a later time, in whole seconds, by which a compiled file is known to be old."""
        self._clock += 2
        (self.top / path).write_text(text, encoding="utf-8")
        os.utime(self.top / path, (self._clock, self._clock))

    def choose_tests(self, path: str) -> list[str]:
        """The tests of the module's package; first its own, then those that import it."""
        package, module = Path(path).parts[2], Path(path).stem
        name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        files = sorted((self.top / "tests" / package).rglob("test_*.py"))
        files.sort(key=lambda file: (file.stem != f"test_{module}", name not in file.read_text(encoding="utf-8")))
        return [str(file.relative_to(self.top)) for file in files]

    def call(self, words: list[str], limit_s: float) -> tuple[str, list[str]]:
        """`survived`, `killed` or `timeout`, and the tests that failed."""
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not services and not long"]
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([*command, *words], cwd=self.top, stdout=out, stderr=out, start_new_session=True)
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                return "timeout", []
            out.seek(0)
            return "killed" if code else "survived", FAILED.findall(out.read())

    def find_broken(self, path: str) -> tuple[list[str], float]:
        """Return the tests of the package that fail without a mutant, and how long all of them take."""
        package = Path(path).parts[2]
        if package not in self._broken:
            begin = time.monotonic()
            failed = self.call(self.choose_tests(path), 3600)[1]
            self._broken[package] = failed, time.monotonic() - begin
            print(f"{package}: {len(failed)} tests fail without a mutant {failed}", file=sys.stderr)
        return self._broken[package]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", metavar="TEXT", help="in paths with this text")
    parser.add_argument("--again", type=Path, metavar="FILE", help="take the mutants of an earlier run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(Path(folder))
        places = find_mutants(tree.top)
        chosen = random.Random(SEED).sample(list(places), 300)
        if options.again:
            lines = options.again.read_text(encoding="utf-8").splitlines()
            chosen = [Mutant(**json.loads(line)["mutant"]) for line in lines]
        for mutant in [mutant for mutant in chosen if options.only in mutant.path][: options.count]:
            result, failed = ("gone", []) if mutant not in places else try_mutant(tree, mutant, places[mutant])
            print(json.dumps({"mutant": asdict(mutant), "result": result, "failed": failed}), flush=True)


def try_mutant(tree: Tree, mutant: Mutant, place: Place) -> tuple[str, list[str]]:
    broken, seconds = tree.find_broken(mutant.path)
    source = (tree.top / mutant.path).read_text(encoding="utf-8")
    tree.write(mutant.path, apply(source, place))
    try:
        words = ["-x", *tree.choose_tests(mutant.path), *(f"--deselect={name}" for name in broken)]
        return tree.call(words, 60 + 3 * seconds)
    finally:
        tree.write(mutant.path, source)


if __name__ == "__main__":
    main()
