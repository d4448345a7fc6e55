"""What is submitted and what is shown: texts, and the shell's opinion of them."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import UsageError
from assay.farms.submit_lines import (
    build_cancel_command,
    build_job_command,
    build_job_name,
    build_job_script,
    build_slug,
    build_state_dir,
    build_submit_command,
    find_program,
    is_shell,
    parse_native_id,
    render_resources,
    render_submit_line,
    uses_script,
)
from assay.values.run import JobRequest
from assay.values.study import Farm

REQUEST = JobRequest("/home/logs/sweep/athletic-wallaby", "sweep/athletic-wallaby", 1, {"ASSAY_TIME": "t"}, tag="ab.1")
TRAIN = "python train.py --lr 0.01 --solver sgd"
BIG = Farm("bigfarm", "generic", "submit_job", (("gpu", 2), ("cpu", 16), ("mem", 128)))
NGC = Farm(
    "ngc",
    "ngc",
    "ngc batch run",
    (("image", "nvidian/pytorch:19.10-py3"), ("instance", "dgx1v.16g.1.norm"), ("result", "/result")),
    workspace="ws",
    remote_root="/mnt/ngc",
)
JOB = "env ASSAY_TIME=t ASSAY_ATTEMPT_NUMBER=1 ASSAY_ATTEMPT=ab.1 bash"


def shell_words(text: str) -> list[str]:
    """What a program called by this text would see."""
    ran = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], check=True, capture_output=True)
    return ran.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


class TestShownLine:
    def test_each_kind_of_farm(self) -> None:
        shell = Farm("x", "generic", "bash")
        assert render_submit_line(shell, replace(REQUEST, label="j"), "true") == 'bash -c "true"'
        draco = Farm("draco-rno", "draco", "submit_job", (("gpu", 1),))
        assert render_submit_line(draco, REQUEST, "echo 'a b'") == (
            "submit_job --gpu 1  --name sweep_athletic-wallaby --command 'echo '\\''a b'\\'''"
            " --logdir /home/logs/sweep/athletic-wallaby/gcf_log"
        )
        assert render_submit_line(NGC, REQUEST, TRAIN) == (
            "ngc batch run --image nvidian/pytorch:19.10-py3 --instance dgx1v.16g.1.norm --result /result"
            "  --name sweep_athletic-wallaby --commandline 'python train.py --lr 0.01 --solver sgd'"
            " --workspace ws:/mnt/ngc:RW"
        )
        pbs = Farm("pbs", "template", "qsub -N {job} -- {command}")
        assert render_submit_line(pbs, REQUEST, "a 'b'") == "qsub -N sweep_athletic-wallaby -- 'a '\"'\"'b'\"'\"''"

    @given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30))
    def test_a_pasted_line_submits_the_same_command(self, command: str) -> None:
        assert shell_words(render_submit_line(BIG, REQUEST, command))[-1] == command


class TestSubmittedCommand:
    def test_generic(self) -> None:
        assert shell_words(build_submit_command(BIG, REQUEST)) == [
            *["submit_job", "--gpu", "2", "--cpu", "16", "--mem", "128", "--name", "sweep_athletic-wallaby", "-c"],
            f"{JOB} /home/logs/sweep/athletic-wallaby/job.sh",
        ]

    def test_only_a_bare_shell_has_no_name(self) -> None:
        for submit in ("bash", "/bin/sh", "zsh -l", "FOO=1 bash"):
            assert "--name" not in build_submit_command(Farm("here", "generic", submit), REQUEST)
        for submit in ("bash submit.sh", "rlaunch", "submit_bash"):
            assert "--name sweep_athletic-wallaby" in build_submit_command(Farm("there", "generic", submit), REQUEST)
        assert is_shell(Farm("f", "generic", "bash"))
        assert not is_shell(Farm("f", "template", "bash"))

    def test_draco_writes_its_log_into_the_run(self) -> None:
        words = shell_words(build_submit_command(Farm("draco", "draco", "submit_job"), REQUEST))
        assert words[-2:] == ["--logdir", "/home/logs/sweep/athletic-wallaby/gcf_log"]
        assert words[words.index("--command") + 1] == f"{JOB} /home/logs/sweep/athletic-wallaby/job.sh"

    def test_ngc_uploads_and_runs_under_the_mounted_root(self) -> None:
        upload, _, batch = build_submit_command(NGC, REQUEST).partition(" && ")
        assert shell_words(upload) == [
            *["ngc", "workspace", "upload", "--source", "/home/logs/sweep/athletic-wallaby"],
            *["--destination", "sweep/athletic-wallaby", "ws"],
        ]
        words = shell_words(batch)
        assert words[words.index("--commandline") + 1] == f"{JOB} /mnt/ngc/sweep/athletic-wallaby/job.sh"
        assert words[-2:] == ["--workspace", "ws:/mnt/ngc:RW"]

    def test_ngc_by_submit_job_replaces_the_root(self) -> None:
        farm = Farm("ngc-x", "ngc", "submit_job", (("log", "LOGDIR/x"),), remote_root="/mnt/ngc/")
        words = shell_words(build_submit_command(farm, REQUEST))
        assert "ngc" not in words
        assert words[1:3] == ["--log", "/mnt/ngc/sweep/athletic-wallaby/x"]
        assert words[-1] == "/mnt/ngc/sweep/athletic-wallaby/gcf_log"

    def test_what_cannot_be_submitted(self) -> None:
        for workspace, root, key in ((None, "/r", "WORKSPACE"), ("ws", None, "NGC_LOGROOT")):
            with pytest.raises(UsageError, match=key):
                build_submit_command(Farm("n", "ngc", "ngc batch run", workspace=workspace, remote_root=root), REQUEST)
        with pytest.raises(UsageError, match="submits nothing") as caught:
            build_submit_command(Farm("pbs", "template", "qsub -N {job}"), REQUEST)
        assert "{command}" in str(caught.value.hint)

    def test_later_attempts_have_names_of_their_own(self) -> None:
        second = JobRequest(REQUEST.dir, REQUEST.name, 2, tag="ab.2")
        assert "--name sweep_athletic-wallaby.2 " in build_submit_command(BIG, second)
        assert "ASSAY_ATTEMPT_NUMBER=2 ASSAY_ATTEMPT=ab.2" in build_submit_command(BIG, second)

    @given(
        st.text(st.characters(blacklist_characters="\0/", blacklist_categories=("Cs",)), min_size=1, max_size=20),
        st.sampled_from([BIG, NGC, Farm("d", "draco", "submit_job"), Farm("t", "template", 'x "{command}"')]),
    )
    def test_any_path_survives_the_shells(self, name: str, farm: Farm) -> None:
        """One shell reads the submit line, the farm's shell reads the command."""
        request = JobRequest(f"/r/{name}/{name}", f"{name}/{name}", 1, tag="ab.1")
        words = shell_words(build_submit_command(farm, request).rpartition(" && ")[2])
        command = next(word for word in words if word.startswith("env "))
        assert shell_words(command)[-2:] == ["bash", f"{build_state_dir(farm, request.dir)}/job.sh"]


class TestResources:
    def test_values(self) -> None:
        values: list[tuple[object, str]] = [
            (True, "--k"),
            (False, ""),
            (None, ""),
            (2, "--k 2"),
            (0, "--k 0"),
            ("a b --flag c", "--k a b --flag c"),  # several words or flags: unquoted, as runx hands them on
            (["/a:/a", "/b:/b"], "--k /a:/a --k /b:/b"),
            ([], ""),
            ("LOGDIR/x", "--k /home/logs/sweep/athletic-wallaby/x"),
        ]
        for value, text in values:
            assert render_resources(Farm("f", "generic", "s", (("k", value),)), REQUEST) == text

    def test_what_the_run_asks_for_overrides_and_adds(self) -> None:
        request = JobRequest("/r/s/x", "s/x", 1, farm_resources=(("gpu", 4), ("partition", "long"), ("mem", None)))
        assert render_resources(BIG, request) == "--gpu 4 --cpu 16 --partition long"

    @pytest.mark.parametrize("value", ["LOGDIR/x", '"LOGDIR/x"', "'LOGDIR/x'"])
    def test_the_run_directory_is_quoted_where_it_stands(self, value: str) -> None:
        request = JobRequest("/a b/it's/$HOME", "s/x", 1)
        text = render_resources(Farm("f", "generic", "s", (("k", value),)), request)
        assert shell_words(text) == ["--k", "/a b/it's/$HOME/x"]


class TestTemplate:
    def fill(self, template: str) -> str:
        return build_submit_command(Farm("t", "template", template + " {command}"), REQUEST).removesuffix(
            f" '{JOB} {REQUEST.dir}/job.sh'"
        )

    def test_every_place(self) -> None:
        assert self.fill("{job}|{name}|{dir}|{script}|{resources}") == (
            "sweep_athletic-wallaby|sweep/athletic-wallaby|/home/logs/sweep/athletic-wallaby|"
            "/home/logs/sweep/athletic-wallaby/submit.sh.1|"
        )
        others = "${job} ${HOME} {other} {print $1}"
        assert self.fill(others) == others
        assert self.fill("{{job}}") == "{job}"

    def test_an_escaped_quote_opens_nothing(self) -> None:
        request = JobRequest("/a b", "s/x", 1)
        text = build_submit_command(Farm("t", "template", r"echo it\'s {dir} {command}"), request)
        assert shell_words(text)[:3] == ["echo", "it's", "/a b"]

    def test_uses_script(self) -> None:
        assert uses_script(Farm("t", "template", "qsub {script}"))
        assert not uses_script(Farm("t", "template", "qsub {{script}} {command}"))
        assert not uses_script(Farm("t", "generic", "qsub {script}"))
        assert build_job_script(BIG, REQUEST).splitlines()[1] == f"exec {build_job_command(BIG, REQUEST)}"


class TestNames:
    def test_job_names_are_one_plain_word(self) -> None:
        names = {"s/r": "s_r", "s/a b\n'c'": "s_a_b_c_", "-s/r": "s_r", "größe/r": "größe_r", "/": "_", "-": "run"}
        assert {name: build_job_name(JobRequest("/d", name, 1)) for name in names} == names

    @given(st.text(min_size=1, max_size=100), st.integers(1, 12))
    def test_slugs_are_labels(self, name: str, attempt: int) -> None:
        slug = build_slug(JobRequest("/d", name, attempt))
        assert len(slug) <= 63
        assert slug.strip("-") == slug
        assert all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in slug)

    def test_slugs_tell_long_names_apart(self) -> None:
        slugs = {build_slug(JobRequest(f"/d/{i}", "x" * 100 + str(i), a)) for i in range(5) for a in (1, 2)}
        assert len(slugs) == 10

    def test_native_ids(self) -> None:
        printed = {
            "Submitted batch job 4711\n": "4711",
            "4711.server.example\n": "4711",
            "Job <4711> is submitted to queue <normal>.\n": "4711",
            "pod/sweep created as x7-abc\nmore": "x7-abc",
            "": "",
        }
        assert {text: parse_native_id(text) for text in printed} == printed

    def test_cancel_command(self) -> None:
        farm = Farm("pbs", "generic", "submit_job", cancel="qdel {native_id} # {job}")
        assert build_cancel_command(farm, "/r/s/x", 2, "47 11") == "qdel '47 11' # s_x.2"
        assert build_cancel_command(BIG, "/r/s/x", 1, "1") is None

    def test_the_program_to_look_for(self) -> None:
        programs = {"submit_job --x": "submit_job", "A=1 /opt/s q": "/opt/s", "$TOOL x": None, "": None, "'": None}
        assert {submit: find_program(Farm("f", "generic", submit)) for submit in programs} == programs
