"""`assay perfzero` on the command line: every flag, the four parts, what is printed where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.compat.perfzero.test_flow import make_lab
from tests.stand_ins import build_call

from assay.compat.perfzero.command import build_parser
from assay.compat.perfzero.flags import parse_flags

# Reference 1.1: every flag of PerfZero's benchmark.py.
ORIGINAL = {
    "use_cached_site_packages": False,
    "gcs_downloads": None,
    "git_repos": None,
    "benchmark_num_trials": "1",
    "benchmark_methods": None,
    "ml_framework_build_label": None,
    "execution_label": None,
    "platform_name": None,
    "system_name": None,
    "output_gcs_url": None,
    "scratch_gcs_url": None,
    "bigquery_project_name": None,
    "bigquery_dataset_table_name": None,
    "python_path": None,
    "workspace": "workspace",
    "root_data_dir": "/data",
    "data_downloads": None,
    "gcloud_key_file_url": None,
    "debug": False,
    "profiler_enabled_time": None,
    "execution_id": None,
    "result_upload_methods": None,
    "tpu_parameters": None,
    "perfzero_constructor_args": "",
    "benchmark_class_type": None,
}
OLD_LINE = '{"time": 1550040323.9, "cpu_percent": 771.1}\n'


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_lab(tmp_path, monkeypatch).folder


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Cli:
    return build_call(capfd, "perfzero")


def test_every_flag_of_the_original_with_its_default() -> None:
    parsed = vars(build_parser().parse_args([]))
    assert {name: parsed[name] for name in ORIGINAL} == ORIGINAL


def test_every_flag_is_in_the_help_and_read_by_some_code(call: Cli) -> None:
    out = call("--help", code=0).out
    assert out.startswith("usage: assay perfzero [-h]")
    assert [name for name in ORIGINAL if f"--{name}" not in out] == []
    source = Path(parse_flags.__code__.co_filename).read_text()
    actions = [action for action in build_parser()._actions if action.dest not in ("help", "quiet", "debug")]
    assert all(action.help for action in actions)
    names = [action.dest for action in actions]
    assert [name for name in names if f'"{name}"' not in source and f"_{name}" not in source] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--benchmark_methods does not name a benchmark"),
        (("--benchmark_methods=m.C.f", "stray"), "unrecognized arguments: stray"),
        (("plt", "x"), "did you mean 'plot'"),
        (("plot",), "the following arguments are required: file"),
        (("plot", "absent.log"), "no file named 'absent.log'"),
        (("plot", "mod.py", "-o", "out.png"), "'out.png' is not a PDF"),
        (("--benchmark_methods=m.C.f", "--profiler_enabled_time=1:1"), "is empty: it ends when it begins"),
    ],
)
def test_usage_errors(lab: Path, call: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in call(*arguments, code=2).err
    assert not (lab / "workspace").exists()
    assert not (lab / "runs").exists()


def test_summaries_on_stdout_the_method_s_words_on_stderr(lab: Path, call: Cli) -> None:
    (lab / "talk.py").write_text(
        "from assay.bench import report_benchmark\n"
        "def f():\n    print('hello from the method')\n    report_benchmark(wall_time=0.5)\n"
    )
    methods = "--benchmark_methods=talk.f,mod.B.nan"
    code, out, err = call("benchmark", methods, "--foreign_limit=1", "--debug", "--execution_label=nightly")
    assert code == 1
    assert "hello from the method" in err
    assert "hello from the method" not in out
    assert "appended to sys.path: nothing" in err
    assert [line for line in err.splitlines() if line.startswith(("done", "failed"))] == [
        "done talk.f trial 1 nightly",
        "failed mod.B.nan trial 1 nightly: wall_time is nan",
    ]
    title, _, rest = out.partition("\n")
    assert title == "Benchmark execution for talk.f completed with summary:"
    summary, end = json.JSONDecoder().raw_decode(rest)
    assert summary["benchmark_result"]["wall_time"] == 0.5
    assert "quiet" not in summary["benchmark_info"]["flags"]
    assert "Benchmark success results:" in rest[end:]


def test_quiet_says_only_what_is_wrong(lab: Path, call: Cli) -> None:
    methods = "--benchmark_methods=mod.B.writes,mod.B.raises"
    _, out, err = call(methods, "--foreign_limit=1", "--quiet", code=1)
    (raised,) = err.splitlines()
    assert raised.startswith("failed mod.B.raises trial 1: ValueError: no luck")
    assert '"has_exception": true' in out


def test_an_old_file_is_plotted_into_the_working_directory(lab: Path, call: Cli) -> None:
    (lab / "old.log").write_text(OLD_LINE * 2)
    assert call("plot", "old.log") == (0, "process_info.pdf: 1 page from 2 readings\n", "")
    assert call("plot", "old.log", "-o", "other.pdf").code == 0
    assert (lab / "other.pdf").read_bytes() == (lab / "process_info.pdf").read_bytes()
