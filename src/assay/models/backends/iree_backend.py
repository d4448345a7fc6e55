"""IREE in this process: import, compile, run.

Options: `device` (llvm-cpu, vmvx), `cpu` (generic, host or any that LLVM knows), `driver` (local-sync, local-task).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from assay.errors import UsageError, did_you_mean
from assay.models.backends.base import Backend, Made, describe_cpu
from assay.models.backends.iree_compiler import Compilation, compile_module, import_model
from assay.models.backends.iree_module import (
    Module,
    build_run_command,
    invoke,
    load_module,
    stage_inputs,
    write_profile,
)
from assay.models.backends.tensors_io import load_inputs, write_outputs
from assay.models.backends.warm_up import rehearse
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import Job, Step, Target

DEVICES = ("llvm-cpu", "vmvx")
DRIVERS = ("local-sync", "local-task")


class IreeBackend(Backend):
    steps = (Step.IMPORT, Step.COMPILE, Step.RUN)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._device = self._choose("device", DEVICES)
        self._driver = self._choose("driver", DRIVERS)
        self._cpu = str(target.options.get("cpu", "generic"))

    def _choose(self, option: str, known: tuple[str, ...]) -> str:
        value = str(self.target.options.get(option, known[0]))
        if value not in known:
            hint = did_you_mean(value, known)
            raise UsageError(f"target {self.target.name}: {option} = {value!r} is not known", hint)
        return value

    def warm_up(self) -> None:
        for name in ("onnx", "iree.compiler.api", "iree.compiler.extras.onnx_importer", "iree.runtime"):
            self.import_library(name)
        rehearse((Step.IMPORT, self._import))  # a compilation, however small, takes half a second: too dear

    def identity(self) -> Mapping[str, str]:
        compiler, runtime = self.import_library("iree.compiler.version"), self.import_library("iree.runtime.version")
        return {
            "iree-compiler": f"{compiler.VERSION} {compiler.REVISIONS.get('IREE', '')}".strip(),
            "iree-runtime": str(runtime.VERSION),
            "onnx": str(self.import_library("onnx").__version__),
            "device": self._device,
            "driver": self._driver,
            "target-cpu": self._cpu,
            "cpu": describe_cpu(),
        }

    def perform(self, job: Job) -> Made:
        work = {Step.IMPORT: self._import, Step.COMPILE: self._compile, Step.RUN: self._run}
        return work[job.step](job)

    def _import(self, job: Job) -> Made:
        target = os.path.join(job.folder, "model.mlir")
        return Made(target, import_model(self.import_library, job.source, target))

    def _compile(self, job: Job) -> Made:
        target = os.path.join(job.folder, "model.vmfb")
        profile = os.path.join(job.profile_dir, f"{job.case or 'model'}_iree_statistics.csv") if job.profile_dir else ""
        if job.profile_dir:
            os.makedirs(job.profile_dir, exist_ok=True)
        compilation = Compilation(job.source, target, self._build_flags(profile), job.ir_dir)
        self.announce(compilation.command)
        compile_module(self.import_library, compilation)
        return Made(target, compilation.command, profiles=(profile,) if profile else ())

    def _build_flags(self, profile: str) -> tuple[str, ...]:
        flags = ["--iree-hal-target-device=local", f"--iree-hal-local-target-device-backends={self._device}"]
        if self._device == "llvm-cpu":
            flags.append(f"--iree-llvmcpu-target-cpu={self._cpu}")
        if profile:
            flags += [
                "--iree-scheduling-dump-statistics-format=csv",
                f"--iree-scheduling-dump-statistics-file={profile}",
            ]
        return (*flags, *self.target.compile_flags)

    def _run(self, job: Job) -> Made:
        self._set_run_flags()
        module = load_module(self.import_library, job.source, self._driver)
        argv = build_run_command(job.source, module.entry, self._driver, stage_inputs(job, module.inputs))
        command = shlex.join([*argv, *self.target.run_flags])
        self.announce(command)
        arrays = _load_arrays(job, module)
        turns = [invoke(self.import_library, module, arrays, command) for _ in range(max(1, job.repeats))]
        profiles = write_profile(self.import_library, job, argv) if job.profile_dir else ()
        outputs = module.outputs or ()
        names = [spec.name for spec in outputs] or list(job.outputs) or [str(i) for i in range(len(turns[0][0]))]
        path = write_outputs(job, names, turns[0][0], outputs)
        return Made(path, command, times_s=tuple(elapsed_s for _, elapsed_s in turns), profiles=profiles)

    def _set_run_flags(self) -> None:
        """They hold for the whole process, which is this target's own."""
        if self.target.run_flags:
            self.import_library("iree.runtime.flags").parse_flags(*self.target.run_flags)


def _load_arrays(job: Job, module: Module) -> list[object]:
    if module.inputs is not None:
        return list(load_inputs(job, module.inputs).values())
    return list(load_tensors(job.inputs).values()) if job.inputs else []
