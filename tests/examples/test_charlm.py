"""The demo's training program: its gradient is right, it learns, resuming repeats it bit for bit, planted faults change it."""

from __future__ import annotations

import contextlib
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
from unittest.mock import patch

import numpy as np
import pytest
from tests.fork_server import call_python

FOLDER = Path(__file__).parents[2] / "examples" / "charlm"
PROGRAM = FOLDER / "charlm.py"
SMALL = ["--hidden", "16", "--embedding", "6", "--context", "8", "--batch-size", "16", "--log-interval", "5"]
LINE = re.compile(r"step (\d+) loss (\S+) acc (\S+) grad_norm (\S+) lr (\S+)")


def load_program() -> ModuleType:
    """A new one: faults are planted into the module. Imported, it sets numpy's threads in the environment."""
    spec = importlib.util.spec_from_file_location("example_charlm", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with patch.dict(os.environ):
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def charlm() -> ModuleType:
    return load_program()


def start(*flags: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in this process; `test_nothing_is_saved_unless_asked` and the kill start it as users do."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch.dict(os.environ, environment):
        try:
            code = load_program().main([*SMALL, *map(str, flags)])
        except SystemExit as error:
            code = error.code
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


def train(*flags: object, **environment: str) -> list[str]:
    result = start(*flags, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


def steps_of(lines: list[str]) -> dict[int, str]:
    return {int(match[1]): match[0] for line in lines if (match := LINE.fullmatch(line))}


def arrays_of(path: Path) -> dict[str, bytes]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name].tobytes() for name in archive.files}


# ---------------------------------------------------------------- resuming, and what it prints


@pytest.mark.parametrize(
    "flags",
    [["--dropout", 0.2, "--micro-batches", 4], ["--warmup", 50, "--weight-decay", 0.3, "--beta1", 0.8, "--seed", 9]],
    ids=["dropout and micro-batches", "inside the warm-up"],
)
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(tmp_path: Path, flags: list[object]) -> None:
    flags = ["--steps", 60, *flags, "--save-interval", 20]
    whole = train(*flags, "--checkpoint-dir", tmp_path / "a")
    checkpoint = tmp_path / "a" / "step_000020.npz"
    rest = train(*flags, "--resume", checkpoint, "--start-step", 20, "--checkpoint-dir", tmp_path / "b")
    assert rest[0] == f"resumed {checkpoint} at step 20"
    assert steps_of(rest) == {step: line for step, line in steps_of(whole).items() if step > 20}
    assert rest[-1] == whole[-1]
    assert rest[-1].startswith("eval_loss ")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["step_000040.npz", "step_000060.npz"]
    for path in (tmp_path / "b").iterdir():
        assert arrays_of(path) == arrays_of(tmp_path / "a" / path.name)
    assert train(*flags, "--resume", tmp_path / "b" / "step_000060.npz")[1:] == [whole[-1]], "it only evaluates"


def test_steps_do_not_depend_on_their_number_and_a_start_step_counts_from_there() -> None:
    short, long = steps_of(train("--steps", 20)), steps_of(train("--steps", 40))
    assert short == {step: line for step, line in long.items() if step <= 20}
    assert list(steps_of(train("--steps", 20, "--start-step", 10))) == [15, 20]


def test_lines_are_lossless_and_in_order(hostile_path: Path) -> None:
    lines = train(
        "--steps", 20, f"--checkpoint-dir={hostile_path}", "--save-interval", 10, "--lr", 0.02, "--warmup", 10
    )
    kinds = [line.split()[0] for line in lines if line[:5] in ("step ", "saved", "eval_")]
    assert kinds == ["step", "step", "saved", "step", "step", "saved", "eval_loss"]
    assert f"saved checkpoint {hostile_path / 'step_000010.npz'} at step 10" in "\n".join(lines)
    matches = [match for line in lines if (match := LINE.fullmatch(line))]
    for match in matches:
        assert [repr(float(text)) for text in match.groups()[1:]] == list(match.groups()[1:])
    assert [match[5] for match in matches] == ["0.01", "0.02", "0.02", "0.02"]


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


# ---------------------------------------------------------------- the model


def build_options(charlm: ModuleType, *flags: str) -> object:
    return charlm.Options(**vars(charlm.build_parser().parse_args([*SMALL, *flags])))


def test_the_gradient_is_the_slope_of_the_loss_in_parts_as_well(charlm: ModuleType) -> None:
    options = build_options(charlm, "--dropout", "0.3")
    rng = np.random.default_rng(3)
    params = {name: array.astype(np.float64) for name, array in charlm.build_params(options, 11).items()}
    batch = rng.integers(0, 11, (16, 8)), rng.integers(0, 11, 16), charlm.dropout_mask(options, 1)
    loss, accuracy, gradients = charlm.batch_gradient(params, *batch, 1)
    assert gradients.keys() == params.keys()
    for name, gradient in gradients.items():
        for _ in range(6):
            place = tuple(rng.integers(0, size) for size in gradient.shape)
            losses = []
            for shift in (1e-5, -1e-5):
                moved = {key: array.copy() for key, array in params.items()}
                moved[name][place] += shift
                losses.append(charlm.score(charlm.forward(moved, batch[0], batch[2])[2], batch[1])[0])
            slope = (losses[0] - losses[1]) / 2e-5
            assert slope == pytest.approx(gradient[place], rel=1e-4, abs=1e-8), (name, place)
    part_loss, part_accuracy, summed = charlm.batch_gradient(params, *batch, 4)
    assert (part_loss, part_accuracy) == pytest.approx((loss, accuracy))
    for name, gradient in gradients.items():
        np.testing.assert_allclose(summed[name], gradient, rtol=1e-4, atol=1e-7)


def test_adam_follows_its_definition_and_does_not_decay_biases(charlm: ModuleType) -> None:
    options = build_options(charlm, "--weight-decay", "0.5", "--beta1", "0.5", "--beta2", "0.75")
    state = charlm.State(
        1,
        {"w": np.full((1, 1), 2.0), "b": np.ones(3)},
        {"w": np.zeros((1, 1)), "b": np.zeros(3)},
        {"w": np.zeros((1, 1)), "b": np.zeros(3)},
    )
    charlm.adam_update(state, {"w": np.full((1, 1), 4.0), "b": np.zeros(3)}, 0.1, options)
    assert (state.first["w"].item(), state.second["w"].item()) == (2.0, 4.0)
    assert state.params["w"].item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1)  # the first step has length lr
    assert state.params["b"].tolist() == [1.0, 1.0, 1.0]


def test_evaluation_sees_only_held_out_text(charlm: ModuleType) -> None:
    options = build_options(charlm)
    text = charlm.load_text(options.data, options.context)  # type: ignore[attr-defined]
    assert len(text.train) + len(text.held_out) == len(options.data.read_text())  # type: ignore[attr-defined]
    state = charlm.build_state(options, text)
    blank = charlm.Text(text.vocabulary, text.train * 0, text.held_out)
    assert charlm.evaluate(state, text, options) == charlm.evaluate(state, blank, options)


# ---------------------------------------------------------------- bad input


def refused(*flags: object, **environment: str) -> str:
    """Exit code 2 and a last line that gives the reason, without a traceback."""
    result = start(*flags, **environment)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr.strip().splitlines()[-1]


def test_bad_flags_and_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abc")
    (tmp_path / "data.bin").write_bytes(b"\xff\xfe" * 100)
    for flags, why in {
        "--lr 0": "0.0 must be above 0",
        "--lr nan": "nan must be above 0",
        "--lr fast": "invalid positive value: 'fast'",
        "--steps -1": "-1 must be at least 0",
        "--hidden 0": "0 must be at least 1",
        "--dropout 1": "at least 0 and below 1",
        "--micro-batches 3": "--batch-size 16 is not a multiple of --micro-batches 3",
        "--data no-such-file": "cannot read --data no-such-file",
        "--resume no-such-file": "cannot read the checkpoint no-such-file",
        "--step 5": "unrecognized arguments: --step 5",
        f"--data {tmp_path}/short.txt": "has 3 characters: too few",
        f"--data {tmp_path}/data.bin": "cannot read --data",
    }.items():
        assert why in refused(*flags.split()), flags


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy leaves such a file open
def test_a_checkpoint_that_does_not_fit_or_is_damaged_is_refused(tmp_path: Path) -> None:
    train("--steps", 5, "--checkpoint-dir", tmp_path, "--save-interval", 5)
    checkpoint, text = tmp_path / "step_000005.npz", tmp_path / "other.txt"
    text.write_text("abcdefg " * 200)
    why = refused("--resume", checkpoint, "--hidden", 8)
    assert "does not fit: hidden_weight is (48, 16), the flags ask for (48, 8)" in why
    assert "was trained on another text" in refused("--resume", checkpoint, "--data", text)
    assert "--start-step 4, but" in refused("--resume", checkpoint, "--start-step", 4)
    for keep in (0, 10, 1000):
        (tmp_path / "damaged.npz").write_bytes(checkpoint.read_bytes()[:keep])
        assert "cannot read the checkpoint" in refused("--resume", tmp_path / "damaged.npz")
    result = start("--steps", 5, "--save-interval", 5, "--checkpoint-dir", text / "ckpt")
    assert (result.returncode, result.stderr[:8]) == (2, "charlm: ")


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


# ---------------------------------------------------------------- planted faults

SPOILED = ["--log-interval", 1, "--dropout", "0.2", "--micro-batches", "4", "--weight-decay", "0.1"]
NAMES = re.findall(r'^    "([^"]+)": ', (FOLDER / "faults.py").read_text(), re.MULTILINE)


def test_each_fault_trains_to_the_end_and_changes_something(tmp_path: Path) -> None:
    """From inside the warm-up, so that its loss shows as well; each time in the same way, and none of it unasked."""
    assert len(NAMES) == len(set(NAMES)) >= 24
    train("--steps", 10, *SPOILED, "--checkpoint-dir", tmp_path, "--save-interval", 10)
    resume = [*SPOILED, "--resume", tmp_path / "step_000010.npz", "--steps"]
    sound = train(*resume, 14)
    assert train(*resume, 14, CHARLM_FAULT="", CHARLM_JITTER="") == sound
    for name in NAMES:
        steps = 90 if name == "late-divergence" else 14
        spoiled = train(*resume, steps, CHARLM_FAULT=name)
        assert spoiled[-1].startswith("eval_loss "), name
        assert spoiled != (sound if steps == 14 else train(*resume, steps)), name
    one, other = (train(*resume, 14, CHARLM_FAULT="lost-micro-batch") for _ in range(2))
    assert one == other
    one, other = (train(*resume, 14, CHARLM_JITTER="0.01") for _ in range(2))
    assert one != other
    loss = [float(text[-1].split()[1]) for text in (sound, one)]
    assert loss[0] != loss[1]
    assert loss[1] == pytest.approx(loss[0], rel=0.01)


def test_an_unknown_fault_and_a_jitter_that_makes_no_sense_are_refused() -> None:
    line = refused("--steps", 5, CHARLM_FAULT="lost-microbatch")
    assert line.startswith("charlm: CHARLM_FAULT=lost-microbatch is unknown; known: ")
    assert all(name in line for name in NAMES)
    for size in ("much", "-1", "1", "nan", "inf"):
        why = f"charlm: CHARLM_JITTER={size} must be a relative size, at least 0 and below 1"
        assert refused("--steps", 5, CHARLM_JITTER=size) == why


# ---------------------------------------------------------------- what ships


def test_the_text_is_what_its_script_writes() -> None:
    result = subprocess.run([sys.executable, FOLDER / "corpus.py"], capture_output=True, check=True, timeout=60)
    assert result.stdout == (FOLDER / "corpus.txt").read_bytes()
    assert 50_000 <= len(result.stdout) <= 100_000


def test_it_needs_nothing_but_numpy() -> None:
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", PROGRAM.read_text(), re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"numpy"}
