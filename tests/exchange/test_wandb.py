"""`import assay.wandb as wandb`: scripts written for Weights & Biases, inside and outside of a run."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finished_study import Bench
from tests.fork_server import call_python
from tests.stand_ins import put_programs

import assay
from assay import script, wandb
from assay.exchange import script_run
from assay.record.tags import load_marks

TRAIN = """\
import argparse
import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
wandb.login()
with wandb.init(project="line", config=args, tags=["base line"], notes="first", mode="online") as run:
    wandb.config.depth = 3
    wandb.watch(None)
    for step in range(3):
        wandb.log({"train": {"loss": wandb.config.lr / (step + 1)}, "pictures": wandb.Image([[0]]), "word": "x"})
    run.summary["top"] = 0.9
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file(__file__)
    run.log_artifact(artifact)
wandb.finish()
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("ASSAY_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "_adhoc_dir", None)
    monkeypatch.setattr(script_run, "_said", set())
    monkeypatch.chdir(tmp_path)
    script.close_stream()
    yield
    wandb.finish()
    script.close_stream()


def read_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.glob("metrics/*.jsonl")) for line in path.read_text().splitlines()]
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def find_dir(run: wandb.Run) -> Path:
    return Path(run.url.removeprefix("file://"))


# ---------------------------------------------------------------- whole scripts


def run_below(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay.wandb", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_runs_unchanged_inside_and_outside_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path).enter(monkeypatch)
    bench.write("train.py", TRAIN)
    done = run_below(bench.folder, "train.py", "--lr", "0.5")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["metrics", "word:"]
    inside = f"study: in\ncommand: {sys.executable} -m assay.wandb train.py --lr {{lr}}\nparams: {{lr: [0.1, 0.2]}}\n"
    assert bench.run(inside + "resources: {gpus: 0}\n").returncode == 0
    for run in (*assay.runs("line"), *assay.runs("in")):
        assert run.metrics == {"train/loss": pytest.approx(run.params["lr"] / 3), "top": 0.9}
        assert load_marks(f"{run.dir}/tags.json")[:1] == (("base-line",),)
        assert json.loads(Path(run.dir, "script-config.json").read_text()) == {"lr": run.params["lr"], "depth": 3}
        pictures = sorted(path.name for path in Path(run.dir, "files/media/pictures").iterdir())
        assert pictures == ["0.png", "1.png", "2.png"]
        assert Path(run.dir, "files/artifacts/model/v0/train.py").read_text() == TRAIN
    assert [run.params for run in assay.runs("line")] == [{"lr": 0.5, "depth": 3}]
    assert [run.params for run in assay.runs("in")] == [{"lr": 0.1}, {"lr": 0.2}]
    assert "top" in bench.read("sum", "in").stdout
    shown = bench.read("show", "in/lr=0.1").stdout
    assert "files/media/pictures/" in shown
    assert "files/artifacts/model/" in shown


LAUNCHED = """\
import multiprocessing, os, subprocess, sys
import wandb, wandb.plot, wandb.util as util
from wandb.errors import CommError, Error
from wandb.plot import line

def work():
    import wandb
    print("worker", wandb.__version__, flush=True)

if __name__ == "__main__":
    assert issubclass(CommError, Error) and wandb.errors.Error is Error and len(util.generate_id()) == 8
    print("main", wandb.__version__, *sys.argv[1:], flush=True)
    subprocess.run([sys.executable, "-c", "import wandb.util; print('child', wandb.__version__)"], check=True)
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    sys.exit(3)
"""


@pytest.mark.parametrize("start", [["-m", "package.job"], ["launch"]], ids=" ".join)
def test_every_process_below_finds_the_module(
    tmp_path: Path, start: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wandb that is installed is not found; what PYTHONPATH was before stays behind our folder."""
    for name in ("job.py", "package/job.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LAUNCHED)
    path = put_programs(tmp_path, launch=f'exec {sys.executable} job.py "$@"')
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "wandb.py").write_text("__version__ = 'the real one'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    monkeypatch.setenv("PATH", path)
    done = run_below(tmp_path, *start, "--lr", "1")
    assert done.stdout.splitlines() == ["main 0+assay --lr 1", "child 0+assay", "worker 0+assay"], done.stderr
    assert done.returncode == 3


@pytest.mark.services("frameworks")
@pytest.mark.parametrize(
    "start",
    [
        ["torchrun", "--standalone", "--nproc-per-node", "2", "job.py"],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "job"],
        ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "job.py"],
    ],
    ids=["torchrun", "torch.distributed.run", "accelerate"],
)
def test_launchers_hand_it_on(tmp_path: Path, start: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank writes its own series into the one run that the study started."""
    (tmp_path / "job.py").write_text("import wandb\nwandb.init(project='p')\nwandb.log({'x': 1})\nwandb.finish()\n")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path / "run"))
    done = run_below(tmp_path, *start)
    assert done.returncode == 0, done.stderr
    ranks = ["a1-r0", "a1-r1"] if "2" in start else ["a1-r0"]
    assert sorted(path.name[:5] for path in (tmp_path / "run" / "metrics").iterdir()) == ranks


def test_nothing_to_run(tmp_path: Path) -> None:
    usage, missing = "usage: ", "there is no script 'no.py'"
    for arguments, code, said in (([], 2, usage), (["-m"], 2, usage), (["--help"], 0, usage), (["no.py"], 2, missing)):
        done = call_python(["-m", "assay.wandb", *arguments], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- log


def test_steps_are_counted_as_wandb_counts_them() -> None:
    run = wandb.init(project="p", name="a/b")
    wandb.log({"x": 1})
    wandb.log({"x": 9}, commit=False)
    wandb.log({"x": 2}, commit=False)
    wandb.log({"y": 3})
    wandb.log({"x": 4}, step=10)
    run.log({"x": 5})
    run.log({"x": 6}, step=np.int64(20), commit=True)
    run.log({"x": 7})
    assert find_dir(run) == Path("runs/p/a-b").absolute()
    lines = [{"step": 0, "x": 1}, {"step": 1, "x": 2, "y": 3}]
    lines += [{"step": step, "x": x} for step, x in ((10, 4), (10, 5), (20, 6), (21, 7))]
    assert read_lines(find_dir(run)) == lines
    run.log({"x": 8}, step=30, commit=False)
    run.log({"x": 9}, step=31, commit=False)
    run.finish()
    assert read_lines(find_dir(run)) == [*lines, {"step": 30, "x": 8}, {"step": 31, "x": 9}]


def test_a_step_behind_the_last_one_and_names_that_a_line_has_already(capfd: pytest.CaptureFixture[str]) -> None:
    run = wandb.init(project="p", name="r")
    wandb.log({"loss": 0.5}, step=5)
    wandb.log({"loss": 9.0}, step=1)
    wandb.log({"loss": 8.0}, step=2)
    wandb.log({"epoch": 2, "loss": 0.25}, step=6)
    assert run.summary["loss"] == 0.25
    assert capfd.readouterr().err.count("step=1 is behind step 5: this and the like are left out") == 1
    wandb.log({"step": 30, "loss": 0.125, "time": 3})
    wandb.log({"epoch": 3})
    wandb.finish()
    assert read_lines(find_dir(run)) == [
        {"step": 5, "loss": 0.5},
        {"step": 6, "epoch": 2, "loss": 0.25},
        {"step": 30, "loss": 0.125, "wandb/time": 3},
    ]


def test_a_metric_may_count_the_steps_of_others() -> None:
    run = wandb.init()
    wandb.define_metric("round")
    wandb.define_metric("val/*", step_metric="round", summary="min")
    wandb.define_metric("acc", summary="best", goal="maximize")
    wandb.define_metric("lr", summary="min, max,mean")
    wandb.log({"round": 7, "val/loss": 0.5, "acc": 0.2, "lr": 4.0})
    wandb.log({"val/loss": 0.75, "acc": 0.1, "lr": 3.0})
    assert read_lines(find_dir(run)) == [
        {"step": 0, "round": 7, "acc": 0.2, "lr": 4.0},
        {"step": 7, "val/loss": 0.5},
        {"step": 7, "val/loss": 0.75},
        {"step": 1, "acc": 0.1, "lr": 3.0},
    ]
    folded = {"min": 3.0, "max": 4.0, "mean": 3.5}
    assert dict(run.summary) == {"round": 7, "val/loss": 0.5, "acc": 0.2, "lr": folded}


def test_what_is_not_a_number_is_left_out_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = wandb.init()
    for _ in range(2):
        wandb.log({"a": np.float32(0.5), "b": {"c": {"d": True}}, "e": "text", "f": [1, 2], "g": np.arange(3)})
        wandb.log({"h": wandb.Graph("x"), "i": object()})
    assert read_lines(find_dir(run)) == [{"step": 0, "a": 0.5, "b/c/d": 1}, {"step": 2, "a": 0.5, "b/c/d": 1}]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in said[1:]] == ["e", "f", "g", "h", "i"]
    with pytest.raises(TypeError, match="dictionary"):
        wandb.log(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- files


def read_media(run: wandb.Run) -> dict[str, dict[str, Any]]:
    """By name: the lines of the list, whose files are there."""
    lines = [json.loads(line) for line in (find_dir(run) / "files" / "media.jsonl").read_text().splitlines()]
    assert all((find_dir(run) / "files" / line["file"]).is_file() for line in lines)
    return {line["name"]: line for line in lines}


def read_picture(path: Path) -> tuple[tuple[int, int], list[Any]]:
    """Its size and pixels, by PIL."""
    from PIL import Image

    with Image.open(path) as picture:
        channels = len(picture.getbands())
        data = picture.tobytes()
        pixels = [data[start : start + channels] for start in range(0, len(data), channels)]
        return picture.size, [tuple(each) if channels > 1 else each[0] for each in pixels]


def read_json(run: wandb.Run, name: str) -> Any:
    return json.loads((find_dir(run) / "files" / read_media(run)[name]["file"]).read_text())


def test_a_picture_is_what_the_array_holds() -> None:
    run = wandb.init()
    for step, (data, size, pixels) in enumerate(
        (
            ([[0, 1], [0.5, 0.25]], (2, 2), [0, 255, 127, 63]),
            (np.array([[[255, 0, 7]]], dtype="uint8"), (1, 1), [(255, 0, 7)]),
            (np.array([[-1.0, 1.0, 0.0]]), (3, 1), [0, 255, 127]),
            (np.array([[True, False]]), (2, 1), [255, 0]),
            (np.array([[300, 20]]), (2, 1), [255, 20]),
            (np.zeros((3, 5, 4)), (5, 3), [(0, 0, 0, 0)] * 15),
        )
    ):
        wandb.log({"a/b": wandb.Image(data, caption="first")}, step=step)
        line = read_media(run)["a/b"]
        assert {**line, "time": 0} == {
            "step": step, "time": 0, "name": "a/b", "kind": "image", "file": f"media/a/b/{step}.png", "caption": "first",
        }  # fmt: skip
        assert read_picture(find_dir(run) / "files" / line["file"]) == (size, pixels)


def test_every_name_has_files_of_its_own() -> None:
    run = wandb.init(name="é" * 300 + "\u202e")
    names = ["a/b", "a-b", "a\\b", "é" * 120, "é" * 121, "..", "", "\u202ea", "\u202da"]
    wandb.log({name: wandb.Image([[0]]) for name in names})
    assert len({line["file"] for line in read_media(run).values()}) == len(names)


def test_pictures_of_other_kinds(tmp_path: Path) -> None:
    """PIL's, a tensor with channels first, a figure, a file; in a list; and one whose array is used again."""
    from PIL import Image

    class Tensor:
        """As torch's, which takes seconds to import."""

        ndim = 3

        def detach(self) -> Tensor:
            return self

        cpu = detach

        def permute(self, *order: int) -> Tensor:
            assert order == (1, 2, 0)
            return self

        def numpy(self) -> Any:
            return np.full((2, 3, 1), 200, dtype="uint8")

    class Figure:
        def savefig(self, file: Any, format: str) -> None:  # noqa: A002 matplotlib's name
            Image.new("L", (4, 4)).save(file, format)

    Image.new("RGB", (5, 5)).save(tmp_path / "a.jpg")
    again = np.zeros((2, 2))
    run = wandb.init()
    pictures = [wandb.Image(Image.new("RGB", (7, 1))), wandb.Image(Tensor()), wandb.Image(str(tmp_path / "a.jpg"))]
    reused = wandb.Image(again)
    again += 1
    wandb.log({"all": pictures, "figure": Figure(), "reused": reused, "loss": 0.5})
    folder = find_dir(run) / "files" / "media"
    sizes = {path.name: read_picture(path)[0] for path in (folder / "all").iterdir()}
    assert sizes == {"0-0.png": (7, 1), "0-1.png": (3, 2), "0-2.jpg": (5, 5)}
    assert read_picture(folder / "figure" / "0.png")[0] == (4, 4)
    assert read_picture(folder / "reused" / "0.png")[1] == [0] * 4
    assert read_lines(find_dir(run)) == [{"step": 0, "loss": 0.5}]


def test_histograms_tables_charts_and_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = wandb.init()
    table = wandb.Table(columns=["x", "picture"], data=np.array([[1, 2]]))
    table.add_data(np.float32(0.5), wandb.Image([[1]]))
    table.add_column("more", ["a", None])
    assert table.get_column("x") == [1, 0.5]
    (tmp_path / "a.mp4").write_bytes(b"film")
    wandb.log(
        {
            "h": wandb.Histogram([0, 1, 1, float("nan")], num_bins=2),
            "given": wandb.Histogram(np_histogram=([3, 1], [0, 1, 2])),
            "t": table,
            "chart": wandb.plot.line(table, "x", y="more", title="A line"),
            "page": wandb.Html("<p>hi</p>"),
            "sound": wandb.Audio(np.array([0.0, 1.0, -2.0]), sample_rate=8000),
            "film": wandb.Video(str(tmp_path / "a.mp4")),
        }
    )
    assert read_json(run, "h") == {"bins": [0.0, 0.5, 1.0], "values": [1, 2]}
    assert read_json(run, "given") == {"bins": [0.0, 1.0, 2.0], "values": [3.0, 1.0]}
    rows = [[1, 2, "a"], [0.5, {"file": "media/t.cells/0-0.png"}, None]]
    assert read_json(run, "t") == {"columns": ["x", "picture", "more"], "data": rows}
    chart = read_json(run, "chart")
    assert (chart["chart"], chart["y"], chart["title"], chart["arguments"][1]) == ("line", "more", "A line", "x")
    assert chart["arguments"][0]["columns"] == ["x", "picture", "more"]
    kinds = {name: line["kind"] for name, line in read_media(run).items()}
    assert kinds["t.cells"] == "image"
    assert (kinds["page"], kinds["film"]) == ("html", "video")
    with wave.open(str(find_dir(run) / "files" / read_media(run)["sound"]["file"])) as sound:
        assert (sound.getframerate(), sound.readframes(3)) == (8000, struct.pack("<3h", 0, 32767, -32767))
    monkeypatch.delitem(sys.modules, "numpy")
    counted = wandb.Histogram([[1.0, 2.0], [2.0, float("inf")]], num_bins=2)
    assert json.loads(counted.content) == {"bins": [1.0, 1.5, 2.0], "values": [1.0, 2.0]}
    assert [sum(wandb.Histogram(numbers).histogram) for numbers in ([5], [])] == [1, 0]


def test_artifacts_have_versions(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "a.txt").write_text("a")
    (tmp_path / "model.pt").write_text("weights")
    run = wandb.init()
    for content in ("one", "two"):
        artifact = wandb.Artifact("set", type="dataset", metadata={"n": 2})
        artifact.add_dir("data", name="d")
        artifact.add_file("model.pt", name="../../escape/m.pt")
        artifact.add(wandb.Table(columns=["x"], data=[[1]]), "rows")
        artifact.add_reference("s3://bucket/x")
        with artifact.new_file("note.txt") as file:
            file.write(content)
        assert run.log_artifact(artifact, aliases=["best"]).wait().version == f"v{int(content == 'two')}"
    wandb.log_artifact("model.pt", name="weights", type="model")
    run.log_model("data", name="folder")
    folder = find_dir(run) / "files" / "artifacts"
    files = sorted(str(path.relative_to(folder / "set")) for path in (folder / "set").rglob("*") if path.is_file())
    inside = ["d/inner/a.txt", "escape/m.pt", "note.txt", "rows.table.json"]
    assert files == ["v0.json", *(f"v0/{name}" for name in inside), "v1.json", *(f"v1/{name}" for name in inside)]
    assert [(folder / "set" / version / "note.txt").read_text() for version in ("v0", "v1")] == ["one", "two"]
    facts = json.loads((folder / "set" / "v1.json").read_text())
    assert (facts["type"], facts["metadata"], facts["aliases"]) == ("dataset", {"n": 2}, ["best"])
    assert facts["references"] == ["s3://bucket/x"]
    assert (folder / "weights" / "v0" / "model.pt").read_text() == "weights"
    assert (folder / "folder" / "v0" / "inner" / "a.txt").exists()
    (tmp_path / "model.pt").write_text("later")
    assert (folder / "weights" / "v0" / "model.pt").read_text() == "weights"


def test_what_cannot_be_kept_is_named_and_the_script_goes_on(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    class Hostile:
        shape = (2, 2)

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no " + name)

    run = wandb.init()
    artifact = wandb.Artifact("a")
    artifact.add_file("absent.pt")
    artifact.add_file(__file__)
    bad: dict[str, Any] = {
        "gone": wandb.Image("absent.png"),
        "flat": wandb.Image(np.zeros(3)),
        "hostile": wandb.Image(Hostile()),
        "film": wandb.Video(np.zeros((2, 2))),
        "odd": wandb.Table(columns=5),
        "loss": 0.5,
    }
    for _ in range(2):
        wandb.log(bad)
        run.log_artifact(artifact)
    said = capfd.readouterr().err
    for what in (
        "gone: FileNotFoundError",
        "flat: ValueError: an array of shape (3,) is not a picture",
        "hostile: RuntimeError",
        "film: TypeError: wandb.Video is kept of a file alone: give its path",
        "odd: TypeError",
        "artifact a cannot be kept: No such file or directory",
    ):
        assert said.count(what) == 1, said
    assert [line["loss"] for line in read_lines(find_dir(run))] == [0.5, 0.5]
    assert (find_dir(run) / "files/artifacts/a/v1" / Path(__file__).name).exists()


def test_a_full_disk_loses_the_picture_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files is the nearest to a full disk that every machine has."""
    run = wandb.init()
    picture = wandb.Image(np.random.default_rng(1).integers(0, 256, (300, 300)).astype("uint8"))
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        wandb.log({"big": picture, "loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "big cannot be kept: File too large" in capfd.readouterr().err
    assert [*(find_dir(run) / "files" / "media" / "big").iterdir()] == []
    assert read_lines(find_dir(run)) == [{"step": 0, "loss": 1.0}]


# ---------------------------------------------------------------- config and summary


def test_config_takes_what_scripts_give_it() -> None:
    run = wandb.init(config=argparse.Namespace(lr=0.1, layers=[1, 2], api_key="abcdef"))
    wandb.config.update({"depth": np.int64(3)})
    wandb.config["norm"] = "batch"
    wandb.config.act = None
    wandb.config.setdefaults({"lr": 9, "more": 1})
    assert (wandb.config.lr, wandb.config["depth"], wandb.config.get("absent", 7)) == (0.1, 3, 7)
    assert "norm" in run.config
    assert {**wandb.config} == run.config.as_dict()
    with pytest.raises(AttributeError, match="did you mean 'depth'"):
        _ = wandb.config.deph
    params = {"lr": 0.1, "layers": [1, 2], "depth": 3, "norm": "batch", "act": None, "more": 1, "api_key": "***"}
    (found,) = assay.runs("adhoc")
    assert found.params == params
    assert wandb.config.api_key == "abcdef"
    token = "hf_" + "aB3" * 12
    run.config.update({"hub": {"api_key": "hunter2"}, "note": f"by {token}", "hosts": ["https://u:pw123@h"]})
    run.summary["webhook"] = "https://hooks.example/T1"
    assert len([*find_dir(run).glob("*.json")]) == 3
    for path in (path for path in find_dir(run).rglob("*") if path.is_file()):
        for secret in ("abcdef", "hunter2", token, "pw123", "hooks.example"):
            assert secret not in path.read_text(), path.name


def test_the_parameters_of_the_study_fill_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.dumps({"spec": {"params": {"lr": 0.1, "seed": 3, "n": 2, "api_key": "***"}}})
    (tmp_path / "run.json").write_text(record)
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    run = wandb.init(config={"lr": 0.8, "n": 2, "api_key": "hunter2"})
    assert dict(run.config) == {"lr": 0.8, "seed": 3, "n": 2, "api_key": "hunter2"}
    said = capsys.readouterr().err
    assert "config.lr is 0.8; the parameter of the study is 0.1" in said
    assert "config.n " not in said
    assert "hunter2" not in said
    run.log({"loss": 0.5})
    second = wandb.init(config={"fold": 2}, reinit=True)  # goes on with the same run
    assert second.config["lr"] == 0.8
    assert json.loads((tmp_path / "script-config.json").read_text())["lr"] == 0.8
    assert json.loads((tmp_path / "wandb.json").read_text())["summary"] == {"loss": 0.5}
    assert (tmp_path / "run.json").read_text() == record


def test_a_summary_becomes_metrics_and_changes_no_curve() -> None:
    run = wandb.init()
    wandb.log({"acc": 0.5})
    wandb.summary["acc"] = 0.9
    run.summary.update({"top": np.float64(0.25), "word": "good"})
    run.summary.best = 1
    assert read_lines(find_dir(run)) == [{"step": 0, "acc": 0.5}, {"summary/acc": 0.9}, {"top": 0.25}, {"best": 1}]
    kept = json.loads((find_dir(run) / "wandb.json").read_text())["summary"]
    assert kept == {"acc": 0.9, "top": 0.25, "word": "good", "best": 1}


# ---------------------------------------------------------------- init and finish


def test_each_init_after_a_finish_is_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    first = wandb.init(project="p", name="same")
    assert wandb.init(project="other") is first
    assert wandb.run is first
    wandb.log({"x": 1})
    first.finish()
    assert wandb.run is None
    second = wandb.init(project="p", name="same")
    wandb.log({"x": 2})
    third = wandb.init(project="p", reinit=True)
    assert [find_dir(run).name for run in (first, second)] == ["same", "same-2"]
    assert wandb.run is third
    assert [run.metrics for run in assay.runs("p") if run.metrics] == [{"x": 1}, {"x": 2}]
    assert capsys.readouterr().err.count("metrics go to") == 3
    fourth = wandb.init(project="p", reinit="create_new")
    with pytest.raises(wandb.UsageError, match=f"the run {third.name} has finished"):  # it takes nothing of another
        third.log({"x": 3})
    fourth.log({"x": 4})
    assert [run.metrics for run in assay.runs("p") if run.metrics] == [{"x": 1}, {"x": 2}, {"x": 4}]


def test_the_summary_of_a_script_that_leaves_the_end_to_us(tmp_path: Path) -> None:
    text = "import assay.wandb as wandb; wandb.init(project='p', name='a'); wandb.log({'loss': 0.5})"
    (tmp_path / "train.py").write_text(text)
    assert call_python(["train.py"], cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "runs/p/a/wandb.json").read_text())["summary"] == {"loss": 0.5}


def test_what_init_takes_and_does_not_do_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = wandb.init(project="p", config="config.yaml", resume="allow", sync_tensorboard=True)
    run.log({"": 0.5})
    said = capsys.readouterr().err
    assert "'config.yaml' is not a mapping of names to values and is left out" in said
    assert "resume='allow': a run that has ended is not continued" in said
    assert "sync_tensorboard=True: event files are not read here" in said
    assert read_lines(find_dir(run)) == [{"step": 0, "unnamed": 0.5}]


def test_a_config_of_odd_texts_is_kept_and_one_that_holds_itself_does_not_stop_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "caf\udce9"])  # a name of a file that is not UTF-8
    run = wandb.init(project="p", config={"data": "caf\udce9", "half": "\ud800", "lr": 0.1})
    assert json.loads((find_dir(run) / "run.json").read_bytes().decode("utf-8", "replace"))["params"]["lr"] == 0.1
    run.config.update({"itself": (loop := [])})
    loop.append(loop)
    run.config.update({"lr": 0.2})
    assert "the configuration cannot be written" in capsys.readouterr().err


def test_a_disabled_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with wandb.init(project="p", config={"a": 1}) as run:
        run.log({"x": 1})
        run.summary["y"] = 2
        assert (run.config.a, run.summary["x"], run.disabled) == (1, 1, True)
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_refuses_does_not_stop_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "file"))
    run = wandb.init(project="p")
    run.log({"x": 1})
    run.config.a = 2
    assert "cannot be recorded" in capsys.readouterr().err


def test_only_the_first_rank_writes_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    run = wandb.init(config={"a": 1}, tags=["t"])
    run.log({"x": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics"]
    assert [path.name[:5] for path in (tmp_path / "metrics").iterdir()] == ["a1-r1"]


def test_what_there_is_not_says_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(wandb.UsageError, match=r"wandb\.init"):
        wandb.log({"a": 1})
    with pytest.raises(wandb.Error, match=r"wandb\.init"):
        _ = wandb.config
    with pytest.raises(AttributeError, match=r"assay\.runs"):
        _ = wandb.Api
    with pytest.raises(AttributeError, match="did you mean 'define_metric'"):
        _ = wandb.define_metrics
    run = wandb.init()
    with pytest.raises(AttributeError, match="logg"):
        _ = run.logg
    with pytest.raises(wandb.UsageError, match="data:v3"):
        run.use_artifact("data:v3")
    assert run.save("*.pt") == []
    assert Path(run.dir).parent == find_dir(run)
    assert len(wandb.util.generate_id()) == 8
    assert wandb.errors.CommError is wandb.CommError
    assert not hasattr(wandb, "__path__")
