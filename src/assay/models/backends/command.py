"""Any compiler and runner that is a program: `torq-compile` and `torq-run-module`, `trtexec`, a script.

Options (`[tool.assay.targets.NAME]`):
  run, compile, import   templates (see `programs`); without `compile` the model itself is what is run
  input                  onnx (default), or mlir: IREE's importer converts the model first
  artifact               the name of the file that `compile` writes; default `artifact`
  input_flag             one for each input, with {path} {name} {index} {shape} {dtype} {type}; makes {input_flags}
  output_flag            one for each output, as input_flag; makes {output_flags}
  input_join             the separator of input flags that are one word; without it each is a word
  input_format           npy (default) or bin: the format of the files in {inputs}
  output_format          npy, bin, or auto (default): npy but for types that numpy's files do not know
  chip, hardware         values of {chip} and {hardware}
  env, cwd, depends      environment of the programs, their working directory, more files that results depend on
  version                the command that prints a version; default: the program with --version
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from assay.errors import UsageError, did_you_mean
from assay.models.backends import programs
from assay.models.backends.base import OPTIONS, Backend, BackendError, Made
from assay.models.backends.captured_output import CapturedOutput, name_signal, run_program, watch_folder
from assay.models.backends.iree_backend import import_model, name_mlir_type
from assay.models.backends.onnx_backend import copy_model, find_model
from assay.models.backends.tensors_io import is_numpy_type, write_outputs, write_raw
from assay.models.graph.tensorfile import load_array, load_refs
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.models.values.tensors import Dim, TensorRef, TensorSpec
from assay.system.fast_dataclasses import dataclass, replace

KNOWN: dict[str, tuple[str, ...]] = {
    "import": ("model", "out", "case", "chip", "hardware", "folder"),
    "compile": (
        "model", "artifact", "out", "ir_dir", "profile_dir", "chip", "hardware", "compile_flags", "case", "folder",
    ),
    "run": (
        "artifact", "model", "out", "inputs", "outputs", "input_flags", "output_flags", "profile_dir", "chip",
        "hardware", "run_flags", "case", "folder",
    ),
}  # fmt: skip
FLAG_NAMES = ("path", "name", "index", "shape", "dtype", "type")


Planned = Mapping[str, tuple[str, TensorSpec]]  # output → the path that it is written to, and its known type and shape


class RunLocation:
    """The machine on which a program runs, and the paths of our files on it; this class is for the local machine."""

    def seen(self, path: str) -> str:
        """Return the path at which the program finds a file of this machine."""
        return path

    def describe(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
        """Return a command line to paste in any folder, with `cd` if a word names a file relative to `cwd`."""
        moves = any(not os.path.isabs(word) and os.path.exists(os.path.join(cwd, word)) for word in argv if word)
        front = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        return (f"cd {shlex.quote(os.path.abspath(cwd))} && " if moves else "") + shlex.join([*front, *argv])

    def call(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> CapturedOutput:
        """Run a program to its end; `env` is added to the current environment."""
        return run_program(argv, cwd=cwd, env={**os.environ, **env})

    def fetch(self) -> None:
        """Copy outputs and profiles back."""


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A program that is called at a location; `command` is the command line for a user to paste."""

    argv: list[str]
    location: RunLocation
    env: Mapping[str, str]
    cwd: str
    command: str

    @property
    def program(self) -> str:
        return os.path.basename(self.argv[0])

    def execute(self) -> tuple[CapturedOutput, float]:
        """Run the program to its end; return its output and its seconds. Raises BackendError if it fails."""
        start = time.perf_counter()
        output = self.location.call(self.argv, self.env, self.cwd)
        elapsed_s = time.perf_counter() - start
        if output.code:
            code, last = output.code, last_line(output.stderr) or last_line(output.stdout)
            end = f"ended with exit code {code}" if code > 0 else f"was killed by {name_signal(-code)}"
            end += f" ({name_signal(code - 128)})" if code > 128 else ""  # shells add 128 to the number of a signal
            message = f"{self.program} {end}" + (f": {last}" if last else "")
            raise self.refuse(message, output, ending=StepEnding.CRASH if output.code < 0 else StepEnding.ERROR)
        return output, elapsed_s

    def refuse(
        self, message: str, output: CapturedOutput, *, ending: StepEnding = StepEnding.ERROR, hint: str = ""
    ) -> BackendError:
        streams = {"stdout": output.stdout, "stderr": output.stderr}
        return BackendError(message, ending=ending, command=self.command, hint=hint, **streams)


class CommandBackend(Backend):
    options = OPTIONS["command"]
    may_change = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        for name in target.options:
            if name not in (*self.options, "folder"):
                hint = did_you_mean(name, self.options)
                raise UsageError(f"target {target.name}: {name} is not known to the {target.backend} back end", hint)
        self._templates = {
            name: programs.parse_template(target.options[name], known, f"target {target.name}: {name}")
            for name, known in KNOWN.items()
            if target.options.get(name) is not None
        }
        if "run" not in self._templates:
            raise UsageError(
                f"target {target.name}: there is no run", 'as in run = "my-runner {artifact} {input_flags}"'
            )
        self._versions: dict[str, str] = {}  # kept, since asking for a version takes a while
        self._input_format = self.choose("input_format", ("npy", "bin"))
        self._output_format = self.choose("output_format", ("auto", "npy", "bin"))
        for name in ("input_flag", "output_flag"):
            programs.parse_template([self._option(name) or "x"], FLAG_NAMES, f"target {target.name}: {name}")
        imports = self.choose("input", ("onnx", "mlir")) == "mlir" or "import" in self._templates
        self.steps = (Step.IMPORT, Step.COMPILE, Step.RUN) if imports else (Step.COMPILE, Step.RUN)

    def _option(self, name: str) -> str:
        return str(self.target.options.get(name) or "")

    def identity(self) -> Mapping[str, str]:
        return {name: value for step in self.steps for name, value in self.identify_step(step).items()}

    def identify_step(self, step: Step) -> Mapping[str, str]:
        found: dict[str, str] = {}
        name = str(step)
        if name in self._templates:
            found |= self._describe_tool(name, self._templates[name])
        elif step is Step.IMPORT:
            found["iree-compiler"] = str(self.import_library("iree.compiler.version").VERSION)
            found["onnx"] = str(self.import_library("onnx").__version__)
        for path in self.target.options.get("depends") or ():
            found[f"depends: {path}"] = self._describe_dependency(step, str(path))
        return found

    def _describe_dependency(self, _step: Step, word: str) -> str:
        """Return the hash of a file or folder. Raises UsageError if it is missing, since the path may be mistyped."""
        path = os.path.join(self._project, os.path.expanduser(word))
        if not os.path.exists(path):
            hint = f"a file or a folder, relative to {os.path.abspath(self._project)}"
            raise UsageError(f"target {self.target.name}: depends: there is no {word}", hint)
        return programs.hash_path(path)

    def _describe_tool(self, name: str, template: programs.Template) -> dict[str, str]:
        words = programs.find_program(template.words[0], self._environment(), self._project)
        named = [*words, *self.list_words(name, template)]
        known = programs.describe_program(words) | programs.describe_words(named, self._seen_cwd)
        known |= programs.describe_called(named, self._seen_cwd, self._environment())
        known |= programs.describe_environment(self._own_environment(), self._seen_cwd, os.environ)
        content = {f"{name}: {file}": sha for file, sha in known.items()}
        version = self.target.options.get("version")
        if version is False:
            return content
        asked = programs.parse_template(version, (), "version").expand({}) if version else [*words, "--version"]
        key = repr((asked, content))
        if key not in self._versions:
            self._versions[key] = programs.ask_version(asked, self._environment(), self._project)
        version = self._versions[key]
        return content | ({f"{name}: version": version} if version else {})

    def list_words(self, name: str, template: programs.Template) -> list[str]:
        """Return a command's arguments without its program; a file that differs by case is listed for every case."""
        named = template.words[1:]
        named += [self._option("input_flag"), self._option("output_flag")] if name == "run" else []
        flags = {"compile": self.target.compile_flags, "run": self.target.run_flags}
        return [text for word in named for text in self._fill_word(word)] + [*flags.get(name, ())]

    def _fill_word(self, word: str) -> list[str]:
        """Fill a word with values that are known before there is a job; a word that needs others names no file."""
        options = self.target.options
        known = {key: str(options[key]) for key in ("chip", "hardware") if options.get(key)} | {"case": "*"}
        names = programs.find_names(word)
        filled = programs.fill_text(word, {name: known.get(name, programs.NO_NAME) for name in names})
        return programs.find_matching(filled, self._seen_cwd) if "case" in names else [filled]

    @property
    def _seen_cwd(self) -> str:
        """Return the folder that words are relative to before there is a job, whose own folder has no files yet."""
        return self._cwd(os.devnull)

    def perform(self, job: Job) -> Made:
        work = {Step.IMPORT: self._import, Step.COMPILE: self._compile, Step.RUN: self._run}
        return work[job.step](job)

    def _import(self, job: Job) -> Made:
        target = os.path.join(job.folder, "model.mlir")
        if "import" not in self._templates:
            self.import_library("iree.compiler.extras.onnx_importer")
            return Made(target, import_model(job.source, target))
        return self._make("import", job, target, {"model": job.source, "out": target})

    def _compile(self, job: Job) -> Made:
        if "compile" not in self._templates:  # the model itself is run
            copied = os.path.join(job.folder, os.path.basename(job.source))
            if job.source.endswith(".onnx"):
                copied = copy_model(job.source, job.folder)
            else:
                shutil.copyfile(job.source, copied)
            return Made(copied, f"cp {shlex.quote(job.source)}")
        target = os.path.join(job.folder, self._option("artifact") or "artifact")
        find_profiles = watch_folder(job.profile_dir)
        values = {"model": job.source, "artifact": target, "out": target, "ir_dir": job.ir_dir}
        made = self._make("compile", job, target, values | {"profile_dir": job.profile_dir})
        return replace(made, profiles=find_profiles())

    def _make(self, name: str, job: Job, target: str, values: Mapping[str, programs.Value]) -> Made:
        """Call a program of this machine that has to write `target`."""
        call = self._announce(self.build_command(name, {**self._values(job), **values}), RunLocation(), job.folder)
        output, _ = call.execute()
        if os.path.exists(target):
            return Made(target, call.command, output.stdout, output.stderr)
        message = f"{call.program} succeeded but did not make {os.path.basename(target)}"
        raise call.refuse(message, output, hint="does the command write to {artifact}?")

    def _run(self, job: Job) -> Made:
        raw = os.path.join(job.folder, "raw")
        os.makedirs(raw)
        find_profiles = watch_folder(job.profile_dir)
        refs = load_refs(job.inputs) if job.inputs else ()
        if self._input_format == "bin":
            refs = tuple(write_raw(ref, os.path.join(job.folder, "inputs", f"{i}.bin")) for i, ref in enumerate(refs))
        outputs = self._plan_outputs(job, raw)
        artifact = find_model(job.source) if "compile" not in self._templates else job.source
        with self._open_location(job, artifact, refs, raw) as location:
            argv = self.build_command("run", self._build_run_values(job, location, artifact, refs, raw, outputs))
            call = self._announce(argv, location, job.folder)
            output, elapsed_s = call.execute()
            location.fetch()
            arrays = self._load_outputs(outputs, raw, call, output)
            more = [call.execute()[1] for _ in range(job.repeats - 1)]
        path = write_outputs(job, list(arrays), list(arrays.values()))
        for name in ("raw", "inputs"):
            shutil.rmtree(os.path.join(job.folder, name), ignore_errors=True)
        return Made(path, call.command, output.stdout, output.stderr, (elapsed_s, *more), find_profiles())

    def _build_run_values(
        self, job: Job, location: RunLocation, artifact: str, refs: Sequence[TensorRef], raw: str, outputs: Planned
    ) -> dict[str, programs.Value]:
        """Return the values of a run's command, with paths as the program sees them."""
        inputs = [(ref.name, location.seen(ref.path), ref.dtype, ref.shape) for ref in refs]
        planned = [(name, location.seen(path), spec.dtype, spec.shape or ()) for name, (path, spec) in outputs.items()]
        input_flags, join = self._fill_flags("input_flag", inputs), self.target.options.get("input_join")
        return self._values(job) | {
            "artifact": location.seen(artifact), "model": location.seen(artifact),
            "inputs": os.path.dirname(inputs[0][1]) if inputs else location.seen(raw),
            "outputs": location.seen(raw), "out": location.seen(raw),
            "profile_dir": location.seen(job.profile_dir) if job.profile_dir else None,
            "input_flags": input_flags if join is None else str(join).join(input_flags),
            "output_flags": self._fill_flags("output_flag", planned),
        }  # fmt: skip

    def _fill_flags(self, option: str, tensors: Iterable[tuple[str, str, str, Sequence[Dim]]]) -> list[str]:
        """Return the flag of each tensor, which has a name, a path, a type and a shape."""
        flag = self._option(option)
        return [programs.fill_text(flag, describe_tensor(i, *each)) for i, each in enumerate(tensors)] if flag else []

    def _open_location(
        self, _job: Job, _artifact: str, _refs: Sequence[TensorRef], _raw: str
    ) -> AbstractContextManager[RunLocation]:
        return nullcontext(RunLocation())

    def _values(self, job: Job) -> dict[str, programs.Value]:
        options = self.target.options
        return {
            "case": job.case, "chip": options.get("chip"), "hardware": options.get("hardware"),
            "folder": job.folder, "compile_flags": self.target.compile_flags, "run_flags": self.target.run_flags,
        }  # fmt: skip

    def _announce(self, argv: list[str], location: RunLocation, folder: str) -> ProgramCall:
        env, cwd = self._own_environment(), self._cwd(folder)
        call = ProgramCall(argv, location, env, cwd, location.describe(argv, env, cwd))
        self.announce(call.command)
        return call

    def build_command(self, name: str, values: Mapping[str, programs.Value]) -> list[str]:
        template = self._templates[name]
        words = template.expand(values)
        if f"{name}_flags" not in programs.find_names(*template.words):  # flags that were given must be used
            words += values.get(f"{name}_flags") or ()
        return [*self._locate(name, template.words[0]), *words[1:]]

    def _locate(self, _name: str, program: str) -> list[str]:
        return programs.find_program(program, self._environment(), self._project)

    @property
    def _project(self) -> str:
        """Return the folder of the file that describes the target; relative paths in the file start in this folder."""
        return self._option("folder") or os.getcwd()

    def _cwd(self, folder: str) -> str:
        return os.path.join(self._project, programs.fill_text(self._option("cwd"), {"folder": folder}))

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._own_environment()}

    def _own_environment(self) -> dict[str, str]:
        return {str(name): str(value) for name, value in dict(self.target.options.get("env") or {}).items()}

    def _plan_outputs(self, job: Job, raw: str) -> Planned:
        """Return by name the path where the tool writes each output, and its known type and shape."""
        specs = {spec.name: spec for spec in job.output_specs}
        planned = {}
        for i, name in enumerate(job.outputs):
            spec = specs.get(name, TensorSpec(name, ""))
            suffix = self._output_format
            if suffix == "auto":
                suffix = "bin" if spec.dtype and spec.is_static and not is_numpy_type(spec.dtype) else "npy"
            planned[name] = (os.path.join(raw, f"{i}.{suffix}"), spec)
        return planned

    def _load_outputs(self, outputs: Planned, raw: str, call: ProgramCall, output: CapturedOutput) -> dict[str, Any]:
        paths = {name: find_output(raw, outputs[name][0], i, name) for i, name in enumerate(outputs)}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            there = ", ".join(sorted(os.listdir(raw))) or "nothing"
            message = f"{call.program} succeeded but did not write the output {', '.join(missing)}; there is {there}"
            hint = "outputs are expected as {outputs}/INDEX.npy, NAME.npy, or .bin"
            raise call.refuse(message, output, hint=hint)
        try:
            return {name: load_output(path, outputs[name][1]) for name, path in paths.items() if path is not None}
        except UsageError as error:
            raise call.refuse(error.message, output, hint=error.hint or "") from error


def find_output(folder: str, planned: str, index: int, name: str) -> str | None:
    """Return the file of an output: at the requested path, or under its number or name."""
    stems = (str(index), name, f"output_{index}", name.replace("/", "_"))
    candidates = [
        planned,
        *(os.path.join(folder, f"{stem}.{kind}") for stem in stems for kind in ("npy", "bin", "raw")),
    ]
    return next((path for path in candidates if os.path.isfile(path)), None)


def load_output(path: str, spec: TensorSpec) -> Any:
    """Read an output that a tool wrote. Raises UsageError."""
    if path.endswith(".npy"):
        return load_array(path, spec.dtype or None)
    if not (spec.dtype and spec.is_static):
        name = os.path.basename(path)
        raise UsageError(f"{name} is raw, and the type and shape of {spec.name} are not known", "have it write .npy")
    return load_array(path, spec.dtype, [dim for dim in spec.shape or () if isinstance(dim, int)])


def describe_tensor(index: int, name: str, path: str, dtype: str, shape: Sequence[Dim]) -> dict[str, programs.Value]:
    """Return the values of the placeholders in the flag of an input or output."""
    dims = ["?" if dim is None else str(dim) for dim in shape]
    typed = "x".join([*dims, name_mlir_type(dtype)])
    return {"path": path, "name": name, "index": str(index), "shape": "x".join(dims), "dtype": dtype, "type": typed}


def last_line(text: str) -> str:
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")
