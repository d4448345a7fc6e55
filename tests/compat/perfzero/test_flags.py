"""PerfZero's flags: what each asks for, and what is printed about a value that cannot be meant."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from assay.bench.values.execution import BenchExecution, BenchReport, BenchResult, ProfileWindow
from assay.compat.perfzero import values
from assay.compat.perfzero.command import FLAGS
from assay.compat.perfzero.flags import build_flags, parse_flags, parse_methods
from assay.compat.perfzero.values import Checksum, Download, GitRepo, PerfzeroJob, PerfzeroReport
from assay.errors import ExitCode, UsageError

SHA = "0123456789abcdef" * 4


def parse(environ: dict[str, str] | None = None, **flags: Any) -> PerfzeroJob:
    return parse_flags({"benchmark_methods": ["m.C.f"], **flags}, "/here", environ or {})


# ---------------------------------------------------------------- what cannot be meant


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("benchmark_methods", ["", " , "], "does not name a benchmark"),
        ("benchmark_methods", ["method"], "its module is missing"),
        ("benchmark_methods", ["m.C.filter:("], "broken regular expression"),
        ("benchmark_num_trials", "0", "is not a count"),
        ("benchmark_num_trials", "²", "is not a count"),
        ("git_repos", [";main"], "is not a repository"),
        ("git_repos", ["https://h/x;main;abc;more"], "is not a repository"),
        ("git_repos", ["--upload-pack=touch x"], "is not a repository"),
        ("git_repos", ["https://h/x;-rf"], "is not a branch, tag or hash"),
        ("git_repos", ["https://h/x;a..b"], "is not a branch, tag or hash"),
        ("git_repos", ["https://h/a/x,https://h/b/x"], "would both be checked out into 'x'"),
        ("git_repos", ["https://h/a/x", "https://h/a/x;dev"], "names https://h/a/x twice"),
        ("data_downloads", ["data.tar.gz"], "is not a download"),
        ("data_downloads", ["http://[::1/x"], "is not a download"),
        ("data_downloads", ["https://h/a;b;sha256:xyz"], "is not a checksum"),
        ("data_downloads", ["https://h/a;b;c;d"], "is not a download"),
        ("data_downloads", ["https://h"], "has no name to be kept under"),
        ("data_downloads", ["http://h/ds/;folder"], "http://h/ds/ is not a file"),
        ("data_downloads", ["https://h/x;../../escape.json"], "would be kept outside /data"),
        ("data_downloads", ["https://h/x;../database/x"], "would be kept outside /data"),
        ("data_downloads", ["https://h/x;."], "would be kept outside /data"),
        ("gcs_downloads", ["bucket/data"], "is not a download"),
        ("execution_id", "a/b", "cannot be the name of a folder"),
        ("execution_id", "x" * 200, "cannot be the name of a folder"),
        ("benchmark_class_type", "pytorch", "is not known"),
        ("output_gcs_url", "bucket/folder", "is not a URL"),
        ("output_gcs_url", "gs://[bucket", "is not a URL"),
        ("bigquery_project_name", "p", "--bigquery_dataset_table_name is not"),
        ("bigquery_dataset_table_name", "d.t", "--bigquery_project_name is not"),
        ("result_upload_methods", "upload", "is not a function"),
        ("result_upload_methods", "mod.one,mod.", "is not a function"),
        ("profiler_enabled_time", "5:2", "ends before it begins"),
        ("tpu_parameters", '{"zone": "z"}', "has no `name`"),
        ("perfzero_constructor_args", "size=3", "not JSON"),
        ("perfzero_constructor_args", "3", "must be a JSON object"),
        ("timeout", "soon", "is not a duration"),
        ("timeout", "0", "is not a duration"),
        ("python", "/no/such/python", "there is no such program"),
        ("profiler", "framwork", "is not known"),
        ("foreign_limit", "2", "is not a fraction"),
        ("foreign_limit", "some", "is not a fraction"),
        ("slots", "gpu0", "bad slot 'gpu0'"),
    ],
)
def test_a_bad_value_is_named_with_its_flag(flag: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(**{flag: value})
    assert f"--{flag}" in caught.value.message
    assert words in caught.value.message


def test_a_message_has_the_form_that_is_wanted_and_no_token() -> None:
    with pytest.raises(UsageError, match="--bigquery_dataset_table_name: 'table' is not a table"):
        parse(bigquery_project_name="p", bigquery_dataset_table_name="table")
    with pytest.raises(UsageError, match="would both be checked out") as caught:
        parse(git_repos=["https://secret@h/a/x,https://secret@h/b/x"])
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match=r"is not a download\n.*a file of this machine is file:///PATH, /PATH"):
        parse(data_downloads=["web/ds.tar.gz"])


def test_a_checksum_is_known_by_its_length() -> None:
    for algorithm in ("md5", "sha1", "sha256", "sha512"):
        digits = hashlib.new(algorithm, b"x").hexdigest()
        given = [values.parse_checksum(text) for text in (digits.upper(), f"{algorithm}:{digits}")]
        assert given == [Checksum(algorithm, digits)] * 2
    for text in ("abc", "sha256:abc", "md5:" + "0" * 40, "z" * 64, ":" + "0" * 32):
        with pytest.raises(UsageError, match="is not a checksum"):
            values.parse_checksum(text)


# ---------------------------------------------------------------- what is meant


def test_the_defaults() -> None:
    job = parse({"PERFZERO_B": "2", "PERFZERO_A": "1", "PERF": "no", "XPERFZERO_C": "no"})
    assert job.env_vars == {"PERFZERO_A": "1", "PERFZERO_B": "2"}, "only variables with the prefix"
    bench = job.bench
    assert [method.name for method in bench.methods] == ["m.C.f"]
    assert (bench.trials, bench.data_dir, job.workspace) == (1, "/data", "/here/workspace")
    assert (job.repos, job.downloads, bench.python_path, bench.profile, job.upload_methods) == ((), (), (), (), ())
    assert (job.key_url, job.output_url, bench.scratch_url, job.bigquery_project, job.tpu) == (None,) * 5
    assert (bench.class_type, bench.execution_id, bench.timeout_s, bench.python, bench.slots) == (None,) * 5
    assert (bench.constructor_args, bench.foreign_limit, bench.profiler) == ({}, 0.1, "auto")


def test_an_empty_value_is_no_value() -> None:
    """Wrappers pass every flag, most of them empty."""
    names = [name for group in FLAGS.values() for name, (metavar, _) in group.items() if metavar]
    empty, plain = parse(**{**dict.fromkeys(names, ""), "benchmark_methods": ["m.C.f"]}), parse()
    assert replace(empty, flags=plain.flags) == plain


def test_every_flag() -> None:
    job = parse(
        benchmark_methods=["m.C.f,m.C:g", "m.D.filter:bench_.*"],
        benchmark_num_trials="3",
        workspace="other",
        root_data_dir="data",
        git_repos=["https://h/a.git;dev;abc123,https://h/b.git", "https://h/c.git;;c"],
        use_cached_site_packages=True,
        python_path="a, a/research,/elsewhere",
        gcs_downloads=["gs://bucket/old"],
        data_downloads=[f"https://h/x.tar.gz;x;sha256:{SHA}", "file:///d/y"],
        ml_framework_build_label="nightly",
        execution_label="test",
        platform_name="gcp",
        system_name="n1",
        execution_id="one",
        output_gcs_url="gs://bucket/out/",
        scratch_gcs_url="gs://bucket/scratch",
        bigquery_project_name="p",
        bigquery_dataset_table_name="d.t",
        gcloud_key_file_url="file:///key.json",
        profiler_enabled_time="2:5,8:",
        result_upload_methods="up.one, up.two",
        tpu_parameters='{"name": "tpu", "version": "2.4"}',
        perfzero_constructor_args='{"size": 3}',
        benchmark_class_type="tf_benchmark",
        timeout="1h30m",
        python=sys.executable,
        root="runs2",
        slots="0,1",
        profiler="py-spy",
        refuse_contaminated=True,
        foreign_limit="0.5",
    )
    bench = job.bench
    assert [method.name for method in bench.methods] == ["m.C.f", "m.C.g", "m.D.filter:bench_.*"]
    assert (bench.trials, job.workspace, bench.data_dir) == (3, "/here/other", "/here/data")
    assert (bench.folder, bench.output_root, bench.profile_in_output) == ("/here", "/here/other/output", True)
    repos = (GitRepo("https://h/a.git", "dev", "abc123"), GitRepo("https://h/b.git"))
    assert job.repos == (*repos, GitRepo("https://h/c.git", None, "c"))
    assert job.use_cached
    site = "/here/other/site-packages"
    assert bench.python_path == (f"{site}/a", f"{site}/a/research", "/elsewhere")
    assert job.downloads == (
        Download("gs://bucket/old", "/here/data/old"),
        Download("https://h/x.tar.gz", "/here/data/x", Checksum("sha256", SHA)),
        Download("file:///d/y", "/here/data/y"),
    )
    assert (job.build_label, bench.label, job.platform_name, job.system_name) == ("nightly", "test", "gcp", "n1")
    assert (bench.execution_id, job.output_url, bench.scratch_url) == ("one", "gs://bucket/out", "gs://bucket/scratch")
    assert (job.bigquery_project, job.bigquery_table, job.key_url) == ("p", "d.t", "file:///key.json")
    assert bench.profile == (ProfileWindow(2.0, 5.0), ProfileWindow(8.0))
    assert job.upload_methods == ("up.one", "up.two")
    assert (job.tpu, bench.tpu) == ({"name": "tpu", "version": "2.4"}, "tpu")
    assert (bench.constructor_args, bench.class_type) == ({"size": 3}, "tf_benchmark")
    assert (bench.timeout_s, bench.python, bench.root, bench.slots) == (5400.0, sys.executable, "runs2", ("0", "1"))
    assert (bench.profiler, bench.refuse_contaminated, bench.foreign_limit) == ("py-spy", True, 0.5)


def test_a_relative_interpreter_is_meant_from_here_and_a_plain_name_from_path(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    os.symlink(sys.executable, tmp_path / "bin" / "python")
    assert parse(python="bin/python").bench.python == str(tmp_path / "bin" / "python")
    assert parse(python="sh").bench.python == "sh"


def test_commas_inside_brackets_belong_to_the_expression() -> None:
    texts = ["m.C.filter:a{1,2},m.C.f", "m.C.filter:[,x](b,c)"]
    assert [method.text for method in parse_methods(texts)] == ["m.C.filter:a{1,2}", "m.C.f", "m.C.filter:[,x](b,c)"]


def test_a_download_is_an_address_or_a_path_of_this_machine() -> None:
    """Stars and slashes behind an address are no part of its name."""
    texts = ["gs://b/cifar/*,gs://b/imagenet/", "https://h/x.gz?sig=1", "/d/a b#1%/x.tar.gz"]
    texts += ["./y/*;z/../deep/y", "~/set", "/d/a b#1%"]
    assert parse(data_downloads=texts).downloads == (
        Download("gs://b/cifar", "/data/cifar"),
        Download("gs://b/imagenet", "/data/imagenet"),
        Download("https://h/x.gz?sig=1", "/data/x.gz"),
        Download("file:///d/a%20b%231%25/x.tar.gz", "/data/x.tar.gz"),
        Download(f"file://{quote(os.getcwd())}/y", "/data/deep/y"),
        Download(f"file://{quote(os.path.expanduser('~'))}/set", "/data/set"),
        Download("file:///d/a%20b%231%25", "/data/a b#1%"),
    )


def test_flags_as_the_summary_keeps_them() -> None:
    flags = {
        "benchmark_methods": ["a.b", "c.d"],
        "git_repos": ["https://token@h/x", "https://h/y"],
        "benchmark_num_trials": "2",
        "gcloud_key_file_url": "https://h/key?signature=1",
        "output_gcs_url": "",
        "system_name": None,
        "debug": False,
    }
    assert build_flags(flags) == {
        "benchmark_methods": ["a.b", "c.d"],
        "git_repos": "https://***@h/x,https://h/y",
        "benchmark_num_trials": 2,
        "gcloud_key_file_url": "https://h/key?***",
        "output_gcs_url": "",
        "debug": False,
    }


# ---------------------------------------------------------------- values


def test_the_folder_of_a_repository() -> None:
    names = {f"https://example.org/tensorflow/models{end}": "models" for end in (".git", "/")}
    names |= {"git@h.org:models.git": "models", "/where/models.v2.git": "models.v2", "/some/.hidden": ".hidden"}
    assert {url: GitRepo(url).name for url in names} == names


def test_what_is_secret_in_an_address_is_hidden() -> None:
    texts = {
        "https://user:word@host/x": "https://***@host/x",
        "--git_repos=https://token@host/x;main": "--git_repos=https://***@host/x;main",
        "a https://one@h/x,https://two@h/y": "a https://***@h/x,https://***@h/y",
        "git@host:team/x.git": "git@host:team/x.git",
        "https://host/user@home": "https://host/user@home",
    }
    assert {text: values.hide_secrets(text) for text in texts} == texts


def report(succeeded: bool, problems: tuple[str, ...] = (), interrupted: str | None = None) -> PerfzeroReport:
    execution = BenchExecution("e", "m.f", 1, BenchResult("m.f", succeeded), "", "")
    return PerfzeroReport(BenchReport((execution,), interrupted), (execution,), problems=problems)


def test_exit_codes() -> None:
    assert report(True).exit_code is ExitCode.OK
    assert report(False).exit_code is ExitCode.FAILED
    assert report(True, ("the upload failed",)).exit_code is ExitCode.INTERNAL
    assert report(False, ("the upload failed",), "SIGINT").exit_code is ExitCode.INTERRUPTED
    assert PerfzeroReport(BenchReport(()), ()).exit_code is ExitCode.FAILED, "nothing that ran is no success"
