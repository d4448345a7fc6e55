"""Where studies lie, and which roots are refused before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.config.settings import Settings
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.follow.locations import (
    Roots,
    StudyLocation,
    check_writable,
    choose_root,
    find_runs,
    find_studies,
    find_study,
    is_study,
)
from assay.record import run_directory
from assay.values.run import Command, RunSpec


def make_run(root: Path, study: str, run: str) -> Path:
    path = root / study / run
    spec = RunSpec("0", run, {}, (Command("run", "true"),))
    record = run_directory.RunRecord(spec, study, run_directory.new_uid(), 0.0)
    assert run_directory.write_run_dir(str(path), record, "")
    return path


def make_foreign(root: Path, study: str, run: str, mark: str = "hparams.json") -> Path:
    path = root / study / run
    path.mkdir(parents=True)
    (path / mark).write_text("{}")
    return path


class TestRoot:
    file = Settings("/from/file", "/some/assay.toml")
    environment = Settings("/from/env", "ASSAY_ROOT")
    nobody = Settings("/cwd/runs")

    @pytest.mark.parametrize(
        ("flag", "asked", "settings", "expected"),
        [
            ("/flag", "/study", environment, ("/flag", True)),
            (None, "/study", environment, ("/from/env", True)),
            (None, "/study", file, ("/study", True)),
            (None, None, file, ("/from/file", True)),
            (None, None, nobody, ("/cwd/runs", False)),
        ],
    )
    def test_who_decides(
        self, flag: str | None, asked: str | None, settings: Settings, expected: tuple[str, bool]
    ) -> None:
        assert choose_root(flag, asked, settings) == expected

    def test_a_relative_flag_is_relative_to_here(self) -> None:
        assert choose_root("x/../y", None, self.nobody) == (os.path.join(os.getcwd(), "y"), True)


class TestWritable:
    def test_a_root_that_is_still_to_be_made(self, tmp_path: Path) -> None:
        check_writable(StudyLocation(str(tmp_path / "a" / "b"), "study"))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("root", [".", "study", "study/a/b", "link"])
    def test_what_is_no_directory(self, tmp_path: Path, root: str) -> None:
        """The study, the root, its parent and a link to nothing."""
        (tmp_path / "study").write_text("")
        (tmp_path / "link").symlink_to(tmp_path / "gone")
        with pytest.raises(UsageError, match="is not a directory"):
            check_writable(StudyLocation(str(tmp_path / root), "study"))

    def test_no_permission(self, forbidden_dir: Path) -> None:
        with pytest.raises(UsageError, match="no permission"):
            check_writable(StudyLocation(str(forbidden_dir), "study"))

    @pytest.mark.parametrize(
        ("field", "said"), [("f_bavail", "is full"), ("f_favail", "is full"), ("f_flag", "read-only")]
    )
    def test_what_the_file_system_refuses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, said: str
    ) -> None:
        real = os.statvfs(tmp_path)
        counts = [f"f_{name}" for name in ("blocks", "bfree", "bavail", "files", "ffree", "favail")]
        names = ["f_bsize", "f_frsize", *counts, "f_flag", "f_namemax"]
        fields = {name: getattr(real, name) for name in names}
        fields |= {"f_files": 100, "f_favail": 100, "f_bavail": 10**9, field: os.ST_RDONLY if field == "f_flag" else 0}
        monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields[name] for name in names))
        with pytest.raises(UsageError if field == "f_flag" else InfrastructureError, match=said):
            check_writable(StudyLocation(str(tmp_path), "study"))


class TestFinding:
    def test_studies_under_a_root(self, tmp_path: Path) -> None:
        make_run(tmp_path, "ours", "a")
        make_foreign(tmp_path, "runx", "b")
        make_foreign(tmp_path, "mlrunner", "c", "param")
        (tmp_path / "queued" / ".assay").mkdir(parents=True)
        (tmp_path / "pictures").mkdir()
        (tmp_path / ".hidden" / ".assay").mkdir(parents=True)
        (tmp_path / "file").write_text("")
        assert list(find_studies(str(tmp_path))) == ["mlrunner", "ours", "queued", "runx"]

    @pytest.mark.parametrize("name", ["gone", "file"])
    def test_a_root_that_is_none(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").write_text("")
        assert list(find_studies(str(tmp_path / name))) == []
        assert not is_study(str(tmp_path / name))

    def test_a_study_by_name_and_by_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_run(tmp_path / "root", "study", "a")
        location = StudyLocation(str(tmp_path / "root"), "study")
        assert find_study("study", Roots((str(tmp_path / "else"), str(tmp_path / "root")))) == location
        assert find_study(str(tmp_path / "root" / "study"), Roots(())) == location
        monkeypatch.chdir(tmp_path)
        assert find_study("root/study", Roots(())) == location

    def test_the_runs_of_a_study_by_its_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As hints name a study that lies elsewhere: `assay stop /data/runs/fit`."""
        run = make_run(tmp_path / "elsewhere", "fit", "a")
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        for name in (str(run.parent), f"{run.parent}/", "../elsewhere/fit"):
            assert [found.dir for found in find_runs(name, None)] == [str(run)], name
        assert [found.dir for found in find_runs(str(run), None)] == [str(run)]

    def test_a_study_that_is_not_there(self, tmp_path: Path) -> None:
        make_run(tmp_path, "norm-ablation", "a")
        with pytest.raises(NotFoundError, match="no study named 'norm-ablaton'") as caught:
            find_study("norm-ablaton", Roots((str(tmp_path),)))
        assert "norm-ablation" in caught.value.render()
        with pytest.raises(NotFoundError) as caught:
            find_study("x", Roots((str(tmp_path / "empty"),)))
        assert "assay demo" in caught.value.render()

    def test_a_name_that_fits_several_studies_is_ambiguous(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        roots = Roots((str(tmp_path / "runs"), str(tmp_path / "logs")), (str(tmp_path / "mount"),))
        for root in ("logs", "mount"):
            make_run(tmp_path / root, "sweep", "a")
        assert find_study("sweep", roots).root == str(tmp_path / "logs"), "the mount holds copies"
        make_run(tmp_path / "runs", "sweep", "b")
        make_run(tmp_path, "sweep", "c")
        with pytest.raises(UsageError, match=r"'sweep' names 3 studies: runs/sweep, logs/sweep, \./sweep"):
            find_study("sweep", roots)
        for path in ("runs/sweep", "logs/sweep", "./sweep"):
            assert find_study(path, roots).dir == os.path.abspath(path), "each path leads to its own"
        only = Roots((str(tmp_path / "logs"),), were_asked=True)
        assert find_study("sweep", only).root == str(tmp_path / "logs")

    def test_one_study_that_two_roots_lead_to_is_one(self, tmp_path: Path) -> None:
        make_run(tmp_path / "runs", "sweep", "a")
        (tmp_path / "link").symlink_to(tmp_path / "runs")
        roots = Roots((str(tmp_path / "runs"), str(tmp_path / "link")))
        assert find_study("sweep", roots).root == str(tmp_path / "runs")


class TestWithoutBlocks:
    """A file system that counts no blocks is not full: it may be unlimited, or one that holds no files at all."""

    @pytest.fixture(autouse=True)
    def uncounted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        proc = os.statvfs("/proc")
        assert proc.f_blocks == 0
        monkeypatch.setattr(os, "statvfs", lambda _path: proc)

    def test_one_that_holds_files(self, tmp_path: Path) -> None:
        check_writable(StudyLocation(str(tmp_path), "study"))
        assert list(tmp_path.iterdir()) == []

    def test_one_that_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_args, **_options: True)  # as root
        with pytest.raises(UsageError, match="under /proc cannot hold files") as caught:
            check_writable(StudyLocation("/proc/x", "study"))
        assert caught.value.hint == "choose another output root: --root DIR"
