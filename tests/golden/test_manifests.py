"""Manifests: the original's are read, ours are read again, and defects are named."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ExitCode, FormatError, InfrastructureError, UsageError
from assay.golden.manifests import (
    BadRecordingError,
    find_checkpoint,
    hash_checkpoint,
    load_manifest,
    parse_manifest,
    render_manifest,
    write_manifest,
)
from assay.golden.values import Golden, Segment, Track

SAMPLES = Path(__file__).parents[1] / "formats" / "golden"


def make_golden(**changes: object) -> Golden:
    tracks = {
        "loss": {"": (Track((11, 12), (0.5, 0.25), ("0.5", "2.5e-1")), Track((11, 12), (0.5, 0.26), ("0.5", "0.26")))},
        "both": {"MLM": (Track((12,), (1.0,), ("1.0",)),), "NSP": (Track((12,), (2.0,), ("2.0",)),)},
    }
    segment = Segment(10, "ckpts/model_10.bin", tracks, "sha256:00")
    fields: dict[str, object] = {
        "test": "demo",
        "segments": (segment,),
        "steps_per_segment": 2,
        "provenance": {"commit": "abc"},
        "noise": {"loss": 0.01},
    }
    return Golden(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_manifest_of_the_document_and_one_with_numbers_and_nulls_are_read() -> None:
    golden = load_manifest(str(SAMPLES / "v1_document.json"), "bert")
    assert golden.version == 1
    assert [segment.start_step for segment in golden.segments] == [0, 4]
    assert golden.segments[1].checkpoint == "ckpts/20-04-11-14-23-13/model_4:5.onnx"
    (track,) = golden.segments[1].tracks["loss"]["NSP"]
    assert track == Track((5, 6, 7), (0.625, 0.64, 0.65), ("0.625", "0.640", "0.650"))
    assert golden.complete
    assert not golden.notes
    golden = load_manifest(str(SAMPLES / "v1_unlabelled.json"), "demo")
    (segment,) = golden.segments
    assert segment.tracks["loss"][""] == (Track((5, 10), (9.0, 7.5), ("9.0", "7.5")),)
    assert set(segment.tracks["both"]) == {"0", "1"}
    assert golden.gaps == (("loss", 15),)
    assert golden.notes == ["the golden has no value of loss at step 15"]

    for path in sorted(SAMPLES.glob("*.json")):
        segments = load_manifest(str(path), "demo").segments
        assert segments, path.name
        assert not any(segment.variants for segment in segments), path.name


def test_what_is_written_is_read_again_and_what_is_not_finite_is_not_written(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "demo_m.json")
    variants = {"halves": {"loss": {"": Track((11, 12), (0.5, 0.27), ("0.5", "0.27"))}}}
    segments = tuple(replace(segment, variants=variants) for segment in make_golden().segments)
    for more in ({"steps_per_segment": 9}, {"segments": segments}, {"repeats_start": False}):
        golden = make_golden(complete=False, steps_beyond=1, history=({"why": "new data"},), **more)
        write_manifest(path, golden)
        assert load_manifest(path, "demo") == golden
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["demo_m.json"], "the old one is replaced whole"
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_manifest(f"{path}/m.json", make_golden())
    path = tmp_path / "demo_m.json"
    track = Track((1, 2), (1.0, float("nan")), ("1.0", "nan"))
    golden = Golden("demo", (Segment(0, "c", {"loss": {"": (track,)}}),), provenance={"rules": {"loss": {}}})
    with pytest.raises(BadRecordingError, match="segment 0 loss is nan at step 2") as caught:
        write_manifest(str(path), golden)
    assert caught.value.exit_code is ExitCode.FAILED
    assert not path.exists()
    write_manifest(str(path), replace(golden, complete=False))
    assert path.exists()


def test_ckpt_logs_stay_as_the_original_had_them() -> None:
    content = json.loads(render_manifest(make_golden()))
    assert next(iter(content)) == "ckpt_logs"
    assert content["ckpt_logs"] == {
        "10": {
            "checkpoint": "ckpts/model_10.bin",
            "start_step": 10,
            "results": {
                "11": {"loss": {"0": "0.5"}},
                "12": {"loss": {"0": "2.5e-1"}, "both": {"MLM": "1.0", "NSP": "2.0"}},
            },
        }
    }
    assert render_manifest(make_golden()).startswith('{\n    "ckpt_logs": {\n        "10"')

    segment = Segment(0, "c", {"m": {"": (Track((1,), (0.1 + 0.2,)),)}})
    text = render_manifest(Golden("t", (segment,)))
    assert '"0": "0.30000000000000004"' in text, "without texts in full precision"
    one = make_golden().segments[0]
    two = Segment(10, "ckpts/ema_10.bin", one.tracks)
    text = render_manifest(make_golden(segments=(one, two)))
    assert list(json.loads(text)["ckpt_logs"]) == ["10", "10#2"]
    again = parse_manifest(text, "m", "demo")
    assert [segment.checkpoint for segment in again.segments] == ["ckpts/model_10.bin", "ckpts/ema_10.bin"]
    assert [segment.start_step for segment in again.segments] == [10, 10]


@given(
    st.dictionaries(st.integers(0, 10**6), st.floats(allow_nan=False, allow_infinity=True), min_size=1, max_size=20),
    st.text(min_size=1, max_size=8).filter(lambda text: text not in ("", "0")),
)
def test_no_digit_is_lost(values: dict[int, float], label: str) -> None:
    steps = tuple(sorted(values))
    track = Track(steps, tuple(values[step] for step in steps), tuple(repr(values[step]) for step in steps))
    golden = Golden("t", (Segment(0, "c", {"m": {label: (track, track)}}),))
    (segment,) = parse_manifest(render_manifest(golden), "m", "t").segments
    for found in segment.tracks["m"][label]:
        assert found == track
        assert all(math.copysign(1, a) == math.copysign(1, b) for a, b in zip(found.values, track.values, strict=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ('{"ckpt_logs": {"0": {"checkpoint": "a"', "it is truncated"),
        ('{"ckpt_logs": {"0": {"checkp', "it is truncated"),
        ('{"ckpt_logs": {,}}', "line 1, column 16"),
        ("[]", "it contains no `ckpt_logs`"),
        ("{}", "it contains no `ckpt_logs`"),
        ('{"ckpt_logs": []}', "ckpt_logs is not an object"),
        ('{"ckpt_logs": {"0": 5}}', "ckpt_logs.0 is not an object"),
        ('{"ckpt_logs": {"0": {"results": {}}}}', "does not name a checkpoint"),
        ('{"ckpt_logs": {"0": {"checkpoint": "a"}}}', "ckpt_logs.0.results is not an object"),
        ('{"ckpt_logs": {"x": {"checkpoint": "a", "results": {}}}}', "has the step 'x'"),
        ('{"ckpt_logs": {"0": {"checkpoint": "a", "results": {"1": {"loss": {"0": "abc"}}}}}}', "is not a number"),
        ('{"ckpt_logs": {"0": {"checkpoint": "a", "results": {"one": {"loss": {"0": "1"}}}}}}', "'one'"),
        ('{"ckpt_logs": {}, "format": "two"}', "its version is 'two'"),
        ('{"ckpt_logs": {}, "noise": 5}', "noise is not an object"),
    ],
)
def test_a_damaged_manifest_reports_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(FormatError, match="this golden recording is damaged") as caught:
        parse_manifest(text, "m.json", "demo")
    assert words in caught.value.message
    assert caught.value.hint == "gather it again, or bring it back from a copy"


def test_a_manifest_that_is_cut_newer_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    text = render_manifest(make_golden()).rstrip("\n")
    for end in range(0, len(text), 7):
        with pytest.raises(FormatError):
            parse_manifest(text[:end], "m", "demo")
    with pytest.raises(FormatError, match="a newer Assay wrote") as newer:
        parse_manifest('{"ckpt_logs": {}, "format": 4}', "m.json", "demo")
    assert newer.value.hint == "upgrade: pip install --upgrade assay"
    with pytest.raises(UsageError, match="there is no golden recording") as missing:
        load_manifest(str(tmp_path / "none.json"), "demo")
    assert "assay golden gather" in (missing.value.hint or "")
    (tmp_path / "m.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(FormatError, match="not text"):
        load_manifest(str(tmp_path / "m.json"), "demo")


def test_a_checkpoint_is_found_in_two_folders_and_its_hash_sees_every_change(tmp_path: Path) -> None:
    manifest = str(tmp_path / "m.json")
    assert find_checkpoint(manifest, "a.bin") is None
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "ckpts" / "a.bin").write_text("")
    assert find_checkpoint(manifest, "a.bin") == str(tmp_path / "ckpts" / "a.bin")
    (tmp_path / "a.bin").write_text("")
    assert find_checkpoint(manifest, "a.bin") == str(tmp_path / "a.bin")
    assert find_checkpoint(manifest, str(tmp_path / "a.bin")) == str(tmp_path / "a.bin")
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "a").write_text("one")
    seen = {hash_checkpoint(str(folder)), hash_checkpoint(str(folder / "a"))}
    (folder / "a").write_text("two")
    seen |= {hash_checkpoint(str(folder)), hash_checkpoint(str(folder / "a"))}
    (folder / "a").rename(folder / "b")
    seen |= {hash_checkpoint(str(folder))}
    assert len(seen) == 5
    assert None not in seen
    assert hash_checkpoint(str(tmp_path / "none")) is None


def test_damaged_parts_are_a_damaged_manifest() -> None:
    content = json.loads((SAMPLES / "v2_replicas.json").read_text())
    content.pop("counts", None)
    parse_manifest(json.dumps(content), "m.json", "t")
    variants: list[Any] = [[], {"10": []}, {"10": {"halves": 3}}, {"10": {"halves": {"loss": {"": 5}}}}]
    damages = [({"variants": each}, "damaged") for each in variants]
    damages.append(({"history": ["x"]}, "an entry of history is not an object"))
    damages.append(({"history": [{"effects": {"loss": "x"}}]}, "history: loss is 'x'"))
    damages.append(({"history": [{"effects": 7}]}, "effects is not an object"))
    damages.append(({"history": [{"to": None}]}, "history: to is None"))
    damages.append(({"history": [{"first_levels": {"loss": {"0": "x"}}}]}, "history: 0 is 'x'"))
    origins: list[Any] = [
        {"check_runs": None},
        {"seeds": [1]},
        {"packages": 1},
        {"rules": [1]},
        {"hardware": "x"},
        {"hardware": {"gpus": 1}},
    ]
    damages += [({"provenance": origin}, r"damaged: provenance(.hardware)?: \w+ is ") for origin in origins]
    for count in (1, 3):  # curves of unequal lengths
        replicas = copy.deepcopy(content["replicas"])
        for run in (run for labels in replicas["10"].values() for runs in labels.values() for run in runs):
            run["steps"] = list(range(11, 11 + count))
        damages.append(({"replicas": replicas}, r"damaged: ValueError: a curve has \d steps and \d values"))
    for damage, words in damages:
        with pytest.raises(FormatError, match=words):
            parse_manifest(json.dumps({**content, **damage}), "m.json", "t")


def _lose(content: dict[str, Any], what: str) -> None:
    first = next(iter(content["ckpt_logs"]))
    results = content["ckpt_logs"][first]["results"]
    if what == "segment":
        del content["ckpt_logs"][first]
    elif what in ("replicas", "variants"):
        content[what] = {}
    elif what == "one replica":
        for runs in (runs for labels in content["replicas"][first].values() for runs in labels.values()):
            runs.pop()
    elif what == "step":
        del results[next(iter(results))]
    else:
        for metrics in results.values():
            metrics.popitem()


def _make_whole() -> dict[str, Any]:
    golden = make_golden()
    segments = []
    for each in golden.segments:
        first = {metric: {label: runs[0] for label, runs in found.items()} for metric, found in each.tracks.items()}
        segments.append(replace(each, variants={"threads": first}))
    content: dict[str, Any] = json.loads(render_manifest(replace(golden, segments=tuple(segments))))
    return content


@pytest.mark.parametrize("what", ["segment", "replicas", "one replica", "step", "metric", "variants"])
def test_a_manifest_that_holds_less_than_it_states_is_damaged(what: str) -> None:
    content = _make_whole()
    parse_manifest(json.dumps(content), "m.json", "demo")
    _lose(content, what)
    with pytest.raises(FormatError, match=r"this golden recording is damaged: it (states|lacks)") as caught:
        parse_manifest(json.dumps(content), "m.json", "demo")
    assert caught.value.exit_code is ExitCode.INTERNAL


@pytest.mark.parametrize("what", ["segment", "replicas"])
def test_a_manifest_of_an_earlier_version_betrays_what_was_deleted(what: str) -> None:
    content = _make_whole()
    del content["counts"], content["variants"]
    content["noise"] = {"loss": 0.001}
    parse_manifest(json.dumps(content), "m.json", "demo")
    _lose(content, what)
    with pytest.raises(FormatError, match=r"this golden recording is damaged: it (states|lacks)"):
        parse_manifest(json.dumps(content), "m.json", "demo")
    original = {"ckpt_logs": _make_whole()["ckpt_logs"]}  # a file without counts stays valid
    _lose(original, "segment")
    golden = parse_manifest(json.dumps(original), "m.json", "demo")
    assert (golden.version, golden.steps_beyond) == (1, None)
