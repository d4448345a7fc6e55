"""A root in which every text of every record is hostile, with links, pipes and devices where files are expected.

Records are made as the commands make them; then each text in them that may be any text is replaced (`poison`).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.bench_samples import execution
from tests.golden_training import Lab
from tests.models.report.model_reports import bad_report

from assay.bench.flow.archive import write_as_run
from assay.bench.records import BENCH_FILE
from assay.bench.values.execution import BenchExecution
from assay.compat.torq.session_runs import store_session
from assay.follow.api import StudyLocation
from assay.golden.records import Head
from assay.golden.values import GoldenTestReport
from assay.models.records import write_report
from assay.models.values.model import ModelReport
from assay.values.plain import build_plain, parse_plain

SECRET = "the-content-of-a-file-outside-4711"
PIECES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "{{7*7}}{% raw %}",
    "javascript:alert(1)",
    "</textarea></title></style></pre></svg>",
    "]]>",
    "\x1b[31mred\x1b]0;title\x07",
    "\x00\x07\r\n",
    "../../../etc/passwd",
    "\u202e\u2066rtl\u200f",
    "&lt;b&gt;",
)
TEXT = " ".join(PIECES)
# of folders and files, which have no slash and no zero
NAMES = (
    "<script>alert(1)<!--",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "javascript:alert(1)",
    "..%2f..%2fetc%2fpasswd",
    "a\nb\u202e\x1b[31m",
    "-rf",
    "?x=1&y=#z",
    "n" * 250,
)
STUDY = "<svg onload=alert(1)>{{7*7}}"


def build(folder: Path, *, is_whole: bool = True) -> Path:
    """The root. Next to it is a file that no page may show. Not whole: of each kind of odd run a few."""
    root = folder / "runs"
    (root / STUDY / ".assay").mkdir(parents=True)
    secret = folder / "secret.json"
    secret.write_text(json.dumps({"host": SECRET, "packages": {SECRET: SECRET}, "text": SECRET}))
    for number, name in enumerate(NAMES):
        _write_run(root / STUDY / name, number)
    _set_traps(root / STUDY / NAMES[0], secret)
    _write_odd_runs(root / STUDY, secret, is_whole)
    _write_verdicts(root / STUDY)
    _write_golden(folder, root)
    _write_benchmarks(root)
    _write_models(root)
    _write_session(folder, root)
    return root


# ---------------------------------------------------------------- runs


def _write_run(run: Path, number: int) -> None:
    (run / "metrics").mkdir(parents=True)
    (run / "code").mkdir()
    spec = {
        "id": f"{number:016x}",
        "name": TEXT,
        "params": {TEXT: TEXT, "n": number, "j": PIECES[4], "nested": {TEXT: [TEXT]}},
        "commands": [["train", TEXT, None], ["b", TEXT, 3.0]],
        "title": TEXT,
        "tag": TEXT,
        "env": [[TEXT, TEXT]],
    }
    record = {
        "format": 1, "study": TEXT, "uid": f"u{number}", "created_at": 1e9, "source": TEXT, "workdir": TEXT,
        "code_hash": f"{number}{TEXT}", "commit": TEXT, "overrides": [TEXT], "settings": [TEXT],
        "parent": f"{STUDY}/{NAMES[0]}" if number else f"../../{TEXT}", "spec": spec,
    }  # fmt: skip
    environment = {
        "format": 1, "host": TEXT, "user": TEXT, "os": TEXT, "cpu": TEXT, "cpu_count": number, "python": TEXT,
        "packages": {TEXT: TEXT, PIECES[0]: PIECES[1]}, "gpus": [{"index": 0, "name": TEXT}], "driver": TEXT,
        "command_line": [TEXT], "job_python": TEXT, "job_packages": {TEXT: f"{number}"},
        "git": {"commit": TEXT, "branch": TEXT, "message": TEXT, "dirty": True, "remote": PIECES[4],
                "diff": f"diff --git a/{TEXT} b/x\n--- a\n+++ b\n@@ -1 +1 @@\n-{TEXT}\n+{TEXT}\n"},
    }  # fmt: skip
    lease = {
        "executor": "local", "job_id": TEXT, "host": TEXT, "pid": 1, "start": 1, "boot": TEXT, "slot": TEXT,
        "attempt": 1, "started_at": 1e9,
    }  # fmt: skip
    outcome = {"state": "failed", "attempt": 1, "codes": {"train": 1}, "reason": TEXT}
    outcome |= {"started_at": 1e9, "ended_at": 2e9}
    _dump(run / "run.json", record)
    _dump(run / "environment.json", environment)
    _dump(run / "lease.1", lease)
    _dump(run / "stop.1", {"kind": "user", "who": TEXT})
    _dump(run / "outcome.1", outcome)
    _dump(run / "tags.json", {"format": 1, "tags": [TEXT[:90], "two"], "notes": [{"at": 1e9, "text": TEXT}]})
    (run / "train.exit.1").touch()
    (run / "train.log").write_bytes(TEXT.encode() + b"\xff\xfe\x80 half a line")
    (run / "job.log").write_text(f"1000000000.1 train start\n{TEXT}\n1000000001.1 train exit 1\nnan x start\n")
    (run / "job.sh").write_text(TEXT)
    points = [{"time": 1e9 + i, "step": i, TEXT: i, PIECES[1]: float("nan") if i % 2 else 1e308} for i in range(5)]
    (run / "metrics" / "1-1-1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in points))
    reading = {"processes": 1, "cpu_s": 1.0, "rss_bytes": 1, "vms_bytes": 1, "peak_rss_bytes": 1}
    lines = [json.dumps({"time": 1e9 + i, **reading}) for i in range(3)]
    (run / "readings.jsonl").write_text("\n".join(lines) + f'\n{{"time": "{PIECES[0]}"}}\n')
    (run / "code" / "train.py").write_text(f"{TEXT}\n{number}\n")
    for name in NAMES if number < 2 else ():
        (run / name).write_text(TEXT)
        (run / f"{name[:200]}.png").write_text("<svg onload=alert(1)>")
    (run / "page.html").write_text("<script>alert(1)</script>")
    (run / "picture.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (run / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n<script>alert(1)</script>")
    (run / "secrets.sh").write_text(f"export KEY={SECRET}")
    for name, text in _build_media().items() if number < 2 else ():
        (run / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (run / "files" / name).write_text(text)


@cache
def _build_media() -> dict[str, str]:
    """What a script logged, by the names of its files: a page that tries everything, a table of texts, and tables that
    are none."""
    cells = [TEXT, {"file": "../secrets.sh"}, {"file": f"media/{TEXT}"}, {"file": ["x"]}, "\ud800", 10**4000, None]
    tables = {
        "t": {"columns": [TEXT, None, *range(90)], "data": [cells] * 60},
        "u": {"columns": {}, "data": 3},
        "v": {"columns": ["a"], "data": [TEXT, {}, 3]},
        "w": [TEXT],
        "x": {"columns": [], "data": [[]]},
    }
    texts = {f"media/{name}/1.table.json": json.dumps(table) for name, table in tables.items()}
    texts["media/y/1.table.json"] = "[" * 100_000
    texts["media/page/1.html"] = (
        f"<p style='color: red'>logged</p>{TEXT}<script>alert(1)</script><base href='https://outside.invalid/'>"
        "<meta http-equiv=refresh content='0;url=https://outside.invalid/'><img src=/studies onerror=alert(1)>"
        "<link rel=stylesheet href=https://outside.invalid/x.css><iframe src=/studies></iframe>"
        "<form action=/api/x method=post><button autofocus onfocus=alert(1)>x</button></form>"
    )
    lines = [{"step": TEXT, "name": TEXT, "file": each, "caption": TEXT} for each in (*texts, "../page.html", "../x")]
    texts["media.jsonl"] = "".join(f"{json.dumps(line)}\n" for line in lines) + "[]\nhalf"
    return texts


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _set_traps(run: Path, secret: Path) -> None:
    """What is not a file of the run, under names that are read and under names of its own."""
    os.symlink(secret, run / "link.txt")
    os.symlink("/etc", run / "folder")
    os.symlink(secret, run / "b.log")
    os.symlink(secret, run / "code" / "train2.py")
    os.symlink("loop", run / "loop")
    os.mkfifo(run / "pipe.log")
    os.mkfifo(run / "trace.json")
    (run / "profile").mkdir()
    os.mkfifo(run / "profile" / "a.json")
    os.mkfifo(run / "metrics" / "2-2-2.jsonl")
    with suppress(PermissionError):  # needs root
        os.mknod(run / "device.log", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        os.mknod(run / "metrics" / "3-3-3.jsonl", 0o600 | stat.S_IFCHR, os.makedev(1, 5))


def _write_odd_runs(study: Path, secret: Path, is_whole: bool) -> None:
    """In place of each file that is read: a pipe, a folder, a link, endless nothing, and half of it."""
    names = ("run.json", "environment.json", "lease.1", "outcome.1", "tags.json", "readings.jsonl", "job.log",
             "train.log", "benchmark.json", "model.json", "job.sh")  # fmt: skip
    makers: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "folder": lambda path: path.mkdir(),
        "link": lambda path: os.symlink(secret, path),
        "zero": lambda path: os.symlink("/dev/zero", path),
        "half": lambda path: path.write_text('{"format": 1, "stu'),
        "types": lambda path: path.write_text('[{"format": "x"}, null]'),
        "nested": lambda path: path.write_text("[" * 100_000),
    }
    for kind, make in makers.items():
        some = names if kind in ("pipe", "zero") else ("run.json", "environment.json", "outcome.1", "model.json")
        for name in some if is_whole else ("run.json", "outcome.1"):
            run = study / f"{kind} {name}"
            _write_run(run, 50)
            (run / name).unlink(missing_ok=True)
            make(run / name)
        run = study / f"{kind} metrics"
        _write_run(run, 60)
        (run / "metrics" / "1-1-1.jsonl").unlink()
        make(run / "metrics" / "1-1-1.jsonl")


def _write_verdicts(study: Path) -> None:
    finding = {"kind": "FAIL", "subject": TEXT, "message": TEXT, "value": 1.0, "expected": 2.0}
    facts = [{"run": run, "kind": "FAIL", "findings": [finding], "comparisons": 1} for run in (*NAMES, None)]
    lines = [{"at": 1e9, "source": TEXT, "verdicts": facts}, {"at": "x", "source": 3, "verdicts": [None]}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (study / ".assay" / "verdicts.jsonl").write_text(text + "half a li")


# ---------------------------------------------------------------- products


def poison(kind: type[Any], plain: Any) -> Any:
    """Every text of a plain record that may be any text is hostile."""
    for place, key in list(_list_texts(plain)):
        before = place[key]
        place[key] = f"{TEXT}{before}"
        try:
            parse_plain(kind, plain)
        except (ValueError, TypeError, KeyError, AttributeError):
            place[key] = before  # an enumeration, or a text of a certain form
    return plain


def _list_texts(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(inner, str):
            yield value, key
        else:
            yield from _list_texts(inner)


def _write_golden(folder: Path, root: Path) -> None:
    (folder / "lab").mkdir()
    lab = Lab(folder / "lab")
    lab.store = lab.folder / "runs" / "store"
    lab.gather()
    lab.check()
    for path in (lab.folder / "runs").rglob("*.json.gz"):
        head, report = gzip.decompress(path.read_bytes()).decode().splitlines()
        first = json.loads(head)
        known = {name: first[name] for name in first if name not in ("source", "test", "manifest")}
        poisoned = {**poison(Head, {**first}), **{k: known[k] for k in ("format", "id", "mode", "kind") if k in known}}
        lines = (json.dumps(poisoned), json.dumps(poison(GoldenTestReport, json.loads(report))))
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    for each in (lab.folder / "runs").iterdir():
        if each.name != ".assay":
            each.rename(root / each.name)
    store = root / "store"
    for path in list(store.glob("*.json")):
        (store / f"{NAMES[1]}_convergence_harness_manifest.json").write_text(path.read_text())


def _write_benchmarks(root: Path) -> None:
    location = StudyLocation(str(root), "bench")
    Path(location.dir).mkdir()
    for number in range(14):
        each = execution(number, 1.0 + (number > 7), label=TEXT, setup={"cpu_model": f"{TEXT}{number % 2}", TEXT: TEXT})
        assert write_as_run(location, each, each.label)
    for number, path in enumerate(sorted(Path(location.dir).glob(f"*/{BENCH_FILE}"))):
        content = json.loads(path.read_text())
        content["method"] = content["result"]["name"] = f"m.{TEXT}"
        if number % 3 == 0:
            content = {**poison(BenchExecution, content), "format": content["format"]}
        path.write_text(json.dumps(content))


def _write_models(root: Path) -> None:
    report = parse_plain(ModelReport, poison(ModelReport, build_plain(bad_report())))
    for name in ("m_1", "m_2"):
        run = root / "model" / name
        _write_run(run, 70)
        write_report(str(run), report)


def _write_session(folder: Path, root: Path) -> None:
    (folder / "session").mkdir()
    (folder / "aside").mkdir()
    tests = [
        {"module": TEXT, "name": f"{TEXT}{n}", "outcome": word, "linked_issue": PIECES[4], "measurements": {TEXT: 1.0}}
        for n, word in enumerate(("passed", "failed", "xfail"))
    ]
    plan = {"test_plan": TEXT, "batch_name": TEXT, "git_commit": TEXT, "workflow_url": PIECES[4], "test_runs": tests}
    (folder / "session" / "test_session.json").write_text(json.dumps(plan))
    with suppress(Exception):
        store_session(str(folder / "session"), str(folder / "aside"), str(root), 1.7e9)


# ---------------------------------------------------------------- odd values

ODD = {
    "half a character": "\ud800 \udc80",
    "nothing": "",
    "many digits": 10**4000,
    "more digits than Python reads": f"\x01{'9' * 5000}\x01",  # written without its quotes
    "negative": -(10**400),
    "infinite": float("inf"),
    "not a number": float("nan"),
    "a list": [["\ud800"]],
    "an object": {"\ud800": {"": None}},
    "null": None,
    "true": True,
}


def build_odd(good: Path, root: Path, kind: str) -> None:
    """A study: of each of its runs one text or number is the odd value of this kind, or one name."""
    files = [path.relative_to(good) for path in sorted(good.rglob("*")) if path.is_file()]
    numbered = ("outcome.", "lease.", "stop.", "end.")
    read = [path for path in files if path.suffix in (".json", ".jsonl") or path.name.startswith(numbered)]
    records = {path: _load_lines(good / path) for path in read}
    assert {"run.json", "tags.json", "outcome.1", "readings.jsonl"} <= {path.name for path in records}, records.keys()
    (root / kind / ".assay").mkdir(parents=True)
    shutil.copytree(good, root / kind / "good")
    for file, lines in records.items():
        for number, make in enumerate(_replace_each(lines, ODD[kind])):
            run = root / kind / f"{file.name} {number}"
            shutil.copytree(good, run)
            text = "".join(json.dumps(line) + "\n" for line in make())
            (run / file).write_text(re.sub(r'"\\u0001(\d+)\\u0001"', r"\1", text))


def _load_lines(path: Path) -> list[Any]:
    text = path.read_text()
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def _replace_each(lines: list[Any], value: Any) -> Iterator[Callable[[], list[Any]]]:
    """The lines with one place replaced: each text and number, and, where it is a text, each name."""
    for at, line in enumerate(lines[:2]):
        for path, is_name in _list_places(line):

            def make(at: int = at, path: tuple[Any, ...] = path, is_name: bool = is_name) -> list[Any]:
                changed = json.loads(json.dumps(lines))
                place = changed[at]
                for key in path[:-1]:
                    place = place[key]
                if is_name:
                    place[value] = place.pop(path[-1])
                else:
                    place[path[-1]] = value
                return changed

            if not is_name or isinstance(value, str):
                yield make


def _list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(key, str) and path[-1:] != ("packages",):
            yield (*path, key), True
        if not isinstance(inner, dict | list):
            yield (*path, key), False
        yield from list(_list_places(inner, (*path, key)))[: 4 if key in ("packages", "job_packages") else None]
