"""Programs as targets: how they are called, and the error of one that does not do its part."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.models.backends import backend_helpers
from tests.models.backends.backend_helpers import spec

from assay.errors import InfrastructureError, UsageError
from assay.models.backends.base import BackendError
from assay.models.backends.command import CommandBackend, find_output
from assay.models.backends.iree_backend import find_program
from assay.models.backends.registry import build_backend
from assay.models.config.targets import TORQ
from assay.models.graph.tensorfile import load_tensors, write_tensors
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.models.worker_process import WorkerProcess

ONE = np.ones((2, 3), np.float32)


def command(**options):
    given = {name: value for name, value in options.items() if name not in ("compile_flags", "run_flags")}
    flags = {name: tuple(options[name]) for name in ("compile_flags", "run_flags") if name in options}
    return CommandBackend(Target("sim", "command", {"version": False, **given}, **flags))


def run(tmp_path, backend, *, feed=None, outputs=("y",), source="artifact", **more):
    """The run step alone, with an artifact that is some text."""
    (tmp_path / "artifact").write_text("compiled")
    folder = tmp_path / "job"
    folder.mkdir()
    inputs = tmp_path / "inputs"
    write_tensors(inputs, feed or {"a": ONE})
    job = Job(Step.RUN, str(tmp_path / source), str(folder), str(inputs), tuple(outputs), case="case", **more)
    return backend.perform(job)


def shell(text):
    """A template word list that runs this script; words that follow are $1, $2 …"""
    return ["sh", "-c", text.replace("{", "{{").replace("}", "}}"), "sh"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"run": "x", "compil": "y"}, "compil is not known to the command back end\n  did you mean 'compile'"),
        ({"run": "x", "address": "root@b"}, "address is not known to the command back end"),
        ({"run": "x", "compile": "c {inputs}"}, "compile: {inputs} is not known here"),
        ({"run": "x", "input": "tflite"}, "input = 'tflite' is not known"),
        ({"run": "x", "input_flag": "--i={pth}"}, "input_flag: {pth} is not known here\n  did you mean 'path'"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(UsageError) as caught:
        build_backend(Target("sim", "command", options))
    assert str(caught.value).startswith("target sim: ")
    assert words in str(caught.value)


def test_the_steps_of_a_target():
    assert list(command(run="x").steps) == ["compile", "run"]
    for more in ({"input": "mlir"}, {"import": "y {model} {out}"}):
        assert list(command(run="x", **more).steps) == ["import", "compile", "run"]


@pytest.mark.parametrize(
    ("text", "ending", "words"),
    [
        ("echo said; exit 5", StepEnding.ERROR, "ended with exit code 5: said"),
        ("exit 9", StepEnding.ERROR, "ended with exit code 9"),
        ("exit 139", StepEnding.ERROR, "ended with exit code 139 (SIGSEGV)"),
        ("exit 255", StepEnding.ERROR, "ended with exit code 255 (signal 127)"),
        ("kill -SEGV $$", StepEnding.CRASH, "was killed by SIGSEGV"),
        (":", StepEnding.ERROR, "succeeded but did not write the output y; there is nothing"),
        (': >"$1/9.npy"', StepEnding.ERROR, "did not write the output y; there is 9.npy"),
        ('echo x >"$1/0.npy"', StepEnding.ERROR, "not a readable .npy file"),
        ('echo x >"$1/0.bin"', StepEnding.ERROR, "0.bin is raw, and the type and shape of y are not known"),
    ],
)
def test_how_a_run_fails(tmp_path, text, ending, words):
    with pytest.raises(BackendError) as caught:
        run(tmp_path, command(run=[*shell(text), "{outputs}"]))
    assert caught.value.ending is ending
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert shlex.split(caught.value.command)[1:3] == ["-c", text]


def test_the_whole_output_is_kept_with_the_error(tmp_path):
    with pytest.raises(BackendError, match="ended with exit code 1: no memory on chip") as caught:
        run(tmp_path, command(run=shell("echo out 1; echo err 1 >&2; echo no memory on chip >&2; exit 1")))
    assert (caught.value.stdout, caught.value.stderr) == ("out 1\n", "err 1\nno memory on chip\n")


def test_a_compiler_that_makes_nothing(tmp_path):
    backend = command(run="x", compile=[*shell("echo hm"), "{artifact}"])
    with pytest.raises(BackendError, match="succeeded but did not make artifact") as caught:
        backend.perform(Job(Step.COMPILE, "m.onnx", str(tmp_path)))
    assert caught.value.stdout == "hm\n"
    assert "{artifact}" in caught.value.hint


def test_a_raw_output_of_the_wrong_size(tmp_path):
    backend = command(run=[*shell('printf 12345678 >"$1/0.bin"'), "{outputs}"])
    with pytest.raises(BackendError, match=r"2 elements, which do not fill \[3\]"):
        run(tmp_path, backend, output_specs=(spec("y", "float32", 3),))


def test_a_program_that_is_not_there(tmp_path):
    backend = command(run="no-such-runner {artifact}")
    for ask in (backend.identity, lambda: run(tmp_path, backend)):
        with pytest.raises(InfrastructureError, match=r"no-such-runner was not found: \$NO_SUCH_RUNNER is not set"):
            ask()


def called(tmp_path, **options):
    """What a compiler sees: its words, its folder and its environment."""
    seen = tmp_path / "seen"
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    more = {name: options.pop(name) for name in ("ir_dir", "profile_dir", "case") if name in options}
    script = 'printf "%s\\n" "$PWD" "${MARK-}" "$@" >"$SEEN"; : >"$2"'
    template = [*shell(script), "{model}", "{artifact}", *options.pop("words", [])]
    env = {"SEEN": str(seen), **options.pop("env", {})}
    backend = command(run="x", compile=template, env=env, folder=str(project), **options)
    folder = tmp_path / "job"
    folder.mkdir(exist_ok=True)
    made = backend.perform(Job(Step.COMPILE, "/m.onnx", str(folder), **more))
    cwd, mark, *words = seen.read_text().splitlines()
    assert words[:2] == ["/m.onnx", made.path]
    assert shlex.split(made.command)[-len(words) :] == words
    return words[2:], cwd, mark, made


def test_flags_are_where_they_are_asked_for_or_at_the_end(tmp_path):
    words, _, _, made = called(tmp_path, compile_flags=["--a", "b c"], artifact="model.vmfb")
    assert words == ["--a", "b c"]
    assert made.path == str(tmp_path / "job/model.vmfb")
    assert called(tmp_path, compile_flags=["--a"], words=["{compile_flags}", "end"])[0] == ["--a", "end"]
    assert called(tmp_path, words=["{compile_flags}", "end"])[0] == ["end"]


def test_dumps_are_asked_for_only_when_they_are_wanted(tmp_path):
    words = [["--ir", "{ir_dir}"], "--profile={profile_dir}/{case}.csv", ["--chip={chip}"], "--hw={hardware}"]
    assert called(tmp_path, words=words)[0] == []
    wanted = {"ir_dir": str(tmp_path / "ir"), "profile_dir": str(tmp_path / "p"), "case": "c1"}
    found = called(tmp_path, words=words, chip="x1", hardware="sim", **wanted)
    assert found[0] == ["--ir", str(tmp_path / "ir"), f"--profile={tmp_path / 'p'}/c1.csv", "--chip=x1", "--hw=sim"]


def test_environment_and_working_directory(tmp_path):
    assert called(tmp_path, env={"MARK": "it's {x}"})[1:3] == (str(tmp_path / "project"), "it's {x}")
    (tmp_path / "project/sub").mkdir()
    assert called(tmp_path, cwd="sub")[1] == str(tmp_path / "project/sub")
    assert called(tmp_path, cwd="{folder}")[1] == str(tmp_path / "job")


COPY = 'printf "%s\\n" "$@"; cp "$0.npy" "$1/0.npy"'  # an output that lies there as it is


@pytest.fixture
def ones(tmp_path):
    """The words of a program that says how it is called and whose output are two ones."""
    np.save(tmp_path / "ones.npy", np.ones(2, np.float32))
    return [*shell(COPY)[:-1], str(tmp_path / "ones"), "{outputs}"]


def test_inputs_as_flags_or_in_one_word(tmp_path, ones):
    backend = command(
        run=[*ones, "{input_flags}"], input_flag="--in={index}:{name}:{shape}:{dtype}:{type}@{path}", folder="/"
    )
    made = run(tmp_path, backend, feed={"a b": ONE, "c": np.zeros((), np.int8)})
    folder = tmp_path / "inputs"
    flags = [f"--in=0:a b:2x3:float32:2x3xf32@{folder}/0.npy", f"--in=1:c::int8:i8@{folder}/1.npy"]
    assert made.stdout.splitlines()[1:] == flags
    assert not made.command.startswith("cd "), "none of its words is a file of its folder"
    assert load_tensors(made.path)["y"].tolist() == [1, 1]
    joined = command(
        run=[*ones, "--load={input_flags}"], input_flag="{name}:{path}", input_join=",", input_format="bin"
    )
    (tmp_path / "second").mkdir()
    made = run(tmp_path / "second", joined, feed={"a": ONE, "b": ONE})
    folder = tmp_path / "second/job/inputs"
    assert made.stdout.splitlines()[1:] == [f"--load=a:{folder}/0.bin,b:{folder}/1.bin"]


def test_raw_inputs_and_outputs(tmp_path):
    backend = command(run=[*shell('cp "$1/0.bin" "$2/y.bin"'), "{inputs}", "{outputs}"], input_format="bin")
    array = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    made = run(tmp_path, backend, feed={"a": array}, output_specs=(spec("y", "bfloat16", 1, 2),))
    found = load_tensors(made.path)["y"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert backend_helpers.files_below(tmp_path / "job") == ["outputs/0.npy", "outputs/tensors.json"]


@pytest.mark.parametrize(
    ("dtype", "shape", "option", "name"),
    [
        ("float32", (2,), None, "0.npy"),
        ("bfloat16", (2,), None, "0.bin"),
        ("bfloat16", ("n",), None, "0.npy"),
        ("float32", (2,), "bin", "0.bin"),
        ("bfloat16", (2,), "npy", "0.npy"),
    ],
)
def test_outputs_are_asked_for_in_a_form_that_can_hold_them(tmp_path, dtype, shape, option, name):
    options = {"output_format": option} if option else {}
    backend = command(run=[*shell('echo "$@"'), "{output_flags}"], output_flag="--o={name}@{path}", **options)
    with pytest.raises(BackendError) as caught:
        run(tmp_path, backend, output_specs=(spec("y", dtype, *shape),))
    assert caught.value.stdout == f"--o=y@{tmp_path}/job/raw/{name}\n"


@pytest.mark.parametrize("name", ["0.npy", "y/z.npy", "output_0.npy", "y_z.npy", "0.bin", "0.raw"])
def test_outputs_by_number_or_name(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    assert find_output(str(tmp_path), str(tmp_path / "planned.npy"), 0, "y/z") == str(tmp_path / name)
    assert find_output(str(tmp_path), str(tmp_path / "planned.npy"), 1, "other") is None


def test_the_first_of_several_runs_counts(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.array([number]))
    script = 'set -- "$1" $(ls "$1"/../../*.npy); mv "$2" "$1/0.npy"'  # each run takes the next one
    made = run(tmp_path, command(run=[*shell(script), "{outputs}"]), repeats=3)
    assert len(made.times_s) == 3
    assert load_tensors(made.path)["y"].tolist() == [0]


def test_without_a_compiler_the_model_is_run(tmp_path, ones):
    backend = command(run=[*ones, "{model}"])
    backend_helpers.build_external(tmp_path / "m.onnx")
    folder = tmp_path / "compiled"
    folder.mkdir()
    made = backend.perform(Job(Step.COMPILE, str(tmp_path / "m.onnx"), str(folder)))
    assert backend_helpers.files_below(made.path) == ["model.onnx", "weights.bin"]
    ran = run(tmp_path, backend, source="compiled/model")
    assert ran.stdout.splitlines()[-1] == f"{tmp_path}/compiled/model/model.onnx"


def test_an_importer_of_ones_own(tmp_path):
    backend = command(run="x", **{"import": [*shell('printf %s "$1" >"$2"'), "{model}", "{out}"]})
    made = backend.perform(Job(Step.IMPORT, "/m.onnx", str(tmp_path)))
    assert Path(made.path).read_text() == "/m.onnx"


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_can_be_pasted_anywhere(tmp_path, code):
    """A script and settings beside the file that describes the target, a folder with a space, and its environment."""
    project = tmp_path / "my project"
    project.mkdir()
    (project / "compile.sh").write_text(f'printf "%s$WORD" "$(cat settings)" >"$1"; exit {code}\n')
    (project / "settings").write_text("set ")
    template = ["sh", "compile.sh", "{artifact}"]
    backend = command(run="x", compile=template, folder=str(project), env={"WORD": "two words"})
    announced = []
    backend.announce = announced.append
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(Step.COMPILE, str(tmp_path / "m.onnx"), str(folder), case="c")
    try:
        line = backend.perform(job).command
    except BackendError as error:
        line = error.command
    assert announced == [line]
    (folder / "artifact").unlink()
    assert subprocess.run(line, shell=True, cwd="/", check=False).returncode == code, line
    assert (folder / "artifact").read_text() == "set two words"


def identify(**options):
    return dict(command(**options).identity())


def test_a_variable_among_the_targets_own_is_the_same(tmp_path):
    first, second = (
        identify(run="vendor-run {model}", folder=str(tmp_path), env={"VENDOR_RUN": f"sh -e {number}"})
        for number in (1, 2)
    )
    assert first != second


def test_a_dependency_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(UsageError, match=r"target sim: depends: there is no helpr\.py"):
        identify(run=["sh"], folder=str(tmp_path), depends=["helpr.py"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lib/x.py", {"depends": ["lib"]}),
        ("lib/x.py", {"env": {"PYTHONPATH": "lib"}}),
        ("x.json", {"run": ["sh", ["--config", "x.json", "--chip={chip}"]]}),
        ("chips/a.json", {"run": ["sh", "chips/{chip}.json"], "chip": "a"}),
        ("calibration/net.json", {"run": ["sh", "--table=calibration/{case}.json"]}),
        ("x.json", {"run": ["sh", "--all=x.json,{model}"]}),
        ("x.json", {"input_flag": "--in={name}:x.json:{path}"}),
        ("x.json", {"run_flags": ["--config", "x.json"]}),
        ("sub/x.py", {"run": ["sh", "x.py"], "cwd": "sub"}),
        ("x.py", {"run": ["sh", "x.py"], "cwd": "{folder}/..", "depends": ["x.py"]}),
    ],
)
def test_whatever_a_command_names_is_part_of_it(tmp_path, name, options):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("1")
    given = {"run": ["sh"], "folder": str(tmp_path), **options}
    first = identify(**given)
    assert identify(**given) == first
    path.write_text("2")
    assert identify(**given) != first


def test_each_step_has_tools_of_its_own(tmp_path):
    for name in ("compile.sh", "run.sh", "settings.json", "x.json"):
        (tmp_path / name).write_text("1")
    words = {step: ["sh", f"{step}.sh", "{artifact}"] for step in ("compile", "run")}
    backend = command(**words, folder=str(tmp_path), depends=["settings.json"], run_flags=["x.json"])
    compiling, running = (backend.identify_step(step) for step in (Step.COMPILE, Step.RUN))
    assert {"compile: compile.sh", "depends: settings.json"} <= set(compiling)
    assert {"run: run.sh", "run: x.json"} <= set(running)
    assert not any("run" in name or "x.json" in name for name in compiling)
    assert "compile: compile.sh" not in running
    assert backend.identity() == {**compiling, **running}


def test_a_tool_that_is_edited_while_we_work_is_another_one(tmp_path):
    """What is made with the new one must not be kept under the old one's key."""
    script = tmp_path / "run.sh"
    script.write_text("1")
    target = Target("sim", "command", {"run": ["sh", "run.sh"], "version": False, "folder": str(tmp_path)})
    with WorkerProcess(target, folder=str(tmp_path / "worker")) as worker:
        first = worker.identity(Step.RUN)
        script.write_text("2")
        assert worker.identity(Step.RUN) != first


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, f"Python {sys.version.split()[0]}"), (False, None), (["sh", "-c", "echo my 2"], "my 2")],
)
def test_the_version_of_a_program(version, said):
    backend = CommandBackend(Target("sim", "command", {"run": [sys.executable], "version": version}))
    assert backend.identity().get("run: version") == said


TORQ_STAND_IN = """
for word in "$@"; do case $word in
  --torq-dump-profiling=* | --torq_profile=*) printf 'ID,Start,End\\nS0,0,10\\n' >"${word#*=}" ;;
  --torq* | --device*) ;;
  *) set -- "$@" "$word" ;;
esac; shift; done
exec PROGRAM "$@"
"""
MORE = {
    "iree-compile": "--iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx",
    "iree-run-module": "--device=local-sync",
}


def test_torqs_programs(tmp_path, monkeypatch):
    """`torq-compile` and `torq-run-module`, found by their variables: IREE's programs understand the same flags."""
    for variable, name in (("TORQ_COMPILE", "iree-compile"), ("TORQ_RUN_MODULE", "iree-run-module")):
        script = tmp_path / f"{name}.sh"
        program = shlex.quote(find_program(name))
        script.write_text(TORQ_STAND_IN.replace("PROGRAM", f"{program} {MORE[name]}"))
        monkeypatch.setenv(variable, f"sh {script}")
    target = Target("torq", "command", {**TORQ, "chip": "SL2610"})
    text = backend_helpers.MATMUL.replace("float[", "bfloat16[")
    specs = backend_helpers.build_output_specs(backend_helpers.parse(text))
    feed = {"a": np.ones((2, 3), ml_dtypes.bfloat16), "b": np.full((3, 4), 2, ml_dtypes.bfloat16)}
    with WorkerProcess(target, folder=str(tmp_path / "worker")) as worker:
        torq = backend_helpers.StepRunner(worker, tmp_path)
        made = torq.prepare(torq.save(text), profile_dir=str(tmp_path / "c"), ir_dir=str(tmp_path / "ir"))
        assert made.is_ok, (made.message, made.stderr)
        ran = torq.run(made.path, feed, ["y"], profile_dir=str(tmp_path / "r"), output_specs=specs)
        assert ran.is_ok, (ran.message, ran.stderr)
    assert "--torq-hw=SL2610" in made.command
    assert os.path.basename(made.path) == "model.vmfb"
    assert "--torq_hw_type=sim" in ran.command
    found = load_tensors(ran.path)["y"]
    assert found.dtype == ml_dtypes.bfloat16
    assert (found.astype(float) == 6).all()
    profiles = [os.path.basename(path) for path in (*made.profiles, *ran.profiles)]
    assert profiles == ["case_compile.csv", "case_runtime.csv"]
    assert [name for name in backend_helpers.files_below(tmp_path / "ir") if name.endswith(".mlir")]
