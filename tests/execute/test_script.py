"""`job.sh` by hand: what bash makes of the text, without any executor."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.executor import Run, Runs, members, until

from assay.execute.script import JobText, is_plain_call, quote_text, render_job
from assay.values.run import Command, RunSpec


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def bash(run: Run, *, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", f"{run.dir}/job.sh"],
        env={**os.environ, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done
    return done


class TestByHand:
    def test_it_needs_nothing_from_outside(self, runs: Runs) -> None:
        run = runs.make("echo $ASSAY_ATTEMPT_NUMBER")
        bash(run)
        assert run.markers() == {"train.exit.0"}
        assert run.text("train.log") == "1\n"
        assert run.path("end.1").exists()

    def test_each_call_is_a_new_attempt_and_a_leased_one_is_left_to_its_owner(self, runs: Runs) -> None:
        run = runs.make("echo $ASSAY_ATTEMPT")
        bash(run)
        run.path("lease.2").touch()
        bash(run)
        bash(run)
        assert run.markers() == {"train.exit.0", "train.3.exit.0", "train.4.exit.0"}
        assert run.text("train.4.log") == f"{run.uid}.4\n"

    @pytest.mark.parametrize(
        ("folder", "call"),
        [
            ("study/run1", ["bash", "job.sh"]),
            ("study/run1", ["bash", "./job.sh"]),
            (".", ["study/run1/job.sh"]),
            (".", ["bash", "study/run1/job.sh"]),
        ],
    )
    def test_from_every_folder(self, runs: Runs, tmp_path: Path, folder: str, call: list[str]) -> None:
        (tmp_path / "trap" / "code").mkdir(parents=True)
        (tmp_path / "trap" / "study" / "run1").mkdir(parents=True)
        run = runs.make('echo "$ASSAY_RUN_DIR"; pwd')
        env = {**os.environ, "CDPATH": str(tmp_path / "trap")}
        subprocess.run(call, check=True, cwd=tmp_path / folder, env=env)
        assert run.text("train.log") == f"{run.dir}\n{run.dir}/code\n"


class TestToken:
    def test_it_says_who_began(self, runs: Runs) -> None:
        run = runs.make("cat /proc/$$/stat")
        bash(run, HOSTNAME="inherited")  # a farm may pass the environment of another host on
        host, pid, start, boot, began = run.text("token.1").split()
        assert host == os.uname().nodename
        stat = run.text("train.log")
        assert stat.split()[0] == pid
        assert stat.rpartition(")")[2].split()[19] == start
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert 0 <= time.time() - int(began) < 3600

    def test_a_taken_token_means_do_nothing(self, runs: Runs) -> None:
        run = runs.make("touch ran")
        run.path("token.1").touch()
        bash(run, ASSAY_ATTEMPT_NUMBER="1", ASSAY_ATTEMPT=f"{run.uid}.1")
        assert run.markers() == set()
        assert run.text("token.1") == ""
        assert not run.path("end.1").exists()

    @pytest.mark.parametrize("name", ["token.1", "train.exit.0"])
    def test_a_token_or_marker_that_cannot_be_made_ends_the_run(self, runs: Runs, name: str) -> None:
        run = runs.make("[ -e ../token.1 ]", "touch ran")
        run.path(name).symlink_to(run.path("missing/file"))
        bash(run, code=4, ASSAY_ATTEMPT_NUMBER="1", ASSAY_ATTEMPT=f"{run.uid}.1")
        assert not run.path("code/ran").exists()

    def test_of_many_that_begin_at_once_one_runs(self, runs: Runs) -> None:
        run = runs.make("echo x >> ran")
        env = {**os.environ, "ASSAY_ATTEMPT_NUMBER": "1", "ASSAY_ATTEMPT": f"{run.uid}.1"}
        started = [subprocess.Popen(["bash", f"{run.dir}/job.sh"], env=env) for _ in range(8)]
        assert [child.wait() for child in started] == [0] * 8
        assert run.text("code/ran") == "x\n"

    def test_end_of_file_at_the_gate_means_do_nothing(self, runs: Runs) -> None:
        run = runs.make("touch ran")
        read, write = os.pipe()
        os.close(write)
        env = {**os.environ, "ASSAY_GATE": str(read), "ASSAY_ATTEMPT_NUMBER": "1"}
        subprocess.run(["bash", f"{run.dir}/job.sh"], check=True, env=env, pass_fds=[read])
        os.close(read)
        assert run.markers() == set()
        assert not run.path("token.1").exists()


class TestCommands:
    """A command cannot change the shell of job.sh."""

    @pytest.mark.parametrize(
        ("text", "code", "log"),
        [
            ("cd / && pwd", 0, "/\n"),
            ("exit 3", 3, ""),
            ("set -e; false; echo not here", 1, ""),
            ("set -u; echo $nothing_of_the_kind", None, None),
            ("exec echo replaced", 0, "replaced\n"),
            ("echo a # a comment", 0, "a\n"),
            ("echo a; # a comment\necho b", 0, "a\nb\n"),
            ("VAR=1 bash -c 'echo $VAR'", 0, "1\n"),
            ("trap 'echo bye' EXIT; echo hi", 0, "hi\nbye\n"),
            ("false | true", 0, ""),
            ("set -o pipefail; false | true", 1, ""),
            ("echo '$HOME' \"it's\" `echo x` $(echo y) \\$z", 0, "$HOME it's x y $z\n"),
            ("cat <<'END'\n$verbatim '\nEND", 0, "$verbatim '\n"),
            ("for i in 1 2; do echo $i; done", 0, "1\n2\n"),
            ("cat", 0, ""),  # there is nothing to read, and no terminal
            ("no-such-program", 127, None),
            ("", 0, ""),
            ("kill -TERM $BASHPID", 143, ""),
            ("return 5", None, None),
            ("echo ${n-unset} ${s-unset} ${code-unset}", 0, "unset unset unset\n"),
        ],
    )
    @pytest.mark.parametrize("limit", [None, 100.0])
    def test_contained(self, runs: Runs, text: str, code: int | None, log: str | None, limit: float | None) -> None:
        run = runs.make(text, limits=(limit,))
        bash_any(run)
        (marker,) = run.markers()
        assert code is None or marker == f"train.exit.{code}"
        assert log is None or run.text("train.log") == log

    @pytest.mark.parametrize("limit", [None, 100.0])
    @pytest.mark.parametrize("text", ["echo 'open", "if true; then", "echo )", "done", 'echo "$(', "a && || b"])
    def test_a_syntax_error_is_the_command_s_own(self, runs: Runs, text: str, limit: float | None) -> None:
        run = runs.make(text, "touch never", limits=(limit, None))
        bash_any(run)
        (marker,) = run.markers()
        assert marker in {"train.exit.1", "train.exit.2"}
        assert "syntax error" in run.text("train.log") or "unexpected EOF" in run.text("train.log")
        assert not run.path("code/never").exists()

    def test_background_children_do_not_hold_the_run(self, runs: Runs) -> None:
        run = runs.make("(until [ -e go ]; do sleep 0.05; done; touch left) & echo started")
        bash(run)
        assert run.text("train.log") == "started\n"
        run.path("code/go").touch()
        until(run.path("code/left").exists, "the child went on")
        until(lambda: not members(run), "and left")

    def test_variables_do_not_travel_between_commands(self, runs: Runs) -> None:
        run = runs.make("export A=1; cd /", "echo ${A-unset}; pwd")
        bash(run)
        assert run.text("avg.log") == f"unset\n{run.dir}/code\n"

    def test_a_missing_working_directory(self, runs: Runs) -> None:
        run = runs.make("true")
        run.path("code").rmdir()
        bash(run, code=1)
        assert run.markers() == {"train.exit.1"}
        assert "code" in run.text("train.log")

    def test_finished_commands_are_skipped_and_not_told_to_the_others(self, runs: Runs) -> None:
        run = runs.make("echo 1", "echo ${ASSAY_DONE-unset} > seen; env | grep -c ASSAY_DONE", "echo 3")
        bash(run, code=1, ASSAY_DONE=":train:test:")
        assert run.markers() == {"avg.exit.1"}
        assert run.text("avg.log") == "0\n"

    @given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=40))
    def test_quoting(self, text: str) -> None:
        done = subprocess.run(["bash", "-c", f"printf %s {quote_text(text)}"], check=True, capture_output=True)
        assert done.stdout.decode() == text


def bash_any(run: Run) -> None:
    subprocess.run(["bash", f"{run.dir}/job.sh"], check=False, capture_output=True, timeout=60)


class TestSurroundings:
    def test_options_of_the_user_s_shell_do_not_matter(self, runs: Runs, tmp_path: Path) -> None:
        (tmp_path / "env").write_text("set -eu\n")
        run = runs.make("exit 3")
        bash(run, code=3, BASH_ENV=str(tmp_path / "env"))
        assert run.markers() == {"train.exit.3"}

    def test_a_locale_with_a_decimal_comma(self, runs: Runs) -> None:
        from assay.record.run_directory import load_times

        run = runs.make("true")
        bash(run, LC_ALL="de_DE.UTF-8")
        assert load_times(run.dir)["train"][1] is not None

    @pytest.mark.parametrize("value", ["a b", "it's", '"$HOME"', "`x`", "-n", "line\nline", "${ASSAY_RUN_DIR}/x"])
    def test_values_of_the_environment(self, runs: Runs, value: str) -> None:
        run = runs.make('printf %s "$KEY"', env=(("KEY", value),))
        bash(run)
        assert run.text("train.log") == value.replace("${ASSAY_RUN_DIR}", run.dir)

    def test_a_log_s_name_may_hold_anything(self, runs: Runs) -> None:
        run = runs.make("echo x", log_name='log.{command}.{time}.a"b$HOME`c`\\d')
        bash(run, ASSAY_TIME="T")
        assert run.text('log.train.T.a"b$HOME`c`\\d') == "x\n"

    def test_a_name_of_several_lines_stays_a_comment(self) -> None:
        spec = RunSpec("0", "a\nrm -rf b", {}, (Command("train", "true"),))
        assert "\nrm -rf b" not in render_job(spec, JobText("u", "s", "code")).partition("ASSAY_RUN_NAME")[0]


class TestLimits:
    def test_the_run_s_limit_covers_all_its_commands(self, runs: Runs) -> None:
        run = runs.make("sleep 1.2", "sleep 1000", "true", timeout_s=2.0)
        bash(run, code=124)
        assert run.markers() == {"train.exit.0", "avg.exit.124"}
        assert run.path("avg.timeout").exists()
        assert not run.path("train.timeout").exists()

    @pytest.mark.parametrize(
        ("text", "limit", "run_limit", "is_late"), [("sleep 1000", 1.0, 500.0, True), ("exit 124", None, None, False)]
    )
    def test_the_smaller_limit_counts_for_its_command(
        self, runs: Runs, text: str, limit: float | None, run_limit: float | None, is_late: bool
    ) -> None:
        run = runs.make("true", text, limits=(50.0, limit), timeout_s=run_limit)
        bash(run, code=124)
        assert run.markers() == {"train.exit.0", "avg.exit.124"}
        assert run.path("avg.timeout").exists() is is_late

    @pytest.mark.parametrize("launch", ["", "_start"])
    def test_a_command_that_is_longer_than_an_argument_may_be(self, runs: Runs, launch: str) -> None:
        text = f"x='{'ä' * 70_000}'; echo ${{#x}}; [ ! -e /dev/fd/9 ] && read -r x || exit 3"
        run = runs.make(text, timeout_s=50.0)
        bash(run, code=3, ASSAY_LAUNCH=launch, LC_ALL="C.UTF-8", **{"BASH_FUNC__start%%": '() { eval "$1"; }'})
        assert run.text("train.log") == "70000\n"

    def test_a_fraction_is_rounded_up_and_without_a_limit_there_is_no_timeout(self) -> None:
        spec = RunSpec("0", "r", {}, (Command("train", "true", 1.2),), timeout_s=0.1)
        text = render_job(spec, JobText("u", "s", "code"))
        assert "_limit 2;" in text
        assert "_run_limit=1\n" in text
        spec = RunSpec("0", "r", {}, (Command("train", "true"),))
        assert "timeout" not in render_job(spec, JobText("u", "s", "code")).partition("#:on-demand:")[0]


class TestStop:
    def test_a_stop_file_ends_everything(self, runs: Runs) -> None:
        run = runs.make("""setsid bash -c 'trap "" TERM; touch up; sleep 1000' & sleep 1000""")
        job = subprocess.Popen(["bash", f"{run.dir}/job.sh"])
        until(run.path("code/up").exists, "the command runs")
        run.path("stop.1").touch()
        job.wait(60)
        until(run.path("end.1").exists, "the watcher has the last word")
        assert members(run) == set()
        assert not run.path("train.exit.0").exists()

    def test_term_to_job_sh_alone_ends_the_watcher_too(self, runs: Runs) -> None:
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done")
        env = {**os.environ, "ASSAY_ATTEMPT_NUMBER": "1", "ASSAY_ATTEMPT": f"{run.uid}.1"}
        job = subprocess.Popen(["bash", f"{run.dir}/job.sh"], env=env)
        until(run.path("code/up").exists, "the command runs")
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == -signal.SIGTERM
        assert run.path("end.1").exists()
        run.path("code/go").touch()
        until(lambda: not members(run), "nothing is left")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("true", True),
        ("python train.py --lr 0.1 --tag=a,b", True),
        ("./run.sh a", True),
        ("exit 3", False),
        ("cd x", False),
        (". setup.sh", False),
        ("A=1 python x", False),
        ("python x | tee y", False),
        ("python 'x y'", False),
        ("python *.py", False),
        ("python ~/x", False),
        ("python {a,b}", False),
        ("python x\npython y", False),
        ("", False),
    ],
)
def test_which_commands_need_no_shell_of_their_own(text: str, plain: bool) -> None:
    assert is_plain_call(text) is plain
