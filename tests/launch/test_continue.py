"""With `resume:` a later attempt goes on from the newest checkpoint of the earlier ones."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from tests.training_with_checkpoints import load_steps, write_study

import assay
from assay.cli.main import run
from assay.record.checkpoints import describe_checkpoint, find_newer, list_checkpoints
from assay.record.run_directory import load_history
from assay.values.run import Beginning


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(run_dir: Path) -> list[str]:
    """Return the checkpoint with which each attempt began."""
    handles = [attempt.handle for attempt in load_history(str(run_dir)).attempts]
    return [handle.begins.checkpoint for handle in handles if handle and handle.begins]


class TestAfterADeath:
    def test_it_goes_on_and_says_from_where(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run_dir = write_study(folder, "--die-at 5")
        assert run(["run", "s.yml"]) == 0
        assert "attempt 2, continues from step 4" in capsys.readouterr().err
        assert load_steps(run_dir) == [1, 2, 3, 4, 5, *range(5, 13)]
        assert begin(run_dir) == ["", "ckpt/step-4.pt"]
        assert '--init "${ASSAY_RUN_DIR}/ckpt/step-4.pt"' in (run_dir / "job.sh").read_text()
        assert "--init" not in (run_dir / "job.1.sh").read_text()
        assert run(["show", "long/run"]) == 0
        assert "step 4" in capsys.readouterr().out

    def test_the_series_of_both_attempts_are_one(self, folder: Path) -> None:
        """If both attempts computed a point, the newer one counts; an index that is made again is the same."""
        write_study(folder, "--die-at 5")
        assert run(["run", "s.yml"]) == 0
        for words in ([], ["index", "rebuild"]):
            assert not words or run(words) == 0
            found = assay.runs("long")
            assert list(found.series("run", "loss").steps) == list(range(1, 13))
            assert found["run"].metrics["loss"] == 1 / 12

    def test_without_the_key_it_starts_over(self, folder: Path) -> None:
        run_dir = write_study(folder, "--die-at 5 --until 6")
        text = (folder / "s.yml").read_text()
        (folder / "s.yml").write_text(
            text.replace("resume:", "# ").replace("[init]", "--die-at $((5 * (ASSAY_ATTEMPT_NUMBER < 2)))")
        )
        assert run(["run", "s.yml"]) == 0
        assert load_steps(run_dir) == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]


class TestRepeated:
    def test_retries_go_on_and_a_person_starts_over(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run_dir = write_study(folder, "--fail-at 3 --until 4", "retries: 1")
        assert run(["run", "s.yml"]) == 1
        assert load_steps(run_dir) == [1, 2, 3, 3]
        assert run(["run", "s.yml", "--retry", "failed"]) == 1
        assert "attempt 3, starts over" in capsys.readouterr().err
        assert begin(run_dir) == ["", "ckpt/step-2.pt", "", "ckpt/step-2.pt"]
        assert "--init" not in (run_dir / "job.3.sh").read_text()


class TestDamagedCheckpoint:
    def test_the_one_before_it_is_used_and_no_retry_is_used_up(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run_dir = write_study(folder, "--die-at 5 --damages 4")
        assert run(["run", "s.yml"]) == 0
        said = capsys.readouterr().err
        assert "attempt 2, continues from step 4" in said
        assert "attempt 3, continues from step 3" in said
        assert load_steps(run_dir) == [1, 2, 3, 4, 5, *range(4, 13)]

    def test_where_none_can_be_read_it_fails_in_the_end(self, folder: Path) -> None:
        run_dir = write_study(folder, "--die-at 6 --damages 1,2,3,4,5")
        assert run(["run", "s.yml"]) == 1
        assert begin(run_dir) == ["", *(f"ckpt/step-{step}.pt" for step in (5, 4, 3, 2))]
        assert load_steps(run_dir) == [1, 2, 3, 4, 5, 6]

    def test_an_archive_that_was_cut_off_is_not_one(self, tmp_path: Path) -> None:
        for name in ("step-1.pt", "step-2.pt"):
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("data", b"x" * 1000)
        (tmp_path / "step-2.pt").write_bytes((tmp_path / "step-2.pt").read_bytes()[:-10])
        assert [each.path for each in list_checkpoints(str(tmp_path), ["*.pt"])] == ["step-1.pt"]


class TestTimeout:
    def test_the_run_s_limit_counts_all_attempts(self, folder: Path) -> None:
        """An attempt that continues gets what is left of the study's `timeout`, and at least one second."""
        run_dir = write_study(folder, "--die-at 5 --pause 0.5 --until 100", "timeout: 4s")
        assert run(["run", "s.yml"]) == 1
        assert [attempt.outcome.state for attempt in load_history(str(run_dir)).attempts if attempt.outcome] == [
            "lost",
            "timeout",
        ]
        assert max(load_steps(run_dir)) < 11  # 8 steps take 4 s


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("ckpt/step-4200.pt", "step 4,200"),
        ("checkpoint-500", "step 500"),
        ("from-step-100/step-4200.pt", "step 4,200"),
        ("epoch=3-step=700.ckpt", "step 700"),
        ("last_checkpoint_ep7.pth", "epoch 7"),
        ("ckpt/last.pt", "ckpt/last.pt"),
        ("model_v2.pt", "model_v2.pt"),
    ],
)
def test_a_checkpoint_is_called_by_its_step(path: str, words: str) -> None:
    assert describe_checkpoint(path) == words


def test_only_what_is_further_is_newer(tmp_path: Path) -> None:
    """A program that ignores its checkpoint writes the same steps again: it would be continued for ever."""
    for step, written_ns in ((3, 5), (4, 10)):
        (tmp_path / f"step-{step}.pt").write_text("x")
        os.utime(tmp_path / f"step-{step}.pt", ns=(written_ns, written_ns))
    assert find_newer(str(tmp_path), Beginning(("*.pt",))) == "step-4.pt"
    assert find_newer(str(tmp_path), Beginning(("*.pt",), "step-3.pt", 5)) == "step-4.pt"
    assert find_newer(str(tmp_path), Beginning(("*.pt",), "step-3.pt", 10)) == ""
    assert find_newer(str(tmp_path), Beginning(("*.pt",), "step-4.pt", 5)) == ""
    assert find_newer(str(tmp_path), Beginning(("*.pt",), "last.pt", 5)) == "step-4.pt"
    assert find_newer(str(tmp_path), None) == ""
