"""A project with models, in a folder of its own, tested by a pytest of its own.

Its target `sim` is two small programs: one copies the model and refuses the operators that --lacks names, one runs it
with onnxruntime. Both append a line to the file `calls`.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import onnx
from tests.example_models import parse
from tests.fork_server import call_python

PLUGINS = ("assay.models.pytest_plugin", "assay.exchange.pytest_plugin", "assay.compat.torq.pytest_plugin", "xdist")
GENERIC = "from assay.models import test_onnx_model\n"
TORQ = "from assay.models import test_onnx_model_llvmcpu_torq\n"
RELU = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
RELU_NEG = "g (float[4] x) => (float[4] y) { t = Relu(x) y = Neg(t) }"
TWO_OUTPUTS = "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Abs(x) }"

COMPILE = f"""#!{sys.executable} -SE
import argparse, os, shutil, sys
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--crash", action="store_true")
for name in ("-o", "--chip", "--hw", "--ir", "--profile", "--lacks"):
    parser.add_argument(name)
given = parser.parse_args()
with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as stream:
    stream.write(f"compile {{os.path.basename(given.model)}} chip={{given.chip}} hw={{given.hw}}\\n")
print("compiling", os.path.basename(given.model), flush=True)
content = open(given.model, "rb").read()
if given.lacks and given.lacks.encode() in content:
    print(f"no {{given.lacks}} on this chip", file=sys.stderr)
    sys.exit(3)
if given.crash:
    os.kill(os.getpid(), 11)
if given.ir:
    open(os.path.join(given.ir, "0.txt"), "w").write("intermediate")
if given.profile:
    open(given.profile, "w").write("ID,Start,End,Location,Op Type\\nS0,0,10,x,Relu\\n")
shutil.copyfile(given.model, given.o)
"""

# Of a model with an operator that it does not know itself it loads what onnxruntime needs, which takes half a second.
RUN = f"""#!{sys.executable} -SE
import argparse, os, struct, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("artifact"); parser.add_argument("--input", action="append", default=[])
parser.add_argument("--output", action="append", default=[]); parser.add_argument("--by", type=float, default=1.0)
parser.add_argument("--above", type=float, default=-1e9)
parser.add_argument("--hang", action="store_true")
given = parser.parse_args()
with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as stream:
    stream.write("run\\n")
while given.hang:
    time.sleep(60)

def read(data):  # fields of a protobuf message: (number, value)
    at = 0
    def number():
        nonlocal at
        found = shift = 0
        while True:
            found, shift, at = found | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128:
                return found
    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value

def texts(message, field):
    return [value.decode() for number, value in read(message) if number == field]

def change(values):
    return [x * given.by if x > given.above else x for x in values]

KNOWN = {{
    "Relu": lambda x: max(x, 0.0), "Neg": lambda x: -x, "Abs": abs, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y,
}}
(graph,) = [value for number, value in read(open(given.artifact, "rb").read()) if number == 7]
nodes = [(texts(node, 4)[0], texts(node, 1), texts(node, 2)[0]) for number, node in read(graph) if number == 1]
ends = [[texts(value, 1)[0] for number, value in read(graph) if number == field] for field in (11, 12)]
if all(kind in KNOWN for kind, _, _ in nodes):
    files = [open(path, "rb").read() for path in given.input]
    starts = [10 + struct.unpack("<H", content[8:10])[0] for content in files]
    known = {{name: [x for (x,) in struct.iter_unpack("<f", content[start:])] for name, content, start in zip(ends[0], files, starts)}}
    for kind, inputs, output in nodes:
        known[output] = [KNOWN[kind](*row) for row in zip(*(known[name] for name in inputs))]
    for path, name in zip(given.output, ends[1]):
        with open(path, "wb") as stream:
            stream.write(files[0][: starts[0]] + struct.pack(f"<{{len(known[name])}}f", *change(known[name])))
else:
    import site
    site.main()
    import numpy as np, onnxruntime
    session = onnxruntime.InferenceSession(given.artifact, providers=["CPUExecutionProvider"])
    feeds = dict(zip(ends[0], map(np.load, given.input)))
    for path, array in zip(given.output, session.run(None, feeds)):
        np.save(path, np.asarray(change(array.ravel()), array.dtype).reshape(array.shape))
print("ran", len(given.output), "outputs")
"""

SETTINGS = """
[tool.assay.models]
targets = ["sim"]

[tool.assay.targets.sim]
compile = "tools/sim-compile {model} -o {artifact} [--chip {chip}] [--hw {hardware}] [--ir {ir_dir}] [--profile {profile_dir}/cycles.csv]"
run = "tools/sim-run {artifact} {input_flags} {output_flags}"
version = false
artifact = "model.onnx"
input_flag = "--input={path}"
output_flag = "--output={path}"

[tool.assay.targets.wrong]
like = "sim"
run_flags = ["--by", "1.5"]

[tool.assay.targets.lacking]
like = "sim"
compile_flags = ["--lacks", "Neg"]
"""


@dataclass(frozen=True)
class PytestRun:
    code: int
    out: str

    @property
    def ids(self) -> list[str]:
        """The tests of a listing."""
        return re.findall(r"<Function (.*)>", self.out)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts that -v prints, by the end of the test's name."""
        found = re.findall(r"::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", self.out)
        found += [
            (name, verdict)
            for verdict, name in re.findall(r"\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) \S*::(\S+)", self.out)
        ]
        return dict(found)

    def section(self, name: str) -> str:
        """The output about one test that did not pass."""
        match = re.search(
            rf"\n_+ (?:ERROR at setup of )?{re.escape(name)} _+\n(.*?)(?=\n_{{3,}} |\n={{3,}} )", self.out, re.DOTALL
        )
        assert match is not None, self.out
        return match[1]


@dataclass(frozen=True)
class Project:
    folder: Path

    def model(self, name: str, body: str, opset: int = 17) -> Path:
        path = self.folder / "tests" / "testdata" / "onnx_models" / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(parse(body, opset), path)
        return path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def pytest(self, *arguments: str, env: dict[str, str] | None = None, as_installed: bool = False) -> PytestRun:
        """`as_installed`: with every plugin of pytest that is installed; each takes time to import."""
        words = ["-m", "pytest", "-W", "error"]
        own = {"ASSAY_CACHE": str(self.folder / ".artifacts"), "COLUMNS": "200", "PY_COLORS": "0", **(env or {})}
        if as_installed:
            words += ["-p", "no:hypothesispytest", "-p", "no:schemathesis"]
        else:
            words += [word for name in PLUGINS for word in ("-p", name)]
            own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = call_python([*words, *arguments], cwd=self.folder, env=os.environ | own, timeout=240, is_merged=True)
        return PytestRun(done.returncode, done.stdout)

    @property
    def calls(self) -> list[str]:
        """The calls of the target's programs since this was last read."""
        path = self.folder / "tools" / "calls"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        path.unlink()
        return lines


def build_project(folder: Path, tests: str = GENERIC, settings: str = SETTINGS) -> Project:
    project = Project(folder)
    project.write("pyproject.toml", "[tool.pytest.ini_options]\n" + settings)
    project.write("tests/test_onnx_model.py", tests)
    for name, text in (("sim-compile", COMPILE), ("sim-run", RUN)):
        project.write(f"tools/{name}", text).chmod(0o755)
    return project
