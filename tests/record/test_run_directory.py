"""The run directory: complete or absent, claimed by exactly one process, and readable after any power cut."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import FormatError, InfrastructureError
from assay.follow.attempts import build_outcome
from assay.observe.environment import load_environment
from assay.record import run_directory
from assay.record.run_directory import Attempt, History, RunRecord, conclude
from assay.values import layout
from assay.values.run import Command, JobHandle, Outcome, RunSpec, State, Stop
from assay.values.study import CodePolicy, MetricFile, Pattern, Resources

SPEC = RunSpec(
    "0123456789ab", "lr=0.1", {"lr": 0.1}, (Command("train", "python train.py", 3.5), Command("test", "true"))
)
RECORD = RunRecord(SPEC, "study", "abcdef", 1000.0)


def handle(attempt: int = 1, **more: object) -> JobHandle:
    return replace(JobHandle("local", "7", "host", 7, 8, "boot", "0", attempt, 5.0), **more)  # type: ignore[arg-type]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "study" / "run"
    assert run_directory.write_run_dir(str(path), RECORD, "echo job\n")
    return path


def left_aside(path: Path) -> list[str]:
    return [str(found) for found in path.rglob("*") if ".tmp" in found.name]


class TestMaking:
    def test_it_is_complete_when_it_has_its_name(self, tmp_path: Path) -> None:
        path = tmp_path / "study" / "run"
        seen: list[bool] = []

        def fill(aside: str) -> None:
            seen.append(path.exists())
            Path(aside, "more").write_text("x")

        assert run_directory.write_run_dir(str(path), RECORD, "echo job\n", fill)
        assert seen == [False]
        assert {found.name for found in path.iterdir()} == {"run.json", "job.sh", "more"}
        assert os.access(path / "job.sh", os.X_OK)
        assert left_aside(tmp_path) == []

    def test_of_two_makers_the_second_leaves_the_first_alone(self, run_dir: Path, tmp_path: Path) -> None:
        before = (run_dir / "run.json").read_text()
        assert not run_directory.write_run_dir(str(run_dir), replace(RECORD, uid="other"), "other")
        assert (run_dir / "run.json").read_text() == before
        assert left_aside(tmp_path) == []

    def test_many_makers_at_once(self, tmp_path: Path) -> None:
        made: list[bool] = []
        path = str(tmp_path / "study" / "run")

        def make() -> None:
            made.append(run_directory.write_run_dir(path, replace(RECORD, uid=run_directory.new_uid()), "job"))

        at_once(make, 8)
        assert sorted(made) == [False] * 7 + [True]
        assert left_aside(tmp_path) == []

    def test_a_failure_leaves_nothing(self, tmp_path: Path) -> None:
        def fail(_aside: str) -> None:
            raise OSError(28, "No space left on device")

        path = tmp_path / "study" / "run"
        with pytest.raises(InfrastructureError, match="No space left on device"):
            run_directory.write_run_dir(str(path), RECORD, "job", fail)
        assert not path.exists()
        assert left_aside(tmp_path) == []

    def test_a_disk_that_takes_a_part_is_asked_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        path = tmp_path / "study" / "run"
        assert run_directory.write_run_dir(str(path), RECORD, "x" * 1000)
        monkeypatch.undo()
        assert (path / "job.sh").read_text() == "x" * 1000
        assert run_directory.load_record(str(path)) == RECORD


def at_once(work: Callable[[], None], count: int) -> None:
    gate = threading.Barrier(count)

    def wait_and_work() -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=wait_and_work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestClaiming:
    def test_one_wins(self, run_dir: Path) -> None:
        assert run_directory.publish_lease(str(run_dir), handle())
        assert not run_directory.publish_lease(str(run_dir), handle(pid=9))
        assert run_directory.load_history(str(run_dir)).attempts[0].handle == handle()
        assert run_directory.publish_lease(str(run_dir), handle(2))

    def test_of_many_one_wins(self, run_dir: Path) -> None:
        won: list[bool] = []
        at_once(lambda: won.append(run_directory.publish_lease(str(run_dir), handle(pid=threading.get_ident()))), 8)
        assert sorted(won) == [False] * 7 + [True]
        assert left_aside(run_dir) == []

    def test_a_lease_is_whole_or_not_there(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that is killed before the link leaves only a temporary file, which has no meaning."""
        monkeypatch.setattr(os, "link", _die)
        monkeypatch.setattr(os, "unlink", _die)
        with pytest.raises(KeyboardInterrupt):
            run_directory.publish_lease(str(run_dir), handle())
        monkeypatch.undo()
        assert len(left_aside(run_dir)) == 1
        assert run_directory.load_history(str(run_dir)) == History()
        assert run_directory.publish_lease(str(run_dir), handle())

    def test_the_first_conclusion_stands(self, run_dir: Path) -> None:
        assert run_directory.write_outcome(str(run_dir), Outcome(State.DONE, 1, {"train": 0}))
        assert not run_directory.write_outcome(str(run_dir), Outcome(State.FAILED, 1))
        assert run_directory.load_history(str(run_dir)).state is State.DONE

    @pytest.mark.parametrize(
        "damage", ["", "{", "[]", "null", '{"state": "gone"}', '{"state": "done", "attempt": "one"}']
    )
    def test_a_conclusion_that_cannot_be_read_is_written_again(self, run_dir: Path, damage: str) -> None:
        (run_dir / "outcome.1").write_text(damage)
        assert run_directory.load_history(str(run_dir)).attempts[0].outcome is None
        assert run_directory.write_outcome(str(run_dir), Outcome(State.FAILED, 1, {"train": 1}))
        assert run_directory.load_history(str(run_dir)).state is State.FAILED

    def test_the_first_stop_stands(self, run_dir: Path) -> None:
        first = Stop("a", "enough", "user", 1.0)
        assert run_directory.write_stop(str(run_dir), 1, first)
        assert not run_directory.write_stop(str(run_dir), 1, Stop("b", "too"))
        assert run_directory.load_history(str(run_dir)).attempts[0].stop == first


def _die(*_arguments: object) -> None:
    raise KeyboardInterrupt


class TestNewerCode:
    @pytest.fixture
    def coded(self, run_dir: Path) -> Path:
        (run_dir / "code").mkdir()
        (run_dir / "code" / "train.py").write_text("old")
        return run_dir

    @staticmethod
    def build(aside: str) -> None:
        os.mkdir(aside)
        Path(aside, "train.py").write_text("new")

    def test_nothing_waits(self, coded: Path) -> None:
        assert run_directory.take_code(str(coded), 1) is None
        assert (coded / "code/train.py").read_text() == "old"

    def test_it_takes_the_place_of_the_old(self, coded: Path) -> None:
        run_directory.offer_code(str(coded), "hash2", self.build)
        assert (coded / "code/train.py").read_text() == "old"
        record = run_directory.take_code(str(coded), 1, "commit2")
        assert record == replace(RECORD, code_hash="hash2", commit="commit2")
        assert run_directory.load_record(str(coded)) == record
        assert (coded / "code/train.py").read_text() == "new"
        assert (coded / "code.1/train.py").read_text() == "old"

    @pytest.mark.parametrize("call", range(1, 4))
    def test_killed_at_any_step_another_call_completes_it(
        self, coded: Path, monkeypatch: pytest.MonkeyPatch, call: int
    ) -> None:
        run_directory.offer_code(str(coded), "hash2", self.build)
        steps = iter(range(1, 10))
        for name in ("rename", "replace"):
            real = getattr(os, name)

            def step(*arguments: str, real: Callable[..., None] = real) -> None:
                if next(steps) == call:
                    raise KeyboardInterrupt
                real(*arguments)

            monkeypatch.setattr(os, name, step)
        with pytest.raises(KeyboardInterrupt):
            run_directory.take_code(str(coded), 1, "commit2")
        monkeypatch.undo()
        record = run_directory.take_code(str(coded), 2)
        assert record is not None
        assert record.code_hash == "hash2"
        assert (coded / "code/train.py").read_text() == "new"
        kept = list(coded.glob("code.*"))
        assert [(path / "train.py").read_text() for path in kept] == ["old"]

    def test_a_failure_leaves_the_old(self, coded: Path, tmp_path: Path) -> None:
        def fail(aside: str) -> None:
            self.build(aside)
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            run_directory.offer_code(str(coded), "hash2", fail)
        assert run_directory.take_code(str(coded), 1) is None
        assert left_aside(tmp_path) == []

    def test_nothing_that_was_kept_is_overwritten(self, coded: Path) -> None:
        for number in ("2", "3"):
            run_directory.offer_code(str(coded), f"hash{number}", self.build)
            run_directory.take_code(str(coded), 1)
        assert len(list(coded.glob("code.1*"))) == 2


texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
specs = st.builds(
    RunSpec,
    id=texts,
    name=texts,
    params=st.dictionaries(texts, values, max_size=4),
    commands=st.lists(st.builds(Command, texts, texts, st.none() | st.floats(0, 1e6)), max_size=3).map(tuple),
    ordinal=st.integers(0, 9),
    title=st.none() | texts,
    tag=st.none() | texts,
    resources=st.builds(
        Resources,
        st.none() | st.integers(0, 8),
        st.integers(1, 64),
        st.none() | st.integers(0, 2**62),
        st.integers(1, 4),
    ),
    patterns=st.lists(
        st.builds(Pattern, texts, texts, st.lists(texts, max_size=2).map(tuple), st.none() | texts)
        | st.builds(MetricFile, st.sampled_from(["jsonl", "csv", "tensorboard"]), texts, st.none() | texts),
        max_size=3,
    ).map(tuple),
    timeout_s=st.none() | st.floats(0, 1e6),
    retries=st.integers(0, 9),
    priority=st.integers(-9, 9),
    env=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    pythonpath=st.none() | texts,
    code=st.builds(
        CodePolicy, st.sampled_from(["snapshot", "live"]), st.lists(texts, max_size=2).map(tuple), st.booleans()
    ),
    chosen=st.none() | st.lists(texts, max_size=2).map(tuple),
)


@given(
    st.builds(
        RunRecord,
        specs,
        texts,
        st.from_regex(r"[0-9a-f]{0,12}", fullmatch=True),
        st.floats(0, 1e12),
        texts,
        texts,
        st.none() | texts,
        texts,
        st.none() | st.integers(0, 2**62),
        st.none() | texts,
    )
)
def test_a_record_survives_the_disk(record: RunRecord) -> None:
    loaded = run_directory.parse_record(run_directory.render_record(record), "run.json")
    assert asdict(replace(loaded, spec=SPEC)) == asdict(replace(record, spec=SPEC))
    # JSON does not distinguish lists from tuples
    assert json.loads(json.dumps(asdict(loaded.spec))) == json.loads(json.dumps(asdict(record.spec)))


DAMAGED = ["", "{", "[]", "7", "null", "{}", '{"format": null}', '{"format": "x"}', '{"format": 1}']


@pytest.mark.parametrize("text", [*DAMAGED, '{"format": 1, "name": "x"}', '{"format": 1, "spec": {"id": 3}}'])
def test_a_damaged_record_is_described_without_the_words_of_python(run_dir: Path, text: str) -> None:
    (run_dir / "run.json").write_text(text)
    with pytest.raises(FormatError, match=r"run\.json is damaged: .") as caught:
        run_directory.load_record(str(run_dir))
    said = caught.value.message.partition(" is damaged: ")[2]
    assert not any(word in said for word in ("object", "NoneType", "argument", "Error")) or "JSON object" in said


@pytest.mark.parametrize("uid", ["../x", "a/b", "a b", "x\n"])
def test_a_uid_that_leads_elsewhere_is_damage(uid: str) -> None:
    with pytest.raises(FormatError, match="uid"):
        run_directory.parse_record(run_directory.render_record(replace(RECORD, uid=uid)), "run.json")


def test_keys_of_a_newer_version_cost_nothing(run_dir: Path) -> None:
    run_directory.write_outcome(str(run_dir), Outcome(State.DONE, 1, {"train": 0}))
    path = run_dir / "outcome.1"
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_tomorrow": 1}))
    assert run_directory.load_outcome(str(run_dir), 1) == Outcome(State.DONE, 1, {"train": 0})


def test_a_record_of_a_later_version(run_dir: Path) -> None:
    (run_dir / "run.json").write_text(json.dumps({"format": layout.FORMAT_VERSION + 1}))
    with pytest.raises(FormatError, match="a newer Assay wrote"):
        run_directory.load_record(str(run_dir))


def test_a_run_without_commands_was_opened_by_a_script() -> None:
    text = json.dumps(
        {"format": 1, "name": "mine", "id": "0", "params": {"lr": 1}, "created_at": 3.0, "study": "adhoc"}
    )
    record = run_directory.parse_record(text, "run.json")
    assert (record.spec.name, record.spec.params, record.spec.commands, record.uid) == ("mine", {"lr": 1}, (), "")


def test_the_environment_is_written(tmp_path: Path) -> None:
    run_directory.write_environment(str(tmp_path / "e.json"), load_environment(str(tmp_path), ("assay", "run")))
    written = json.loads((tmp_path / "e.json").read_text())
    assert (written["format"], written["command_line"]) == (layout.FORMAT_VERSION, ["assay", "run"])


class TestHistory:
    def test_files_belong_to_their_attempts(self, run_dir: Path) -> None:
        for name in ("train.exit.0", "test.exit.3", "test.2.exit.0", "test.timeout", "token.3"):
            (run_dir / name).touch()
        run_directory.publish_lease(str(run_dir), handle(1))
        run_directory.publish_lease(str(run_dir), handle(2))
        run_directory.write_outcome(str(run_dir), Outcome(State.FAILED, 1))
        first, second, third = run_directory.load_history(str(run_dir)).attempts
        assert (first.codes, first.timeouts) == ({"train": 0, "test": 3}, {"test"})
        assert (second.codes, second.handle) == ({"test": 0}, handle(2))
        assert (third.number, third.handle) == (3, None)  # an empty token: nothing ran
        assert run_directory.load_history(str(run_dir)).finished_commands() == {"train", "test"}

    def test_the_order_is_that_of_the_numbers(self, run_dir: Path) -> None:
        for number in (10, 2, 1):
            run_directory.publish_lease(str(run_dir), handle(number))
        assert [attempt.number for attempt in run_directory.load_history(str(run_dir)).attempts] == [1, 2, 10]

    @pytest.mark.parametrize(
        "name",
        [
            *("lease.1.abcd.tmp", "outcome.1.0123.tmp", "lease.x", "lease.", "train.exit.", "code.1"),
            *("code.next-1", "notes.txt"),
        ],
    )
    def test_other_files_say_nothing(self, run_dir: Path, name: str) -> None:
        (run_dir / name).write_text("{}")
        history = run_directory.load_history(str(run_dir))
        assert (history, history.last, history.state) == (History(), None, State.QUEUED)

    @pytest.mark.parametrize("content", ["", "{", '"x"', "[1]", '{"pid": 3}', '{"nonsense": 1}'])
    def test_a_damaged_lease_or_stop(self, run_dir: Path, content: str) -> None:
        (run_dir / "lease.1").write_text(content)
        (run_dir / "stop.1").write_text(content)
        (attempt,) = run_directory.load_history(str(run_dir)).attempts
        assert attempt.handle is None
        assert attempt.stop == Stop("unknown", "")

    def test_a_token_says_who_called_job_sh_by_hand(self, run_dir: Path) -> None:
        (run_dir / "token.1").write_text("myhost 41 42 some-boot 1000\n")
        (attempt,) = run_directory.load_history(str(run_dir)).attempts
        assert attempt.handle is not None
        assert (attempt.handle.host, attempt.handle.pid, attempt.handle.start, attempt.handle.boot) == (
            "myhost",
            41,
            42,
            "some-boot",
        )

    @given(
        st.lists(
            st.sampled_from(
                [
                    *("lease.1", "lease.2", "token.2", "stop.1", "outcome.1", "outcome.2", "end.1", "train.exit.0"),
                    *("train.2.exit.137", "test.timeout", "x.tmp", ".tmp-1"),
                ]
            ),
            unique=True,
        ),
        st.sampled_from(["", "{}", '{"state": "done"}']),
    )
    def test_any_files_give_a_history(self, names: list[str], content: str) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                Path(folder, name).write_text(content)
            history = run_directory.load_history(folder)
        assert [attempt.number for attempt in history.attempts] == sorted(
            {attempt.number for attempt in history.attempts}
        )
        assert all(attempt.outcome is None for attempt in history.attempts)


@pytest.mark.parametrize(
    ("codes", "timeouts", "before", "said"),
    [
        ({}, (), (), None),
        ({"train": 0}, (), (), None),
        ({"train": 0, "test": 0}, (), (), State.DONE),
        ({"test": 0}, (), ("train",), State.DONE),
        ({"train": 1}, (), (), State.FAILED),
        ({"train": 0, "test": 137}, (), (), State.FAILED),
        ({"train": 124}, ("train",), (), State.TIMEOUT),
        ({"train": 124}, ("test",), (), State.FAILED),
    ],
)
def test_conclude(
    codes: dict[str, int], timeouts: tuple[str, ...], before: tuple[str, ...], said: State | None
) -> None:
    attempt = Attempt(1, codes=codes, timeouts=frozenset(timeouts))
    assert conclude(attempt, ("train", "test"), set(before)) is said


def test_times_of_commands(run_dir: Path) -> None:
    assert run_directory.load_times(str(run_dir)) == {}
    lines = "10.5 train start\n12,25 train exit 0\nnonsense\nx train start\n13.0 test start\n14.0 more exit 0\n"
    (run_dir / "job.log").write_text(lines)
    assert run_directory.load_times(str(run_dir)) == {"train": (10.5, 12.25), "test": (13.0, None)}


@pytest.mark.parametrize("suffix", ["", ".2"])
@pytest.mark.parametrize("concluded", [True, False])
def test_contradicting_exit_markers_are_never_done(tmp_path: Path, suffix: str, concluded: bool) -> None:
    number = 2 if suffix else 1
    for code in (0, 1):
        (tmp_path / f"train{suffix}.exit.{code}").touch()
    (tmp_path / f"test{suffix}.exit.0").touch()
    if concluded:
        run_directory.write_outcome(str(tmp_path), Outcome(State.DONE, number, {"train": 0, "test": 0}))
    history = run_directory.load_history(str(tmp_path))
    (attempt,) = history.attempts
    assert history.finished_commands() == {"test"}
    outcome = attempt.outcome or build_outcome(attempt, ("train", "test"), set())
    assert (outcome.state, outcome.exit_code) == (State.FAILED, 1)
    assert outcome.reason == f"train: exit markers contradict each other in attempt {number}"


def test_two_attempts_may_end_differently(tmp_path: Path) -> None:
    (tmp_path / "train.exit.1").touch()
    (tmp_path / "train.2.exit.0").touch()
    assert run_directory.load_history(str(tmp_path)).finished_commands() == {"train"}


@pytest.mark.parametrize("text", ["", "[]", '{"runs": []}', '{"runs": {"a/b": "1", "..": "2", "": "3", "c": 4}}', "{"])
def test_a_damaged_plan_plans_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".assay").mkdir()
    run_directory.write_plan(str(tmp_path), {"a": "1", "b": "2"})
    (tmp_path / "a").mkdir()
    assert run_directory.load_planned(str(tmp_path)) == {"b": "2"}
    (tmp_path / ".assay/plan.json").write_text(text)
    assert run_directory.load_planned(str(tmp_path)) == {}
    run_directory.remove_plan(str(tmp_path))
    assert run_directory.load_planned(str(tmp_path)) == {}


def dated(run_dir: Path, name: str, at: float) -> None:
    (run_dir / name).touch()
    os.utime(run_dir / name, (at, at))


def test_a_farm_s_job_begins_with_its_token(run_dir: Path) -> None:
    """The times are from the file system's clock, which may differ from ours: only the difference counts."""
    far = handle(1, executor="slurm")
    dated(run_dir, "lease.1", 1000.0)
    assert run_directory.find_begin(str(run_dir), far) is None
    dated(run_dir, "token.1", 1030.0)
    assert run_directory.find_begin(str(run_dir), far) == 35.0
    assert run_directory.find_begin(str(run_dir), handle(1)) == 5.0


@pytest.mark.parametrize(
    ("lines", "codes", "span"),
    [
        (["900.0 train start", "902.5 train exit 0"], {"train": 0}, (35.0, 37.5)),
        (["1.0 train start", "2.0 train exit 0", "8.0 test start", "9.0 test exit 1"], {"test": 1}, (35.0, 36.0)),
        (["1.0 train start", "2.0 train exit 0", "8.0 test start"], {"train": 0}, (35.0, 50.0)),
        (["900.0 train start"], {}, (35.0, 50.0)),
        ([], {}, (35.0, 50.0)),
        (["900.0 train start", "930.0 train exit 0"], {"train": 0}, (20.0, 50.0)),
    ],
    ids=["whole", "one of an earlier attempt", "killed in the second", "killed", "nothing", "a token fetched late"],
)
def test_how_long_a_farm_s_job_took(
    run_dir: Path, lines: list[str], codes: dict[str, int], span: tuple[float, float]
) -> None:
    dated(run_dir, "lease.1", 1000.0)
    dated(run_dir, "token.1", 1030.0)
    (run_dir / "job.log").write_text("\n".join(lines))
    assert run_directory.find_span(str(run_dir), handle(1, executor="slurm"), codes, 50.0) == span
    assert run_directory.find_span(str(run_dir), handle(1), codes, 50.0) == (5.0, 50.0)
