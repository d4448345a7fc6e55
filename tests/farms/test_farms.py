"""Farms by submit command, from the user's chair: bigfarm, smallfarm, draco, NGC; leaving, coming back, being refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from tests.user_folder import INTRO, INTRO_LINES, Desk, open_desk

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
def desk(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with open_desk(monkeypatch, capfd) as desk:
        desk.write("sweep.yml", INTRO)
        desk.write(".runx", BIGFARM.format(folder=desk.folder))
        desk.note_calls()
        yield desk


def states(desk: Desk, study: str = "sweep") -> list[str]:
    return [row["state"] for row in json.loads(desk.well("ls", study, "--json").out)]


def ended(desk: Desk, count: int = 4, study: str = "logs/sweep") -> None:
    desk.until_ended(study, count)


class TestTheDocument:
    def test_bigfarm(self, desk: Desk) -> None:
        said = desk.well("runx", "sweep.yml")
        assert said.lines == BIG_LINES
        assert "next: assay ls sweep" in said.err or "4 done" in said.err
        ended(desk)
        assert sorted(desk.calls) == sorted(line.removeprefix("python train.py ") for line in INTRO_LINES)

    def test_what_is_submitted_starts_job_sh(self, desk: Desk) -> None:
        desk.well("runx", "sweep.yml")
        ended(desk)
        runs = desk.runs("logs/sweep")
        assert len(desk.submissions) == 4
        for call in desk.submissions:
            assert call[:-1] == [
                "submit_job", "--gpu", "2", "--cpu", "16", "--mem", "128", "--name", call[8], "-c",
            ]  # fmt: skip
            run = next(run for run in runs if f"sweep_{run.name}" == call[8])
            assert call[-1].endswith(f" bash {run}/job.sh")
            assert "OMP_NUM_THREADS" not in call[-1], "threads are the farm's matter"

    @pytest.mark.parametrize("door", [["runx"], ["run", "-n"]])
    def test_n_prints_the_lines_and_submits_nothing(self, desk: Desk, door: list[str]) -> None:
        before = desk.everything()
        assert desk.well(*door, "sweep.yml", *(["-n"] if door == ["runx"] else [])).lines == BIG_LINES
        assert desk.everything() == before
        assert desk.submissions == []

    def test_logdir(self, desk: Desk) -> None:
        desk.write("sweep.yml", INTRO + "  logdir: LOGDIR\n")
        lines = desk.well("runx", "sweep.yml").lines
        ended(desk)
        form = r'submit_job --gpu 2 --cpu 16 --mem 128 -c "(python train\.py --lr \S+ --solver \S+) --logdir (\S+)"'
        found = [re.fullmatch(form, line) for line in lines]
        assert [match[1] for match in found if match] == INTRO_LINES
        assert [match[2] for match in found if match] == [str(run) for run in desk.runs("logs/sweep")]
        assert all(re.fullmatch(COOLNAME, run.name) for run in desk.runs("logs/sweep"))

    def test_another_farm_by_flag(self, desk: Desk) -> None:
        desk.write(".runx", TWO_FARMS.format(folder=desk.folder))
        resources = "--image mydocker-image-small:1.2 --gpu 4 --cpu 32 --mem 256"
        assert (
            desk.well("runx", "sweep.yml", "--farm", "smallfarm").lines[0]
            == f'submit_small {resources} -c "{INTRO_LINES[0]}"'
        )
        ended(desk)
        assert {call[0] for call in desk.submissions} == {"submit_small"}

    def test_interactive_runs_here(self, desk: Desk) -> None:
        assert desk.well("runx", "sweep.yml", "-i").lines == INTRO_LINES
        assert desk.submissions == []
        assert len(desk.calls) == 4

    def test_tagged_runs_show_their_names(self, desk: Desk) -> None:
        desk.write(
            "sweep.yml",
            'CMD: "python train.py"\nHPARAMS: [\n  {logdir: LOGDIR, adam: true, arch: alexnet, lr: [0.01, 0.02], epochs: 10, '
            "RUNX.TAG: 'alexnet'},\n  {arch: resnet50, lr: [0.002, 0.005], RUNX.TAG: 'resnet50'},\n"
            "  {RUNX.SKIP: true, arch: resnet50, RUNX.TAG: 'resnet50'}]\n",
        )
        lines = desk.well("runx", "sweep.yml", "-n").lines
        assert [re.sub(COOLNAME, "…", re.sub(r"--logdir \S+", "--logdir …", line)) for line in lines] == [
            f'submit_job --gpu 2 --cpu 16 --mem 128 --name {arch}_… -c "python train.py --logdir … --adam --arch {arch} --lr {lr} --epochs 10"'
            for arch, lr in (("alexnet", 0.01), ("alexnet", 0.02), ("resnet50", 0.002), ("resnet50", 0.005))
        ]
        printed = desk.well("runx", "sweep.yml").lines
        ended(desk)
        names = [re.findall(r"--name (\S+)", line) for line in printed]
        assert sorted(names) == sorted([call[call.index("--name") + 1]] for call in desk.submissions)

    def test_draco(self, desk: Desk) -> None:
        desk.write(".runx", BIGFARM.format(folder=desk.folder).replace("bigfarm", "draco-rno"))
        lines = desk.well("runx", "sweep.yml").lines
        ended(desk)
        form = r"submit_job --gpu 2 --cpu 16 --mem 128  --name sweep_\S+ --command '(.*)' --logdir (\S+)/gcf_log"
        found = [re.fullmatch(form, line) for line in lines]
        assert [match[1] for match in found if match] == INTRO_LINES
        assert [match[2] for match in found if match] == [str(run) for run in desk.runs("logs/sweep")]

    def test_a_template_for_anything_else(self, desk: Desk) -> None:
        text = "LOGROOT: logs\nFARM: pbs\npbs:\n  SUBMIT_TEMPLATE: 'submit_job -N {job} -c {script}'\n"
        desk.write(".runx", text)
        desk.well("runx", "sweep.yml")
        ended(desk)
        assert len(desk.calls) == 4


class TestNgc:
    @pytest.fixture
    def ngc(self, desk: Desk) -> Desk:
        desk.write(".runx", NGC.format(folder=desk.folder, mount=desk.farm / "mount"))
        desk.write("sweep.yml", INTRO + "  logdir: LOGDIR\n")
        desk.write("train.py", LOGX)
        return desk

    def test_uploaded_run_there_and_tabled_here(self, ngc: Desk) -> None:
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

    def test_states_are_read_from_the_workspace_in_logroot_too(self, ngc: Desk) -> None:
        ngc.well("runx", "sweep.yml")
        ngc.until(lambda: len(list((ngc.farm / "mount").glob("sweep/*/end.1"))) == 4, "all four ended")
        rows = json.loads(ngc.well("ls", "sweep", "--root", "logs", "--json").out)
        assert [row["state"] for row in rows] == ["done"] * 4
        assert len(ngc.well("sumx", "sweep", "--logroot", "logs").lines) == 6

    def test_assay_run_stays_until_they_end(self, ngc: Desk) -> None:
        ngc.well("run", "sweep.yml")
        assert states(ngc) == ["done"] * 4

    @pytest.mark.parametrize("key", ["NGC_LOGROOT", "WORKSPACE"])
    def test_what_is_missing_is_said(self, ngc: Desk, key: str) -> None:
        text = ngc.read(".runx")
        ngc.write(".runx", re.sub(rf"^ *{key}:.*\n", "", text, flags=re.MULTILINE))
        said = ngc.assay("runx", "sweep.yml")
        assert said.code == 2
        assert re.search(rf"\.runx:\d+:\d+ ngc: the farm lacks {key}", said.err)
        assert ngc.submissions == []


class TestLeaving:
    def test_runx_goes_when_everything_is_submitted(self, desk: Desk) -> None:
        desk.hold()
        said = desk.well("runx", "sweep.yml")
        assert "4 runs are with bigfarm now" in said.err
        assert desk.calls == []
        assert states(desk) == ["queued"] * 4
        desk.release()
        ended(desk)
        assert states(desk) == ["done"] * 4
        assert "4 runs" not in desk.well("ls").err

    def test_many_jobs_are_all_submitted_before_it_goes(self, desk: Desk) -> None:
        desk.write("sweep.yml", f"CMD: 'true'\nHPARAMS: {{a: {list(range(30))}}}\n")
        desk.hold()
        desk.well("runx", "sweep.yml")
        assert len(desk.submissions) == 30
        desk.release()
        ended(desk, 30)

    def test_called_again_while_runs_are_on_the_farm_it_submits_new_ones(self, desk: Desk) -> None:
        desk.hold()
        desk.well("runx", "sweep.yml")
        said = desk.well("runx", "sweep.yml", "--tag", "new")
        assert "4 runs of earlier calls are still waiting or running, and this call starts new ones" in said.err
        assert len(desk.submissions) == 8
        assert sum(run.name.startswith("new_") for run in desk.runs("logs/sweep")) == 4
        third = desk.well("runx", "sweep.yml", "-n")
        assert "8 runs of earlier calls are still waiting or running" in third.err
        desk.release()
        ended(desk, 8)
        assert len(desk.calls) == 8

    def test_called_again_when_all_have_ended_it_starts_new_runs(self, desk: Desk) -> None:
        desk.well("runx", "sweep.yml")
        ended(desk)
        assert desk.well("runx", "sweep.yml").lines == BIG_LINES
        ended(desk, 8)
        assert len(desk.runs("logs/sweep")) == 8

    def test_a_failed_job_is_seen_later(self, desk: Desk) -> None:
        desk.write("train.py", "import sys; print('loss is nan'); sys.exit('adam' in sys.argv)")
        desk.hold()
        desk.well("runx", "sweep.yml")
        desk.release()
        ended(desk)
        assert sorted(states(desk)) == ["done", "done", "failed", "failed"]

    def test_assay_run_takes_the_farm_and_stays(self, desk: Desk) -> None:
        said = desk.well("run", "sweep.yml")
        assert "4 done" in said.err
        assert len(desk.submissions) == 4
        assert len(desk.calls) == 4

    def test_on_local_runs_here(self, desk: Desk) -> None:
        desk.well("run", "sweep.yml", "--on", "local")
        assert desk.submissions == []
        assert len(desk.calls) == 4

    def test_on_another_farm(self, desk: Desk) -> None:
        desk.write(".runx", TWO_FARMS.format(folder=desk.folder))
        desk.well("run", "sweep.yml", "--on", "smallfarm")
        assert {call[0] for call in desk.submissions} == {"submit_small"}

    def test_assay_run_finishes_what_runx_submitted(self, desk: Desk) -> None:
        desk.hold()
        desk.well("runx", "sweep.yml")
        desk.release()
        desk.well("run", "sweep.yml")
        assert states(desk) == ["done"] * 4
        assert len(desk.submissions) == 4

    def test_job_sh_can_be_started_by_hand_before_the_farm_does(self, desk: Desk) -> None:
        """The farm's own start then finds the token taken: nothing runs twice."""
        desk.hold()
        desk.well("runx", "sweep.yml")
        first = desk.runs("logs/sweep")[0]
        lease = json.loads((first / "lease.1").read_text())
        env = f"ASSAY_ATTEMPT_NUMBER=1 ASSAY_ATTEMPT={lease['tag']}"
        subprocess.run(["bash", "-c", f"{env} bash '{first}/job.sh'"], check=True)
        desk.release()
        ended(desk)
        desk.until(lambda: len(desk.calls) == 4, "four calls")
        assert states(desk) == ["done"] * 4


class TestRefused:
    def test_exit_code_4_with_the_farm_s_words_and_one_try_each(self, desk: Desk) -> None:
        (desk.farm / "REFUSE").touch()
        said = desk.assay("runx", "sweep.yml")
        assert said.code == 4
        assert (
            "assay: submission failed: the submit command ended with code 7: asking the scheduler\nno such partition"
            in said.err
        )
        assert len(desk.submissions) <= 4
        assert set(states(desk)) == {"stopped"}

    def test_a_shell_that_does_not_know_a_flag_is_not_asked_again(self, desk: Desk) -> None:
        desk.write(".runx", "LOGROOT: logs\nFARM: f\nf: {SUBMIT_CMD: bash, RESOURCES: {gpu: 2}}\n")
        said = desk.assay("runx", "sweep.yml")
        assert said.code == 4
        assert "submission failed: the submit command ended with code 2" in said.err
        assert {len(list(run.glob("lease.*"))) for run in desk.runs("logs/sweep")} <= {0, 1}, "nothing is tried again"

    def test_nothing_is_asked_for_twice(self, desk: Desk) -> None:
        desk.write("sweep.yml", f"CMD: 'true'\nHPARAMS: {{a: {list(range(30))}}}\n")
        (desk.farm / "REFUSE").touch()
        assert desk.assay("runx", "sweep.yml").code == 4
        names = [call[call.index("--name") + 1] for call in desk.submissions]
        assert len(names) == len(set(names))

    def test_the_next_call_continues(self, desk: Desk) -> None:
        (desk.farm / "REFUSE").touch()
        desk.assay("runx", "sweep.yml")
        (desk.farm / "REFUSE").unlink()
        desk.well("runx", "sweep.yml")
        ended(desk)
        assert len(desk.runs("logs/sweep")) == 4
        assert states(desk) == ["done"] * 4
        assert len(desk.calls) == 4

    def test_assay_run_says_the_same(self, desk: Desk) -> None:
        (desk.farm / "REFUSE").touch()
        said = desk.assay("run", "sweep.yml")
        assert said.code == 4
        assert "no such partition" in said.err

    def test_a_refused_job_is_not_cancelled_by_a_number_in_its_error(self, desk: Desk) -> None:
        text = BIGFARM.format(folder=desk.folder) + "  CANCEL_CMD: 'touch {native_id}.cancelled'\n"
        desk.write(".runx", text)
        desk.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: 1}\n")
        (desk.farm / "bin" / "submit_job").write_text("#!/bin/bash\necho error 17 >&2; exit 1\n")
        assert desk.assay("runx", "sweep.yml").code == 4
        assert not list(desk.folder.rglob("*.cancelled"))


class TestBadInput:
    def test_an_unknown_farm_by_flag(self, desk: Desk) -> None:
        said = desk.assay("runx", "sweep.yml", "--farm", "bgfarm")
        assert said.code == 2
        assert "there is no farm 'bgfarm'" in said.err
        assert "did you mean 'bigfarm'?" in said.err

    def test_an_unknown_farm_in_the_file(self, desk: Desk) -> None:
        desk.write(".runx", BIGFARM.format(folder=desk.folder).replace("FARM: bigfarm", "FARM: bigfram"))
        said = desk.assay("runx", "sweep.yml")
        assert said.code == 2
        assert ".runx:2:7 FARM: there is no farm 'bigfram'" in said.err
        assert "did you mean 'bigfarm'?" in said.err

    def test_an_unknown_farm_for_run(self, desk: Desk) -> None:
        said = desk.assay("run", "sweep.yml", "--on", "bgfarm")
        assert said.code == 2
        assert "did you mean 'bigfarm'?" in said.err

    def test_a_farm_without_submit_cmd(self, desk: Desk) -> None:
        desk.write(".runx", "LOGROOT: logs\nFARM: bigfarm\nbigfarm:\n  RESOURCES: {gpu: 2}\n")
        said = desk.assay("runx", "sweep.yml")
        assert said.code == 2
        assert ".runx:3:1 bigfarm: the farm lacks SUBMIT_CMD" in said.err

    def test_a_submit_command_that_is_not_there(self, desk: Desk) -> None:
        desk.write(".runx", BIGFARM.format(folder=desk.folder).replace("submit_job", "submit_jbo"))
        said = desk.assay("runx", "sweep.yml")
        assert said.code in (2, 4)
        assert "submit_jbo" in said.err

    def test_broken_runx(self, desk: Desk) -> None:
        desk.write(".runx", "LOGROOT: [\n")
        said = desk.assay("runx", "sweep.yml")
        assert said.code == 2
        assert ".runx:" in said.err
