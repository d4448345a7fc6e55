"""profiler_data/ as TensorBoard's profile tab looks for it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from tests.compat.perfzero.test_profile_data_xplane import call, parse

from assay.compat.perfzero.profile_data import arrange_profiles, render_xspace


def write(path: Path, content: object, at: float) -> None:
    path.write_text(json.dumps(content))
    os.utime(path, (at, at))


def test_every_window_is_a_session(tmp_path: Path) -> None:
    trace = {"traceEvents": [call("step", 1.0, 2.0)]}
    write(tmp_path / "torch-1.json", trace, 1_700_000_000)
    write(tmp_path / "torch-2.json", trace, 1_700_000_000)
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]
    sessions = sorted((tmp_path / "plugins" / "profile").iterdir())
    assert [session.name[19:] for session in sessions] == ["_torch-1", "_torch-2"], "two in one second stay apart"
    for session in sessions:
        assert sorted(path.name for path in session.iterdir()) == ["node7.trace.json.gz", "node7.xplane.pb"]
        assert json.loads(gzip.decompress((session / "node7.trace.json.gz").read_bytes())) == trace
        assert parse((session / "node7.xplane.pb").read_bytes())["hosts"] == ["node7"]


def test_what_tensorflow_wrote_stays(tmp_path: Path) -> None:
    plane = tmp_path / "plugins" / "profile" / "2026_01_01_00_00_00" / "node7.xplane.pb"
    plane.parent.mkdir(parents=True)
    space = render_xspace({"traceEvents": [call("MatMul", 1.0, 2.0)]}, "node7")
    assert space is not None
    plane.write_bytes(space)
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert plane.read_bytes() == space
    trace = plane.with_name("node7.trace.json.gz")
    assert [event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]][-1] == "MatMul"
    before = trace.stat().st_mtime_ns
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert trace.stat().st_mtime_ns == before, "one that is there stays"


def test_a_plane_that_is_cut_off_is_said_and_kept(tmp_path: Path) -> None:
    plane = tmp_path / "plugins" / "profile" / "s" / "h.xplane.pb"
    plane.parent.mkdir(parents=True)
    plane.write_bytes(b"\x0a\x7fx")
    (problem,) = arrange_profiles(str(tmp_path), "h")
    assert f"the profile {plane} has no Chrome trace: it is cut off" in problem
    assert [path.name for path in plane.parent.iterdir()] == ["h.xplane.pb"]


def test_an_empty_trace_has_no_plane(tmp_path: Path) -> None:
    write(tmp_path / "python-1.json", {"traceEvents": []}, 0)
    assert arrange_profiles(str(tmp_path), "h") == []
    assert [path.name for path in tmp_path.rglob("h.*")] == ["h.trace.json.gz"]


def test_a_trace_that_is_cut_off_is_said_and_kept(tmp_path: Path) -> None:
    (tmp_path / "torch-1.json").write_text('{"traceEvents": [')
    (problem,) = arrange_profiles(str(tmp_path), "h")
    assert "torch-1.json cannot be read" in problem
    assert (tmp_path / "torch-1.json").exists()


def test_no_profile_is_no_problem(tmp_path: Path) -> None:
    assert arrange_profiles(str(tmp_path / "absent"), "h") == []
