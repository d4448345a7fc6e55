"""Damaged input for every format that Assay reads: a mutator, a sample of each format, and its reader."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gzip
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.tracking_databases import MLFLOW_TABLES, TRACKIO_TABLES, write_database

from assay.cli.main import run
from assay.errors import AssayError
from assay.plugins import load
from assay.system.files import index_path

Read = Callable[[Path], object]
Call = Callable[[Path, tuple[str, ...]], tuple[int, str, str]]
Mutate = Callable[[bytes, random.Random], bytes]
LIMIT_S = 60  # the time within which an answer must come on a busy machine


@dataclass(frozen=True)
class Format:
    """A format of input. `build` makes a sample in an empty folder and returns the file to damage.

    Either `read` is a function, which may raise AssayError alone, or `commands` are called in the folder. `is_copy`:
    the file is made from others, so that the commands print the same as before, whatever happens to it.
    """

    name: str
    build: Callable[[Path], Path]
    read: Read | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    is_copy: bool = False
    mutate: Mutate | None = None  # None: `mutate`


# ---------------------------------------------------------------- the mutator

_ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 2**31, 2**63, 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "x", "0", "\x00"),
    *("é" * 40, [], [1], [[]], {}, {"x": 1}, [None], {"": {}}, "../../x", "[" * 50, "nan", [1, "a"], {"format": 1}),
)
_BOUNDS: tuple[Any, ...] = (
    *(0, 1, -1, 10**400, -(10**400), 2**63, 1e308, float("inf"), float("nan"), "x", None, True, []),
)
_AXES: tuple[Any, ...] = (
    *_ODD,
    *(
        {kind: [low, high]}
        for kind in ("uniform", "log_uniform", "int", "log_int", "range")
        for low in _BOUNDS
        for high in (5, 10**400)
    ),
    *({"range": [0, 10**400, step]} for step in (1, -1, 10**400, 0)),
    *({"range": bound} for bound in _BOUNDS),
    *({"values": [1]}, {"choice": [1], "weights": [1]}, {"min": 0, "max": 1}, {"count": 10**400}),
    *("{lr}", "[lr]", "{number}"),
    *("(" * 50, "1h", "10**400", "1e400", 10**4000),
)


NESTED = (b"[" * 100_000, b'{"a":' * 5000)  # more deeply than Python's JSON reader can follow


def mutate(data: bytes, chance: random.Random) -> bytes:
    ways = [_flip, _flip, _cut, _empty, _drop, _repeat, _insert, _swap_lines, _zeros]
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        content = json.loads(data)
        if chance.random() < 0.6:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                content = _replace_node(content, chance)
            return json.dumps(content).encode()
    for _ in range(chance.choice((1, 1, 2))):
        data = chance.choice(ways)(data, chance)
    return data


def mutate_yaml(data: bytes, chance: random.Random) -> bytes:
    """The values of a study file, or its text."""
    import yaml

    if chance.random() < 0.3:
        return mutate(data, chance)
    documents = list(yaml.safe_load_all(data))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(documents))
        documents[place] = _replace_node(documents[place], chance, _AXES)
    text: str = yaml.safe_dump_all(documents, allow_unicode=True, sort_keys=False)
    return text.encode("utf-8", "surrogatepass")


def mutate_lines(data: bytes, chance: random.Random) -> bytes:
    """Change one JSON document of a compressed file with a document in each line, or the file."""
    if chance.random() < 0.2:
        return mutate(data, chance)
    lines = gzip.decompress(data).splitlines()
    place = chance.randrange(len(lines))
    lines[place] = mutate(lines[place], chance)
    return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def mutate_onnx(data: bytes, chance: random.Random) -> bytes:
    """A field of a message, by onnx's own classes; a text in the file, which need not be UTF-8; or the bytes."""
    import onnx

    kind = chance.random()
    if kind < 0.2:
        return mutate(data, chance)
    if kind < 0.4:
        word = chance.choice((b"LeakyRelu", b"Conv", b"kernel_shape", b"alpha", b"\x01x", b"\x01y", b"\x01w", b"\x01g"))
        return data.replace(word, word[:1] + b"\xff" * (len(word) - 1))
    model = onnx.load_model_from_string(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _change_field(model, chance)
    return bytes(model.SerializeToString())


_NUMBERS = (0, 1, -1, 7, 99, 1000, 2**31 - 1, -(2**31))
_WIDE = (*_NUMBERS, 2**63 - 1, -(2**63))


def _change_field(message: Any, chance: random.Random) -> None:
    """Replace, remove or repeat a field of a message, or of a message inside of it."""
    fields = message.DESCRIPTOR.fields
    filled = [field for field, _ in message.ListFields()]
    field = chance.choice(filled if filled and chance.random() < 0.8 else fields)
    is_message = field.message_type is not None
    if field.is_repeated:
        values = getattr(message, field.name)
        if is_message and len(values) and chance.random() < 0.8:
            _change_field(chance.choice(values), chance)
        elif is_message:
            values.add()
        else:
            del values[chance.randrange(len(values) + 1) :]
            values.extend([_choose_value(field, chance)] * chance.choice((0, 1, 1, 3)))
    elif is_message:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _change_field(inner, chance)
    elif chance.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _choose_value(field, chance))


def _choose_value(field: Any, chance: random.Random) -> Any:
    if field.enum_type is not None:
        return chance.choice([each.number for each in field.enum_type.values])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return chance.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.type == field.TYPE_BYTES:
        return chance.choice((b"", b"\xff\xfe", b"x" * 7, bytes(400)))
    if field.type == field.TYPE_STRING:
        return chance.choice(("", "x", "y", "\x00", "é" * 50, "../../x", "a/b", "Loop"))
    if field.type in (field.TYPE_UINT64, field.TYPE_UINT32):
        return abs(chance.choice(_NUMBERS))
    return chance.choice(_WIDE if field.type == field.TYPE_INT64 else _NUMBERS)


def _replace_node(content: Any, chance: random.Random, odd: tuple[Any, ...] = _ODD) -> Any:
    """Replace or remove one value anywhere in the content."""
    if not isinstance(content, dict | list) or not content or chance.random() < 0.15:
        return chance.choice(odd)
    if isinstance(content, list):
        place = chance.randrange(len(content))
        if chance.random() < 0.1:  # then lists that belong together have unequal lengths
            return content[:place] + content[place + 1 :] * chance.choice((1, 2))
        return [*content[:place], _replace_node(content[place], chance, odd), *content[place + 1 :]]
    key = chance.choice(list(content))
    if chance.random() < 0.1:
        return {name: value for name, value in content.items() if name != key}
    return {**content, key: _replace_node(content[key], chance, odd)}


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _empty(_data: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"", b"\n", b"null", b"[]", b"{}", b"\xff\xfe", b"0", *NESTED))


def _drop(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.randrange(1, 64) :]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start : start + 64] * chance.randrange(2, 5) + data[start + 64 :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    text = chance.choice(
        (chance.randbytes(8), b": ", b"- ", b"\t", b"{", b"]", b"!!python/x", b"&a *a", b"\r", b"1e999", b"'")
    )
    return data[:start] + text + data[start:]


def _swap_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _zeros(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + bytes(min(512, len(data) - start)) + data[start + 512 :]


# ---------------------------------------------------------------- one input


class Sample:
    """The file of a format, which takes one damaged content after the other."""

    def __init__(self, form: Format, folder: Path, call: Call) -> None:
        self.form, self.folder, self.call = form, folder, call
        self.file = form.build(folder)
        self.data = self.file.read_bytes()
        self._require_good()
        if form.is_copy:
            self.baseline = {command: call(folder, command)[1] for command in form.commands}
            self.data = self.file.read_bytes()

    def _require_good(self) -> None:
        """Require that the whole sample is read: damage to an invalid one would not come past the first check."""
        if self.form.read is not None:
            self.form.read(self.file)
        for command in self.form.commands:
            code, _, err = self.call(self.folder, command)
            assert code == 0, f"{command}: {err}"

    def try_input(self, damaged: bytes, commands: tuple[tuple[str, ...], ...]) -> str | None:
        """Try one input; return what a user should never see, None if there is nothing."""
        if self.form.is_copy:
            for name in os.listdir(self.file.parent):
                (self.file.parent / name).unlink()
        elif self.file.is_dir():
            shutil.rmtree(self.file)
        put(self.file, damaged)
        if self.form.read is not None:
            return read_fault(self.form.read, self.file)
        return next((fault for command in commands if (fault := self.find_fault(command))), None)

    def find_fault(self, command: tuple[str, ...]) -> str | None:
        code, out, err = self.call(self.folder, command)
        if fault := judge_answer(code, err):
            return f"{command}: {fault}"
        if self.form.is_copy and out != self.baseline[command]:
            return f"{command} prints something else: {out}"
        return None


def read_fault(read: Read, file: Path) -> str | None:
    try:
        read(file)
    except AssayError as error:
        return None if str(error).strip() else "an empty message"
    except Exception as error:  # noqa: BLE001 that is what is looked for
        return f"{type(error).__name__}: {error}"
    return None


def judge_answer(code: int, err: str) -> str | None:
    if "bug in Assay" in err or "Traceback" in err:
        return err
    return f"exit code {code}: {err}" if code not in (0, 1, 2, 3, 4) else None


def call(folder: Path, arguments: tuple[str, ...]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return code, out.getvalue(), err.getvalue()


def put(file: Path, data: bytes) -> None:
    """Replace a file as an editor does, so that the folder's time changes."""
    aside = file.with_name(f".{file.name}.fuzz")
    aside.write_bytes(data)
    aside.replace(file)


def call_process(folder: Path, arguments: tuple[str, ...]) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "assay", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return -1, "", f"no answer in {LIMIT_S} s"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def run_inputs(form: Format, folder: Path, count: int, seed: int) -> Iterator[tuple[bytes, str]]:
    """Yield the inputs that are not answered well. Deeply nested input is always among those that are tried."""
    sample = Sample(form, folder, call)
    chance = random.Random(f"{form.name} {seed}")
    change = form.mutate or mutate
    for damaged in (*NESTED, *(change(sample.data, chance) for _ in range(count))):
        if fault := sample.try_input(damaged, form.commands):
            yield damaged, fault


def run_processes(form: Format, folder: Path, count: int, seed: int) -> Iterator[tuple[bytes, str]]:
    """Try inputs as run_inputs does, with one of the commands for each input, called as a user calls it."""
    sample = Sample(form, folder, call_process)
    chance = random.Random(f"{form.name} process {seed}")
    for _ in range(count):
        damaged = (form.mutate or mutate)(sample.data, chance)
        if fault := sample.try_input(damaged, (chance.choice(form.commands),)):
            yield damaged, fault


# ---------------------------------------------------------------- samples

STUDY = """study: fit
command: python train.py --lr {lr} [seed]
params: {lr: [0.1, 0.5], seed: 3}
sweep:
  - {lr: {log_uniform: [0.01, 1]}}
  - {lr: 3, seed: {range: [2, 9, 3]}}
subset: {count: 3, seed: 1}
repeat: 2
retries: 1
priority: 3
slots: [0, 1]
env: {A: b}
code: {kind: snapshot, ignore: ['*.x']}
stop: [{rule: bounds, metric: loss, max: 100}, {rule: asha, metric: loss, at: {min: 2, factor: 2}}]
metrics: {step: 'step (\\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
timeout: 2h
checks: [{metric: loss, at: last, max: 9}]
"""
ZIPPED = """command: {run: 'python train.py --lr {lr} [seed] [w]', timeout: 1h}
params: {lr: [0.1, 0.5], seed: [3, 4], w: {choice: [[1], null]}}
zip: [[lr, seed]]
when: {seed: 3}
resources: {gpus: 0, cpus: 2, gpu_memory: 1G}
metrics: {loss: {regex: 'loss ({number})', labels: [a]}, other: {jsonl: m.jsonl, step: s}}
leave_running: true
resume: {param: w, files: '*.pt'}
""".replace("command: {run", "commands: {train: {run").replace("timeout: 1h}", "timeout: 1h}}")
SEARCHING = """command: python train.py --lr {lr} [seed]
params: {lr: {log_uniform: [0.01, 1]}, seed: {int: [1, 5]}, x: [1, 2, a]}
search: {sampler: tpe, metric: loss, direction: min, trials: 4, seed: 1, at: last}
"""
RUNX = """CMD: 'python train.py'
HPARAMS: [{lr: [0.1, 0.2], arch: [a, b], RUNX.TAG: base}, {lr: 3}]
"""
MLRUNNER = """template:
  train: python train.py -n {name} --lr {lr} [stop]
  test: echo {_output}
default: {name: a, stop: False}
resource: [0, 1]
---
_title: first
name: [a, b]
lr: 0.1
---
_cmd: train
lr: [1, 2]
stop: [True]
"""
GOLDEN = """study: tiny
command: python train.py
metrics: {step: 'step (\\d+)', loss: 'loss ({number})'}
golden: {segment: 6, save: 'saved (\\S+)', checkpoint: --ckpt, resume: --load, start: --start, length: --until}
"""
CONVERGENCE = (Path(__file__).parents[1] / "examples" / "convergence" / "demo_config.yml").read_bytes()
SETTINGS = """root = "out"
[models]
tolerance = {float32 = {atol = 1e-5}}
[targets.t]
backend = "command"
run = "x"
"""


def write(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return build


@functools.cache
def make_runs() -> Path:
    """A folder with two finished runs, once in each process of the tests."""
    folder = Path(tempfile.mkdtemp(prefix="assay-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = "study: fit\ncommand: 'echo step {x} loss 2.5'\nparams: {x: [1, 2]}\nresources: {gpus: 0}\n"
    (folder / "study.yml").write_text(text + "metrics: {step: 'step (\\d+)', loss: 'loss ({number})'}\n")
    code, _, err = call(folder, ("run", "study.yml", "-j", "2", "--quiet"))
    assert code == 0, err
    return folder


def build_run(name: str) -> Callable[[Path], Path]:
    """A finished run and another one, of which the file of this name is damaged."""

    def build(folder: Path) -> Path:
        shutil.copytree(make_runs(), folder, symlinks=True, dirs_exist_ok=True)
        run_dir = folder / "runs" / "fit" / "x=1"
        extra = {
            "stop.1": {"who": "me", "why": "because", "kind": "user", "at": 1.5},
            "readings.jsonl": {"time": 1.0, "cpu_s": 0.5, "rss_bytes": 9, "peak_rss_bytes": 9, "processes": 1},
            "metrics/a1-r0-host-1-1.jsonl": {"step": 1, "time": 2.0, "acc": 0.5},
            "hparams.json": {"lr": 0.1, "name": "x"},
        }
        if name in extra:
            write(name, json.dumps(extra[name]) + "\n")(run_dir)
        return run_dir / name

    return build


def build_index(folder: Path) -> Path:
    import sqlite3

    build_run("run.json")(folder)
    call(folder, ("sum", "fit"))
    path = Path(index_path(folder / "runs", os.environ))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def build_array(name: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        import numpy as np

        if name.endswith(".npy"):
            np.save(folder / name, np.arange(6, dtype=np.float32).reshape(2, 3))
        else:
            np.savez_compressed(folder / name, x=np.arange(6, dtype=np.int64))
        return folder / name

    return build


def build_tensors(folder: Path) -> Path:
    import numpy as np

    from assay.models.graph.tensorfile import write_tensors

    write_tensors(folder, {"x": np.ones(3, np.float32), "t": np.array(["a", "b"], dtype=object)})
    return folder / "tensors.json"


def build_onnx(folder: Path) -> Path:
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[1] b = {0.5}> {
      a = Conv<kernel_shape=[1,1], strides=[1,1]>(x, w)
      c = Constant<value=float[1]{0.25}>()
      d = Add(a, c)
      t = Constant<value=bool[1]{1}>()
      e = If(t) <then_branch = p () => (float[1] p1) { p1 = Identity(b) },
                 else_branch = q () => (float[1] q1) { q1 = Constant<value=float[1]{2.0}>() }>
      f = Add(d, e)
      y = LeakyRelu<alpha=0.1>(f)
    }"""
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def build_events(folder: Path) -> Path:
    def record(content: bytes) -> bytes:
        from assay.observe.events import masked_crc32c

        head = struct.pack("<Q", len(content))
        return head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content))

    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 2.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", 12.5) + b"\x10\x01" + b"\x2a" + bytes([len(summary)]) + summary
    return write("events.out.tfevents.1", record(event) * 3)(folder)


# ---------------------------------------------------------------- readers


def read_array(path: Path) -> object:
    from assay.models.graph.tensorfile import load_array, load_arrays

    with contextlib.suppress(AssayError):
        load_array(path)
    return load_arrays(path) if path.suffix == ".npz" else None


def read_onnx(path: Path) -> object:
    from assay.models.graph.graph import build_outline, infer_specs, load_model

    model = load_model(path)
    infer_specs(model)
    return build_outline(model)


def read_golden(path: Path) -> object:
    """Read a golden as `golden show` and the page do."""
    from assay.follow.api import StudyLocation
    from assay.golden.manifests import load_manifest, render_manifest
    from assay.golden.page import build_golden_page
    from assay.show.html import render_html
    from assay.show.markdown import render_markdown
    from assay.values.document import Document

    if path.suffix == ".json":
        return render_manifest(load_manifest(str(path), "document"))
    page = build_golden_page(StudyLocation(str(path.parents[3]), path.parents[2].name), None)
    document = Document("x", [*page.blocks, *page.drift, *page.recording])
    return render_html(document), render_markdown(document)


def reader(name: str, *more: object) -> Read:
    """A reader that calls the function of this name, which loads when it is needed."""
    return lambda path: load(name)(str(path), *more)


def folder_reader(name: str, *more: object) -> Read:
    return lambda path: load(name)(str(path.parent), *more)


read_convergence = reader("assay.golden.config:load_golden_file")
read_manifest = reader("assay.golden.manifests:load_manifest", "document")
read_import = reader("assay.bench.importers.formats:load_foreign_file")
read_model_report = folder_reader("assay.models.records:load_report")
read_execution = folder_reader("assay.bench.records:load_execution")
read_settings = folder_reader("assay.config.settings:load_settings", {})


def read_runs(path: Path) -> object:
    """Read runs by the importer of the undamaged file, and by the importer that recognises the damaged one."""
    from assay.record.importers.registry import choose_importer, find_importers
    from assay.record.importers.sample import Sample

    name = path.stem if path.suffix == ".runs" else "mlflow"
    whole = path if path.suffix == ".runs" else next(each for each in path.parents if each.name == "mlruns")
    choose_importer(Sample(str(whole)), ["folders", "runs", "results"])
    (importer,) = (each for each in find_importers() if each.name == name)
    return load(importer.load)(str(whole))


def build_mlflow(damaged: str) -> Callable[[Path], Path]:
    """A store with one run, of which this file will be damaged."""

    def build(folder: Path) -> Path:
        store = {
            "7/meta.yaml": "experiment_id: '7'\nlifecycle_stage: active\nname: exp\n",
            "7/abc/meta.yaml": "run_id: abc\nrun_name: calm-sun\nstatus: 3\nstart_time: 1700000000000\nend_time: null\n",
            "7/abc/metrics/loss": "1700000000000 0.5 1\n1700000001000 0.25 2\n",
            "7/abc/params/lr": "0.1",
        }
        for name, text in store.items():
            (folder / "mlruns" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "mlruns" / name).write_text(text)
        return folder / "mlruns" / damaged

    return build


def read_series(path: Path) -> object:
    from assay.observe import events, files

    data = path.read_bytes()
    parsers: dict[str, Callable[[bytes, dict[str, Any]], object]] = {
        ".jsonl": lambda data, state: files.parse_jsonl_columns(data, state, final=True),
        ".csv": lambda data, state: files.parse_csv_columns(data, state, final=True),
        ".logx": lambda data, state: files.parse_logx_columns(data, state, final=True),
    }
    return parsers.get(path.suffix, events.parse_events_columns)(data, {})


def read_original(path: Path) -> object:
    from assay.compat import originals

    folder = str(path.parent)
    originals.load_submitted_params(folder)
    mlrunner = originals.load_mlrunner_params(folder), originals.load_mlrunner_stat(folder)
    return originals.load_hparams(folder, []), mlrunner


def read_artifact(path: Path) -> object:
    from assay.models.store.entry import EntryError, check_files, load_manifest, relocate

    try:
        manifest = load_manifest(str(path.parent))
        check_files(str(path.parent), manifest, None)
    except EntryError as error:  # the cache makes it again
        raise AssayError(str(error)) from error
    return relocate(manifest.facts, manifest.built_in, "/x"), manifest.size_bytes


def read_snapshot(path: Path) -> object:
    from assay.code.snapshot import list_changes, load_snapshot

    list_changes(path.parent.parent, path.parent.name, path.parent.name)
    return load_snapshot(path.parent.parent, path.parent.name)


def build_execution(folder: Path) -> Path:
    from assay.bench.records import write_execution
    from assay.bench.values.execution import BenchExecution, BenchMetric, BenchResult, GpuState, Machine

    metrics = (BenchMetric("acc", 0.5),)
    result = BenchResult("a.B.c", succeeded=True, wall_time=1.5, metrics=metrics, samples={"acc": (0.5, 0.6)})
    machine = Machine(host="box", gpus=(GpuState(0, "a GPU", processes=(7,)),))
    run_dir = str(folder)
    write_execution(run_dir, BenchExecution("1", "a.B.c", 1, result, run_dir, f"{run_dir}/output", machine=machine))
    return folder / "benchmark.json"


def build_golden_report(folder: Path) -> Path:
    from tests.golden.report.golden_reports import FAILED, golden, metric

    from assay.follow.api import StudyLocation
    from assay.golden.records import write_report
    from assay.golden.values import GoldenTestReport, SegmentReport
    from assay.values.verdict import Verdict

    verdict = Verdict.of((FAILED,), 20)
    segment = SegmentReport(100, "ckpts/c100", verdict, (metric((FAILED,)),))
    report = GoldenTestReport("charlm", str(folder / "charlm_m.json"), verdict, golden(), (segment,), notes=("a note",))
    write_report(StudyLocation(str(folder / "runs"), "charlm"), "check", "golden.yml", report)
    (path,) = (folder / "runs" / "charlm" / ".assay" / "golden").iterdir()
    return path


def build_store(damaged: str) -> Callable[[Path], Path]:
    """Shared storage with two runs, of which this manifest will be damaged."""

    def build(folder: Path) -> Path:
        build_run("run.json")(folder)
        code, _, err = call(folder, ("push", "fit", "--to", "place"))
        assert code == 0, err
        return folder / "place" / "studies" / "fit" / damaged

    return build


def build_search(folder: Path) -> Path:
    text = "study: fit\ncommand: 'echo loss {x}'\nparams: {x: [1, 2, 3]}\nmetrics: {loss: 'loss ({number})'}\n"
    (folder / "study.yml").write_text(text + "search: {sampler: grid, metric: loss, trials: 2}\nresources: {gpus: 0}\n")
    code, _, err = call(folder, ("run", "study.yml", "--quiet"))
    assert code == 0, err
    return folder / "runs" / "fit" / ".assay" / "search.json"


def build_artifact(folder: Path) -> Path:
    from assay.models.store.entry import build_key, build_manifest

    (folder / "files" / "sub").mkdir(parents=True)
    (folder / "files" / "x").write_bytes(b"content")
    (folder / "files" / "y").symlink_to("x")
    parts, files = {"a": 1, "b": {"c": [1.5]}}, str(folder / "files")
    manifest, _ = build_manifest(build_key(parts), parts, {"path": f"{files}/x"}, files, 1.5, "me")
    return write("manifest.json", json.dumps(asdict(manifest)))(folder)


def build_snapshot(folder: Path) -> Path:
    from assay.code.snapshot import take_snapshot

    (folder / "code").mkdir()
    (folder / "code" / "a.py").write_text("pass\n")
    taken = take_snapshot(folder / "code", folder / "store")
    (manifest,) = (path for path in (folder / "store" / taken.hash).iterdir() if path.is_file())
    return manifest


# ---------------------------------------------------------------- all of them

FORMATS_DIR = Path(__file__).parent / "formats"
GOLDEN_MANIFEST = (FORMATS_DIR / "golden" / "v1_document.json").read_bytes()
REPLICAS = (FORMATS_DIR / "golden" / "v2_replicas.json").read_bytes()
MODEL_REPORT = (FORMATS_DIR / "model" / "v1.json").read_bytes()
ASV = {
    "commit_hash": "c0ffee",
    "date": 1_700_000_000_000,
    "result_columns": ["result", "params", "version"],
    "results": {"suite.time_x": [[1.0, 2.0], [["10", "20"]]]},
    "version": 2,
}
GOOGLE = {
    "context": {"date": "2024-01-01T00:00:00+00:00", "num_cpus": 8},
    "benchmarks": [{"name": "BM_x", "run_type": "iteration", "real_time": 1.5, "cpu_time": 1.0, "time_unit": "ns"}],
}
PYTEST = {
    "machine_info": {"node": "box", "cpu": {"brand_raw": "AMD"}},
    "commit_info": {"id": "c0ffee"},
    "datetime": "2024-01-01T00:00:00",
    "benchmarks": [
        {"fullname": "t.py::test_x", "name": "test_x", "stats": {"median": 1.0, "rounds": 2, "data": [1.0, 1.1]}}
    ],
}
PERFZERO = {
    "execution_id": "2024-01-01-00-00-00-000000",
    "benchmark_result": {
        "name": "a.B.c",
        "wall_time": 1.5,
        "succeeded": True,
        "trials": [],
        "metrics": [{"name": "acc", "value": 0.5, "min_value": 0.1}],
    },
    "benchmark_info": {"harness_name": "perfzero"},
    "system_info": {"cpu_count": 8},
    "execution_timestamp": 1_700_000_000,
    "execution_label": {},
    "ml_framework_info": {"name": "tensorflow"},
}
MLPERF = (
    ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "INTERVAL_START", "key": "run_start", '
    '"value": null, "metadata": {}}\n:::MLLOG {"namespace": "", "time_ms": 1700000009000, "event_type": "INTERVAL_END", '
    '"key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'
)
WANDB = """"Name","State","Created","Runtime","lr","loss","_step"
"calm-sun-1","finished","2024-05-01T12:00:00.000Z","90","0.1","0.25","100"
"bold-sky-2","crashed","2024-05-01T12:00:00.000Z","1m 5s","0.2","NaN","7"
"""
CHART = """"Step","calm-sun-1 - loss","calm-sun-1 - loss__MIN","calm-sun-1 - loss__MAX"
"1","0.5","0.5","0.5"
"2","0.25","0.25","0.25"
"""
JOURNAL = "".join(
    json.dumps({"worker_id": "w", **each}) + "\n"
    for each in (
        {"op_code": 0, "study_name": "s", "directions": [1]},
        {"op_code": 4, "study_id": 0, "datetime_start": "2024-05-01T12:00:00"},
        {
            "op_code": 5,
            "trial_id": 0,
            "param_name": "x",
            "param_value_internal": 1,
            "distribution": '{"name": "CategoricalDistribution", "attributes": {"choices": ["a", null]}}',
        },
        {"op_code": 7, "trial_id": 0, "step": 1, "intermediate_value": 0.5},
        {"op_code": 8, "trial_id": 0, "user_attr": {"acc": 0.5}},
        {"op_code": 6, "trial_id": 0, "state": 1, "values": [0.5], "datetime_complete": "2024-05-01T12:00:01"},
    )
)
LOGX = """start,start/step,0,timestamp,100.5
val,loss,2.5,epoch,1,timestamp,110.0
val,loss,2.0,epoch,2,timestamp,120.0
"""
LOOK = (
    ("ls", "fit", "--json"),
    ("sum", "fit"),
    ("show", "fit/x=1"),
    ("show", "fit/x=1", "--json"),
    ("diff", "fit/x=1", "fit/x=2"),
)
DRY = (("run", "-n", "study.yml"),)
STUDIES = {"native": STUDY, "zipped": ZIPPED, "searching": SEARCHING, "runx": RUNX, "mlrunner": MLRUNNER}

FORMATS = (
    *(
        Format(name, build_run(name), commands=LOOK)
        for name in (
            *("run.json", "lease.1", "outcome.1", "stop.1", "environment.json", "readings.jsonl", "job.log", "job.sh"),
            *("metrics/a1-r0-host-1-1.jsonl", "hparams.json"),
        )
    ),
    Format(
        "index",
        build_index,
        commands=(("sum", "fit"), ("ls", "fit", "--state", "done"), ("sum", "fit", "-m", "all")),
        is_copy=True,
    ),
    *(
        Format(f"{name} study", write("study.yml", text), commands=DRY, mutate=mutate_yaml)
        for name, text in STUDIES.items()
    ),
    Format("search", build_search, commands=(("run", "-n", "study.yml"), ("best", "fit"))),
    Format("golden file", write("golden.yml", GOLDEN), read_convergence),
    Format("convergence file", write("golden.yml", CONVERGENCE), read_convergence),
    Format("settings", write("assay.toml", SETTINGS), read_settings),
    Format("settings, by a command", write("assay.toml", SETTINGS), commands=(("ls",),)),
    Format("golden manifest", write("document.json", GOLDEN_MANIFEST), read_manifest),
    Format("golden manifest with replicas", write("document.json", REPLICAS), read_manifest),
    Format("golden manifest, shown", write("document.json", REPLICAS), read_golden),
    Format(
        "golden manifest, by a command",
        write("document.json", REPLICAS),
        commands=(("golden", "show", "document.json"),),
    ),
    Format("golden report", build_golden_report, read_golden, mutate=mutate_lines),
    Format("golden report, by a command", build_golden_report, commands=(("report", "charlm"),), mutate=mutate_lines),
    *(
        Format(
            f"store, {name}",
            build_store(name),
            commands=(
                ("pull", "fit", "--from", "place", "--root", "other"),
                ("pull", "fit/x=2", "--from", "place", "--dry-run"),
            ),
        )
        for name in ("runs/x=1.json", "study.json")
    ),
    Format("npy", build_array("a.npy"), read_array),
    Format("npz", build_array("a.npz"), read_array),
    Format("npy, by a command", build_array("a.npy"), commands=(("model", "diff", "a.npy", "a.npy"),)),
    Format("tensor list", build_tensors, folder_reader("assay.models.graph.tensorfile:load_tensors")),
    Format("onnx", build_onnx, read_onnx, mutate=mutate_onnx),
    Format(
        "onnx, by a command",
        build_onnx,
        commands=(("model", "layers", "m.onnx"), ("model", "convert", "m.onnx", "--opset", "18", "-o", "n.onnx")),
        mutate=mutate_onnx,
    ),
    Format("asv", write("aaaa-env.json", json.dumps(ASV)), read_import),
    Format("google benchmark", write("google.json", json.dumps(GOOGLE)), read_import),
    Format("pytest-benchmark", write("pytest.json", json.dumps(PYTEST)), read_import),
    Format("perfzero", write("perfzero.json", json.dumps(PERFZERO)), read_import),
    Format("mlperf", write("mlperf.txt", MLPERF), read_import),
    Format(
        "import, by a command", write("google.json", json.dumps(GOOGLE)), commands=(("bench", "import", "google.json"),)
    ),
    Format("mlflow experiment", build_mlflow("7/meta.yaml"), read_runs),
    Format("mlflow run", build_mlflow("7/abc/meta.yaml"), read_runs),
    Format("mlflow metric", build_mlflow("7/abc/metrics/loss"), read_runs),
    Format("mlflow parameter", build_mlflow("7/abc/params/lr"), read_runs),
    Format("mlflow database", lambda folder: write_database(folder / "mlflow.runs", MLFLOW_TABLES), read_runs),
    Format("trackio database", lambda folder: write_database(folder / "trackio.runs", TRACKIO_TABLES), read_runs),
    Format("wandb table", write("wandb.runs", WANDB), read_runs),
    Format("wandb chart", write("wandb-history.runs", CHART), read_runs),
    Format("optuna journal", write("optuna.runs", JOURNAL), read_runs),
    Format("runs, by a command", write("optuna.runs", JOURNAL), commands=(("index", "ingest", "optuna.runs"),)),
    Format("events", build_events, read_series),
    Format("csv series", write("a.csv", "step,loss,acc\n1,2.5,0.5\n2,2.0,0.6\n"), read_series),
    Format("jsonl series", write("a.jsonl", '{"step": 1, "loss": 2.5, "time": 1.0}\n' * 3), read_series),
    Format("logx series", write("a.logx", LOGX), read_series),
    Format("hparams", write("hparams.json", '{"lr": 0.1, "name": "x", "deep": {"a": [1]}}'), read_original),
    Format("mlrunner param", write("param", "_name: a\nlr: 0.1\n"), read_original),
    Format("mlrunner stat", write("stat", "train: finished\ntest: failed\n"), read_original),
    Format("model report", write("model.json", MODEL_REPORT), read_model_report),
    Format("benchmark result", build_execution, read_execution),
    Format("artifact", build_artifact, read_artifact),
    Format("snapshot", build_snapshot, read_snapshot),
)
