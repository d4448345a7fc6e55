"""Farms by submit command, from the user's chair: bigfarm, smallfarm, draco, NGC; leaving, coming back, being refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from tests.user_folder import INTRO, INTRO_LINES, UserFolder, open_user_folder

COOLNAME = r"[a-z]+-[a-z]+_\d{4}\.\d\d\.\d\d_\d\d\.\d\d"
BIGFARM = """\
LOGROOT: {folder}/logs
FARM: bigfarm

bigfarm:
  SUBMIT_CMD: 'submit_job'
  RESOURCES:
     gpu: 2
     cpu: 16
     mem: 128
"""
TWO_FARMS = """\
LOGROOT: {folder}/logs
CODE_IGNORE_PATTERNS: '.git,*.pyc,docs*,test*'
FARM: bigfarm

# Farm resource needs
bigfarm:
    SUBMIT_CMD: 'submit_job'
    RESOURCES:
        image: mydocker-image-big:1.0
        gpu: 8
        cpu: 64
        mem: 450

smallfarm:
    SUBMIT_CMD: 'submit_small'
    RESOURCES:
        image: mydocker-image-small:1.2
        gpu: 4
        cpu: 32
        mem: 256
"""
NGC = """\
LOGROOT: {folder}/logs
FARM: ngc

ngc:
    NGC_LOGROOT: {mount}
    WORKSPACE: my-workspace
    SUBMIT_CMD: 'ngc batch run'
    RESOURCES:
       image: nvidian/pytorch:19.10-py3
       instance: dgx1v.16g.1.norm
       ace: nv-us-west-2
       result: /result
"""
BIG_LINES = [f'submit_job --gpu 2 --cpu 16 --mem 128 -c "{line}"' for line in INTRO_LINES]
LOGX = """\
import sys
from assay.logx import logx
logx.initialize(logdir=sys.argv[sys.argv.index('--logdir') + 1])
for epoch in range(3):
    logx.metric('val', {'acc': 90 + epoch + ('adam' in sys.argv)}, epoch=epoch)
"""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write("sweep.yml", INTRO)
        user.write(".runx", BIGFARM.format(folder=user.folder))
        user.note_calls()
        yield user


def states(user: UserFolder, study: str = "sweep") -> list[str]:
    return [row["state"] for row in json.loads(user.well("ls", study, "--json").out)]


def ended(user: UserFolder, count: int = 4, study: str = "logs/sweep") -> None:
    user.until_ended(study, count)


class TestTheDocument:
    def test_bigfarm(self, user: UserFolder) -> None:
        said = user.well("runx", "sweep.yml")
        assert said.lines == BIG_LINES
        assert "next: assay ls sweep" in said.err or "4 done" in said.err
        ended(user)
        assert sorted(user.calls) == sorted(line.removeprefix("python train.py ") for line in INTRO_LINES)
        runs = user.runs("logs/sweep")
        assert len(user.submissions) == 4
        for call in user.submissions:
            assert call[:-1] == [
                "submit_job", "--gpu", "2", "--cpu", "16", "--mem", "128", "--name", call[8], "-c",
            ]  # fmt: skip
            run = next(run for run in runs if f"sweep_{run.name}" == call[8])
            assert call[-1].endswith(f" bash {run}/job.sh")
            assert "OMP_NUM_THREADS" not in call[-1], "threads are the farm's matter"

    @pytest.mark.parametrize("words", [["runx"], ["run", "-n"]])
    def test_n_prints_the_lines_and_submits_nothing(self, user: UserFolder, words: list[str]) -> None:
        before = user.everything()
        assert user.well(*words, "sweep.yml", *(["-n"] if words == ["runx"] else [])).lines == BIG_LINES
        assert user.everything() == before
        assert user.submissions == []

    def test_logdir(self, user: UserFolder) -> None:
        user.write("sweep.yml", INTRO + "  logdir: LOGDIR\n")
        lines = user.well("runx", "sweep.yml").lines
        ended(user)
        form = r'submit_job --gpu 2 --cpu 16 --mem 128 -c "(python train\.py --lr \S+ --solver \S+) --logdir (\S+)"'
        found = [re.fullmatch(form, line) for line in lines]
        assert [match[1] for match in found if match] == INTRO_LINES
        assert [match[2] for match in found if match] == [str(run) for run in user.runs("logs/sweep")]
        assert all(re.fullmatch(COOLNAME, run.name) for run in user.runs("logs/sweep"))

    def test_another_farm_by_flag_or_none(self, user: UserFolder) -> None:
        user.write(".runx", TWO_FARMS.format(folder=user.folder))
        resources = "--image mydocker-image-small:1.2 --gpu 4 --cpu 32 --mem 256"
        (line, *_) = user.well("runx", "sweep.yml", "--farm", "smallfarm").lines
        assert line == f'submit_small {resources} -c "{INTRO_LINES[0]}"'
        ended(user)
        assert {call[0] for call in user.submissions} == {"submit_small"}
        assert user.well("runx", "sweep.yml", "-i").lines == INTRO_LINES
        user.well("run", "sweep.yml", "--on", "local", "--study", "here")
        assert len(user.submissions) == 4
        assert len(user.calls) == 12

    def test_tagged_runs_show_their_names(self, user: UserFolder) -> None:
        user.write(
            "sweep.yml",
            'CMD: "python train.py"\nHPARAMS: [\n  {logdir: LOGDIR, adam: true, arch: alexnet, lr: [0.01, 0.02], epochs: 10, '
            "RUNX.TAG: 'alexnet'},\n  {arch: resnet50, lr: [0.002, 0.005], RUNX.TAG: 'resnet50'},\n"
            "  {RUNX.SKIP: true, arch: resnet50, RUNX.TAG: 'resnet50'}]\n",
        )
        lines = user.well("runx", "sweep.yml", "-n").lines
        assert [re.sub(COOLNAME, "…", re.sub(r"--logdir \S+", "--logdir …", line)) for line in lines] == [
            f'submit_job --gpu 2 --cpu 16 --mem 128 --name {arch}_… -c "python train.py --logdir … --adam --arch {arch} --lr {lr} --epochs 10"'
            for arch, lr in (("alexnet", 0.01), ("alexnet", 0.02), ("resnet50", 0.002), ("resnet50", 0.005))
        ]
        printed = user.well("runx", "sweep.yml").lines
        ended(user)
        names = [re.findall(r"--name (\S+)", line) for line in printed]
        assert sorted(names) == sorted([call[call.index("--name") + 1]] for call in user.submissions)


class TestNgc:
    @pytest.fixture
    def ngc(self, user: UserFolder) -> UserFolder:
        user.write(".runx", NGC.format(folder=user.folder, mount=user.farm / "mount"))
        user.write("sweep.yml", INTRO + "  logdir: LOGDIR\n")
        user.write("train.py", LOGX)
        return user

    def test_uploaded_run_there_and_tabled_here(self, ngc: UserFolder) -> None:
        lines = ngc.well("runx", "sweep.yml").lines
        mount = ngc.farm / "mount"
        resources = "--image nvidian/pytorch:19.10-py3 --instance dgx1v.16g.1.norm --ace nv-us-west-2 --result /result"
        head = f"ngc batch run {resources}  --name sweep_"
        assert all(line.startswith(head) for line in lines)
        assert all(f"--logdir '\\''{mount}/sweep/" in line for line in lines), "the path has a space"
        ngc.until(lambda: len(list(mount.glob("sweep/*/end.1"))) == 4, "all four ended")
        uploads = [call for call in ngc.submissions if call[1] == "workspace"]
        runs = ngc.runs("logs/sweep")
        assert sorted(call[3:] for call in uploads) == sorted(
            ["--source", str(run), "--destination", f"sweep/{run.name}", "my-workspace"] for run in runs
        )
        table = ngc.well("sumx", "sweep", "--sortwith", "acc").lines
        assert table[0].split() == ["lr", "solver", "acc", "epoch", "epoch_time"]
        assert [line.split()[3:5] for line in table[2:]] == [["93", "2"], ["93", "2"], ["92", "2"], ["92", "2"]]
        assert states(ngc) == ["done"] * 4
        rows = json.loads(ngc.well("ls", "sweep", "--root", "logs", "--json").out)
        assert [row["state"] for row in rows] == ["done"] * 4, "read from the workspace in LOGROOT, too"
        assert len(ngc.well("sumx", "sweep", "--logroot", "logs").lines) == 6


class TestLeaving:
    def test_runx_goes_when_everything_is_submitted(self, user: UserFolder) -> None:
        user.write("sweep.yml", f"CMD: 'true'\nHPARAMS: {{a: {list(range(12))}}}\n")
        user.hold()
        assert "12 runs are with bigfarm now" in user.well("runx", "sweep.yml").err
        assert len(user.submissions) == 12
        assert states(user) == ["queued"] * 12
        user.release()
        ended(user, 12)
        assert states(user) == ["done"] * 12
        assert "12 runs" not in user.well("ls").err

    def test_called_again_while_runs_are_on_the_farm_it_submits_new_ones(self, user: UserFolder) -> None:
        user.hold()
        user.well("runx", "sweep.yml")
        said = user.well("runx", "sweep.yml", "--tag", "new")
        assert "4 runs of earlier calls are still waiting or running, and this call starts new ones" in said.err
        assert len(user.submissions) == 8
        assert sum(run.name.startswith("new_") for run in user.runs("logs/sweep")) == 4
        third = user.well("runx", "sweep.yml", "-n")
        assert "8 runs of earlier calls are still waiting or running" in third.err
        user.release()
        ended(user, 8)
        assert len(user.calls) == 8

    def test_a_failed_job_is_seen_later(self, user: UserFolder) -> None:
        user.write("sweep.yml", "CMD: sh fails.sh\nHPARAMS: {code: [1, 2]}\n")
        user.write("fails.sh", "echo loss is nan; [ $2 = 1 ]\n")
        user.hold()
        user.well("runx", "sweep.yml")
        user.release()
        ended(user, 2)
        assert sorted(states(user)) == ["done", "failed"]

    def test_assay_run_takes_the_farm_and_stays(self, user: UserFolder) -> None:
        assert "4 done" in user.well("run", "sweep.yml").err
        assert len(user.submissions) == 4
        assert len(user.calls) == 4

    def test_assay_run_finishes_what_runx_submitted(self, user: UserFolder) -> None:
        user.hold()
        user.well("runx", "sweep.yml")
        user.release()
        user.well("run", "sweep.yml")
        assert states(user) == ["done"] * 4
        assert len(user.submissions) == 4

    def test_job_sh_can_be_started_by_hand_before_the_farm_does(self, user: UserFolder) -> None:
        """The farm's own start then finds the token taken: nothing runs twice."""
        user.hold()
        user.well("runx", "sweep.yml")
        first = user.runs("logs/sweep")[0]
        lease = json.loads((first / "lease.1").read_text())
        env = f"ASSAY_ATTEMPT_NUMBER=1 ASSAY_ATTEMPT={lease['tag']}"
        subprocess.run(["bash", "-c", f"{env} bash '{first}/job.sh'"], check=True)
        user.release()
        ended(user)
        user.until(lambda: len(user.calls) == 4, "four calls")
        assert states(user) == ["done"] * 4


class TestRefused:
    @pytest.mark.parametrize("command", ["runx", "run"])
    def test_exit_code_4_with_the_farm_s_words_and_one_try_each(self, user: UserFolder, command: str) -> None:
        (user.farm / "REFUSE").touch()
        said = user.assay(command, "sweep.yml").ended(4)
        assert (
            "assay: submission failed: the submit command ended with code 7: asking the scheduler\nno such partition"
            in said.err
        )
        assert len(user.submissions) <= 4
        assert "stopped" in states(user)
        assert set(states(user)) <= {"stopped", "not started"}  # what was not submitted when the first one was refused

    def test_a_shell_that_does_not_know_a_flag_is_not_asked_again(self, user: UserFolder) -> None:
        user.write(".runx", "LOGROOT: logs\nFARM: f\nf: {SUBMIT_CMD: bash, RESOURCES: {gpu: 2}}\n")
        user.assay("runx", "sweep.yml").ended(4, "submission failed: the submit command ended with code 2")
        assert {len(list(run.glob("lease.*"))) for run in user.runs("logs/sweep")} <= {0, 1}, "nothing is tried again"

    def test_the_next_call_continues(self, user: UserFolder) -> None:
        (user.farm / "REFUSE").touch()
        user.assay("runx", "sweep.yml")
        (user.farm / "REFUSE").unlink()
        user.well("runx", "sweep.yml")
        ended(user)
        assert len(user.runs("logs/sweep")) == 4
        assert states(user) == ["done"] * 4
        assert len(user.calls) == 4

    def test_a_refused_job_is_not_cancelled_by_a_number_in_its_error(self, user: UserFolder) -> None:
        text = BIGFARM.format(folder=user.folder) + "  CANCEL_CMD: 'touch {native_id}.cancelled'\n"
        user.write(".runx", text)
        user.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: 1}\n")
        (user.farm / "bin" / "submit_job").write_text("#!/bin/bash\necho error 17 >&2; exit 1\n")
        assert user.assay("runx", "sweep.yml").code == 4
        assert not list(user.folder.rglob("*.cancelled"))


class TestBadInput:
    @pytest.mark.parametrize("words", [("runx", "--farm"), ("run", "--on")])
    def test_an_unknown_farm_by_flag(self, user: UserFolder, words: tuple[str, str]) -> None:
        user.assay(words[0], "sweep.yml", words[1], "bgfarm").ended(2, "'bgfarm'", "did you mean 'bigfarm'?")
