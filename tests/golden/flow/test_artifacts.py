"""`assay golden rebase --artifacts`: a rebase from what CI kept, on a machine that did not run it."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden.two_sides import MANIFEST, TwoSides

CHECK = ("check", "--no-early-stop")
REBASE = ("rebase", "--artifacts", "kept", "--reason", "a larger offset")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden of two recordings, and two checks of a code that moved, as the machine of CI has them."""
    lab = TwoSides(tmp_path_factory.mktemp("ci"))
    lab.gather(NOISE="0.00001")
    lab.move_code(1.05)
    lab.commit("second")
    for _ in range(2):
        assert lab.run(*CHECK, NOISE="0.00001").code == 1
    return lab.folder


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> TwoSides:
    """Another machine: the repository and the store, and in `kept` the runs of CI."""
    found = object.__new__(TwoSides)
    found.folder = tmp_path / "elsewhere"
    shutil.copytree(made, found.folder, ignore=shutil.ignore_patterns("runs"))
    shutil.copytree(made / "runs", found.folder / "kept")
    return found


def newest(lab: TwoSides) -> Path:
    return max((lab.folder / "kept/golden-fit/.assay/golden").glob("*-check.json.gz"))


def refuse(lab: TwoSides, *words: str) -> str:
    before = lab.manifest.read_text()
    ended = lab.run(*REBASE, *words)
    assert ended.code == 1
    assert lab.manifest.read_text() == before
    return ended.out


def test_the_runs_of_two_checks_become_the_golden_and_nothing_is_run(lab: TwoSides) -> None:
    ended = lab.run(*REBASE, "--only-failing", "--md", "pr.md")
    assert ended.code == 0, ended.out + ended.err
    assert not (lab.folder / "runs").exists()
    heading, _, reason, _, *table = (lab.folder / "pr.md").read_text().splitlines()
    assert heading == "### Golden fit: rebased"
    assert reason.startswith("a larger offset (")
    assert reason.endswith(", from artifacts)")
    assert table[0] == "| metric | old | new | effect | noise | result | since the first |"
    name, old, new, effect, noise, result, _ = (cell.strip() for cell in table[2].strip("|").split("|"))
    assert (name, result) == ("loss", "moved")
    assert float(new) - float(old) == pytest.approx(0.05, abs=1e-3)
    assert effect.startswith("+2.4")
    assert noise.startswith("±0.")
    assert str(lab.folder) not in (lab.folder / "pr.md").read_text(), "no path of a machine"
    again = lab.run("check", NOISE="0.00001")
    assert again.code == 0, again.out
    assert "2 recordings of each segment" in again.out


def test_a_test_that_passed_stays(lab: TwoSides) -> None:
    assert lab.run(*REBASE).code == 0
    shutil.rmtree(lab.folder / "kept")
    assert lab.run(*CHECK, NOISE="0.00001").code == 0
    (lab.folder / "runs").rename(lab.folder / "kept")
    before = lab.manifest.read_text()
    ended = lab.run(*REBASE, "--only-failing")
    assert (ended.code, ended.out) == (0, "fit: left as it is: it passed in the artifacts\n")
    assert lab.manifest.read_text() == before


def test_artifacts_may_be_the_root_the_study_or_a_folder_around(lab: TwoSides) -> None:
    lab.manifest.with_suffix(".copy").write_text(lab.manifest.read_text())
    for folder in (".", "kept/golden-fit"):
        lab.manifest.write_text(lab.manifest.with_suffix(".copy").read_text())
        ended = lab.run("rebase", "--artifacts", folder, "--reason", "x")
        assert ended.code == 0, ended.out


def test_a_run_that_crashed_after_its_last_step_never_becomes_a_golden(lab: TwoSides) -> None:
    shutil.rmtree(lab.folder / "kept")
    assert lab.run(*CHECK, FAIL_AT_END="1").code == 1
    (lab.folder / "runs").rename(lab.folder / "kept")
    assert "segment 0 has no complete run in the artifacts: train ended with exit code 1" in refuse(
        lab, "--allow-wider"
    )


def test_fewer_recordings_than_before_are_refused(lab: TwoSides) -> None:
    newest(lab).unlink()
    assert "1 recording of each segment instead of 2" in refuse(lab)
    ended = lab.run(*REBASE, "--allow-wider")
    assert ended.code == 0, ended.out


def test_runs_of_a_check_with_another_verdict_are_not_added(lab: TwoSides) -> None:
    """The two checks are of one commit, in environments that differ by a variable."""
    shutil.rmtree(lab.folder / "kept")
    assert lab.run(*CHECK, SCALE="0.9").code == 3
    assert lab.run(*CHECK).code == 1
    (lab.folder / "runs").rename(lab.folder / "kept")
    assert "1 recording of each segment instead of 2" in refuse(lab)


def test_artifacts_of_another_golden_are_refused(lab: TwoSides) -> None:
    lab.gather(NOISE="0.00001")
    text = refuse(lab)
    assert "the check in the artifacts was of another golden, recorded 20" in text
    assert "assay golden check golden.yml --no-early-stop" in text


def edit_logs(lab: TwoSides, change: Callable[[str], str]) -> None:
    for log in lab.folder.glob("kept/golden-fit/check-*/train.log"):
        log.write_text(change(log.read_text()))


def rename_test(lab: TwoSides) -> None:
    for path in (lab.folder / "kept/golden-fit/.assay/golden").glob("*-check.json.gz"):
        content = gzip.decompress(path.read_bytes()).replace(b'"test": "fit"', b'"test": "fat"')
        path.write_bytes(gzip.compress(content))


def change_code(lab: TwoSides) -> None:
    older = min((lab.folder / "kept/golden-fit").glob("check-*")) / "environment.json"
    older.write_text(older.read_text().replace('"commit": "', '"commit": "0'))


def cut_report(lab: TwoSides) -> None:
    newest(lab).write_bytes(newest(lab).read_bytes()[:-30])


NO_RUN = ("segment 0 has no complete run in the artifacts", "assay golden check golden.yml --no-early-stop")


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (cut_report, ("is damaged",)),
        (rename_test, ("the artifacts are of the test fat, not of fit",)),
        (change_code, ("1 recording of each segment instead of 2",)),  # runs of another code are not added
        (lambda lab: edit_logs(lab, lambda text: "".join(text.splitlines(keepends=True)[:6])), NO_RUN),
        (
            lambda lab: edit_logs(lab, lambda text: text.replace("step 4 loss ", "step 4 loss nan #")),
            ("refused: segment 0 loss is nan at step 4",),
        ),
        (lambda lab: [path.unlink() for path in lab.folder.glob("kept/*/check-*/run.json")], ("lacks the run check-",)),
        (lambda lab: shutil.rmtree(lab.folder / "kept/golden-fit/.assay/golden"), ("has no report of a check",)),
        (lambda lab: shutil.rmtree(lab.folder / "kept"), ("there is no folder kept",)),
        (
            lambda lab: (lab.folder / "kept/golden-fit").rename(lab.folder / "kept/golden-other"),
            ("kept has no runs of golden-fit", "golden-other"),
        ),
    ],
)
def test_artifacts_that_are_damaged_or_of_something_else_are_refused(
    lab: TwoSides, damage: Callable[[TwoSides], object], messages: tuple[str, ...]
) -> None:
    damage(lab)
    text = refuse(lab)
    assert all(message in text for message in messages), text


def test_options_that_do_not_go_together(lab: TwoSides) -> None:
    for words, message in (
        (("--artifacts", "kept"), "--reason"),
        (("--artifacts", "kept", "--reason", " "), "a rebase needs a reason"),
        (("--only-failing", "--reason", "x"), "--only-failing needs --artifacts"),
        (("--artifacts", "kept", "--environment-only", "--reason", "x"), "--environment-only is not for --artifacts"),
        (("--artifacts", "kept", "--from", "check", "--reason", "x"), "--from is not for --artifacts"),
        (("--reason", "x", "-s", "my store"), "gather it first: assay golden gather golden.yml -s 'my store'\n"),
    ):
        ended = lab.run("rebase", *words)
        assert (ended.code, message in ended.err) == (2, True), ended.err


def test_a_manifest_is_compact_and_a_diff_shows_the_steps_that_moved(lab: TwoSides) -> None:
    lines = lab.manifest.read_text().splitlines()
    (first,) = [line for line in lines if line.startswith('                "1": {"loss": {"0": "')]
    assert first.endswith('"}},')
    assert len([line for line in lines if '"values": [' in line]) == 1, "a list of numbers is one line"
    assert len(lines) < 120
    assert lab.manifest.name == MANIFEST
