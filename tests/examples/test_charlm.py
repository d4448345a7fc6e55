"""The demo's training program: its gradient is right, it learns, and resuming repeats it bit for bit."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.fork_server import call_python

FOLDER = Path(__file__).parents[2] / "examples" / "charlm"
PROGRAM = FOLDER / "charlm.py"
SMALL = ["--hidden", "16", "--embedding", "6", "--context", "8", "--batch-size", "16", "--log-interval", "5"]
LINE = re.compile(r"step (\d+) loss (\S+) acc (\S+) grad_norm (\S+) lr (\S+)")


def load_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def load_program() -> ModuleType:
    """Imported here, it sets numpy's threads in our environment: that is put back."""
    before = dict(os.environ)
    module = load_module("charlm")
    os.environ.clear()
    os.environ.update(before)
    return module


@pytest.fixture
def charlm() -> ModuleType:
    return load_program()


def start(*flags: object) -> subprocess.CompletedProcess[str]:
    """The program in this process; `test_nothing_is_saved_unless_asked` and the kill start it as users do."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = load_program().main([*SMALL, *map(str, flags)])
        except SystemExit as error:
            code = error.code
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


def train(*flags: object) -> list[str]:
    result = start(*flags)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


def steps_of(lines: list[str]) -> dict[int, str]:
    return {int(match[1]): match[0] for line in lines if (match := LINE.fullmatch(line))}


def arrays_of(path: Path) -> dict[str, bytes]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name].tobytes() for name in archive.files}


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--dropout", 0.2, "--micro-batches", 4],
        ["--warmup", 50, "--weight-decay", 0.3, "--beta1", 0.8, "--beta2", 0.95, "--seed", 9],
    ],
    ids=["plain", "dropout and micro-batches", "inside the warm-up"],
)
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(tmp_path: Path, flags: list[object]) -> None:
    whole = train("--steps", 60, *flags, "--checkpoint-dir", tmp_path / "a", "--save-interval", 20)
    checkpoint = tmp_path / "a" / "step_000020.npz"
    rest = train(
        "--steps", 60, *flags, "--resume", checkpoint, "--checkpoint-dir", tmp_path / "b", "--save-interval", 20
    )
    assert rest[0] == f"resumed {checkpoint} at step 20"
    assert steps_of(rest) == {step: line for step, line in steps_of(whole).items() if step > 20}
    assert rest[-1] == whole[-1]
    assert rest[-1].startswith("eval_loss ")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["step_000040.npz", "step_000060.npz"]
    for path in (tmp_path / "b").iterdir():
        assert arrays_of(path) == arrays_of(tmp_path / "a" / path.name)


def test_a_run_resumed_twice_ends_the_same(tmp_path: Path) -> None:
    whole = train("--steps", 30)
    save = ["--checkpoint-dir", tmp_path, "--save-interval", 10]
    train("--steps", 10, *save)
    train("--steps", 20, *save, "--resume", tmp_path / "step_000010.npz", "--start-step", 10)
    last = train("--steps", 30, *save, "--resume", tmp_path / "step_000020.npz")
    assert last[-1] == whole[-1]


def test_the_number_of_steps_does_not_change_the_steps_before(tmp_path: Path) -> None:
    short, long = steps_of(train("--steps", 20)), steps_of(train("--steps", 40))
    assert short == {step: line for step, line in long.items() if step <= 20}


def test_resuming_at_the_end_only_evaluates(tmp_path: Path) -> None:
    whole = train("--steps", 10, "--checkpoint-dir", tmp_path, "--save-interval", 10)
    again = train("--steps", 10, "--resume", tmp_path / "step_000010.npz")
    assert again[1:] == [whole[-1]]


def test_a_start_step_without_a_checkpoint_counts_from_there() -> None:
    assert list(steps_of(train("--steps", 20, "--start-step", 10))) == [15, 20]


# ---------------------------------------------------------------- what it prints


def test_lines_are_lossless_and_in_order(tmp_path: Path) -> None:
    lines = train("--steps", 20, "--checkpoint-dir", tmp_path, "--save-interval", 10, "--lr", 0.02, "--warmup", 10)
    kinds = [line.split()[0] for line in lines]
    assert kinds == ["step", "step", "saved", "step", "step", "saved", "eval_loss"]
    assert lines[2] == f"saved checkpoint {tmp_path / 'step_000010.npz'} at step 10"
    for line in lines:
        match = LINE.fullmatch(line)
        if match:
            assert [repr(float(text)) for text in match.groups()[1:]] == list(match.groups()[1:])
    assert [LINE.fullmatch(line)[5] for line in lines if line.startswith("step")] == ["0.01", "0.02", "0.02", "0.02"]  # type: ignore[index]


def test_the_same_seed_repeats_and_another_differs() -> None:
    assert train("--steps", 10) == train("--steps", 10)
    assert train("--steps", 10) != train("--steps", 10, "--seed", 1)


def test_nothing_is_saved_unless_asked(tmp_path: Path) -> None:
    command = [str(PROGRAM), *SMALL, "--steps", "5", "--save-interval", "1"]
    call_python(command, cwd=tmp_path).check_returncode()
    assert list(tmp_path.iterdir()) == []


def test_it_learns() -> None:
    lines = train("--steps", 300, "--batch-size", 64)
    losses = [float(LINE.fullmatch(line)[2]) for line in steps_of(lines).values()]  # type: ignore[index]
    assert losses[0] > 3.0
    assert max(losses[-5:]) < 1.7
    assert float(lines[-1].split()[1]) < 1.5


def test_a_hostile_checkpoint_folder(hostile_path: Path) -> None:
    train("--steps", 5, f"--checkpoint-dir={hostile_path}", "--save-interval", 5)
    again = train("--steps", 10, f"--resume={hostile_path / 'step_000005.npz'}")
    assert list(steps_of(again)) == [10]


# ---------------------------------------------------------------- the model


def build_options(charlm: ModuleType, *flags: str) -> object:
    return charlm.Options(**vars(charlm.build_parser().parse_args([*SMALL, *flags])))


@pytest.mark.parametrize("dropout", ["0", "0.3"])
def test_the_gradient_is_the_slope_of_the_loss(charlm: ModuleType, dropout: str) -> None:
    options = build_options(charlm, "--dropout", dropout)
    rng = np.random.default_rng(3)
    params = {name: array.astype(np.float64) for name, array in charlm.build_params(options, 11).items()}
    windows, targets = rng.integers(0, 11, (16, 8)), rng.integers(0, 11, 16)
    mask = charlm.dropout_mask(options, 1)
    gradients = charlm.backward(params, windows, targets, mask, charlm.forward(params, windows, mask))
    assert gradients.keys() == params.keys()
    for name, gradient in gradients.items():
        for _ in range(12):
            place = tuple(rng.integers(0, size) for size in gradient.shape)
            slope = numeric_slope(charlm, params, (name, place), (windows, targets, mask))
            assert slope == pytest.approx(gradient[place], rel=1e-4, abs=1e-8), (name, place)


def numeric_slope(charlm: ModuleType, params: dict, where: tuple, batch: tuple) -> float:
    (name, place), (windows, targets, mask) = where, batch
    losses = []
    for shift in (1e-5, -1e-5):
        moved = {key: array.copy() for key, array in params.items()}
        moved[name][place] += shift
        losses.append(charlm.score(charlm.forward(moved, windows, mask)[2], targets)[0])
    return (losses[0] - losses[1]) / 2e-5


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_accumulated_gradients_are_those_of_the_whole_batch(charlm: ModuleType, parts: int) -> None:
    options = build_options(charlm, "--dropout", "0.3")
    rng = np.random.default_rng(4)
    params = charlm.build_params(options, 11)
    batch = rng.integers(0, 11, (16, 8)), rng.integers(0, 11, 16), charlm.dropout_mask(options, 1)
    loss, accuracy, whole = charlm.batch_gradient(params, *batch, 1)
    part_loss, part_accuracy, summed = charlm.batch_gradient(params, *batch, parts)
    assert part_loss == pytest.approx(loss, rel=1e-6)
    assert part_accuracy == pytest.approx(accuracy)
    for name, gradient in whole.items():
        np.testing.assert_allclose(summed[name], gradient, rtol=1e-4, atol=1e-7)


def test_adam_follows_its_definition(charlm: ModuleType) -> None:
    options = build_options(charlm, "--weight-decay", "0.5", "--beta1", "0.5", "--beta2", "0.75")
    zero = np.zeros((1, 1))
    state = charlm.State(1, {"w": np.full((1, 1), 2.0)}, {"w": zero.copy()}, {"w": zero.copy()})
    charlm.adam_update(state, {"w": np.full((1, 1), 4.0)}, 0.1, options)
    assert state.first["w"].item() == 2.0
    assert state.second["w"].item() == 4.0
    assert state.params["w"].item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1)  # the first step has length lr


def test_biases_are_not_decayed(charlm: ModuleType) -> None:
    options = build_options(charlm, "--weight-decay", "0.5")
    state = charlm.State(1, {"b": np.ones(3)}, {"b": np.zeros(3)}, {"b": np.zeros(3)})
    charlm.adam_update(state, {"b": np.zeros(3)}, 0.1, options)
    assert state.params["b"].tolist() == [1.0, 1.0, 1.0]


def test_evaluation_sees_only_held_out_text(charlm: ModuleType) -> None:
    options = build_options(charlm)
    text = charlm.load_text(options.data, options.context)  # type: ignore[attr-defined]
    assert len(text.train) + len(text.held_out) == len(options.data.read_text())  # type: ignore[attr-defined]
    state = charlm.build_state(options, text)
    blank = charlm.Text(text.vocabulary, text.train * 0, text.held_out)
    assert charlm.evaluate(state, text, options) == charlm.evaluate(state, blank, options)


# ---------------------------------------------------------------- bad input


def refused(*flags: object) -> str:
    """Exit code 2 and a last line that says why, without a traceback."""
    result = start(*flags)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    train("--steps", 5, "--checkpoint-dir", folder, "--save-interval", 5)
    return folder / "step_000005.npz"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--lr", "0"], "0.0 must be above 0"),
        (["--lr", "nan"], "nan must be above 0"),
        (["--lr", "fast"], "invalid positive value: 'fast'"),
        (["--steps", "-1"], "-1 must be at least 0"),
        (["--hidden", "0"], "0 must be at least 1"),
        (["--dropout", "1"], "at least 0 and below 1"),
        (["--micro-batches", "3"], "--batch-size 16 is not a multiple of --micro-batches 3"),
        (["--data", "no such file"], "cannot read --data no such file"),
        (["--resume", "no such file"], "cannot read the checkpoint no such file"),
        (["--step", "5"], "unrecognized arguments: --step 5"),
    ],
)
def test_bad_flags_are_refused(flags: list[str], why: str) -> None:
    assert why in refused(*flags)


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("abc")
    assert "has 3 characters: too few" in refused("--data", text)


def test_a_binary_text_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"\xff\xfe" * 100)
    assert "cannot read --data" in refused("--data", data)


def test_a_checkpoint_of_another_size_is_refused(checkpoint: Path) -> None:
    why = refused("--resume", checkpoint, "--hidden", 8)
    assert "does not fit: hidden_weight is (48, 16), the flags ask for (48, 8)" in why


def test_a_checkpoint_of_another_text_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("abcdefg " * 200)
    assert "was trained on another text" in refused("--resume", checkpoint, "--data", text)


def test_a_start_step_that_is_not_the_checkpoint_s_is_refused(checkpoint: Path) -> None:
    assert "--start-step 4, but" in refused("--resume", checkpoint, "--start-step", 4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy leaves such a file open
@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_a_damaged_checkpoint_is_refused(checkpoint: Path, tmp_path: Path, keep: int) -> None:
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(checkpoint.read_bytes()[:keep])
    assert "cannot read the checkpoint" in refused("--resume", damaged)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = start("--steps", 5, "--save-interval", 5, "--checkpoint-dir", tmp_path / "file" / "ckpt")
    assert result.returncode == 2
    assert result.stderr.startswith("charlm: ")


def test_a_kill_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), *SMALL, "--steps", "1000000", "--save-interval", "1"]
    child = subprocess.Popen([*command, "--checkpoint-dir", str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "step_000020.npz").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    paths = sorted(tmp_path.glob("step_*.npz"))
    assert len(paths) >= 20
    for path in paths:
        assert len(arrays_of(path)) == 17


# ---------------------------------------------------------------- what ships


def test_the_text_is_what_its_script_writes() -> None:
    result = subprocess.run([sys.executable, FOLDER / "corpus.py"], capture_output=True, check=True, timeout=60)
    assert result.stdout == (FOLDER / "corpus.txt").read_bytes()
    assert 50_000 <= len(result.stdout) <= 100_000


def test_it_needs_nothing_but_numpy() -> None:
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", PROGRAM.read_text(), re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"numpy"}
