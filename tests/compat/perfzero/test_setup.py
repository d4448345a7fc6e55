"""What setup.py's flags mean, and the command lines that come of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command_line import Cli
from tests.stand_ins import StandIns, build_call, use_stand_ins, walk

from assay.cli.main import run
from assay.compat.perfzero import setup
from assay.compat.perfzero.setup import (
    SetupRequest,
    build_drive_commands,
    build_image_command,
    build_remarks,
    build_setup,
    build_tensorflow_spec,
    find_dockerfile,
    is_tensorflow_1,
    parse_free_disks,
    parse_pip_specs,
    parse_site_packages,
    render_entry,
)
from assay.compat.perfzero.wheel import build_wheel_name
from assay.errors import InfrastructureError, NotFoundError, UsageError

V1, V2 = "docker/Dockerfile_ubuntu_1804_tf_v1", "docker/Dockerfile_ubuntu_1804_tf_v2"


def image_command(**flags: object) -> list[str]:
    setup = build_setup(SetupRequest(**flags))  # type: ignore[arg-type]
    assert setup.dockerfile is not None
    return build_image_command(setup, setup.dockerfile)


# ---------------------------------------------------------------- the Dockerfile


@pytest.mark.parametrize("name", [V1, V2, os.path.basename(V1), os.path.basename(V2)])
def test_the_documented_names_are_found_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Path(find_dockerfile(name))
    assert found.is_absolute()
    assert found.name == os.path.basename(name)
    assert "FROM" in found.read_text()


def test_a_file_of_the_user_s_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docker").mkdir()
    (tmp_path / V1).write_text("FROM scratch\n")
    assert find_dockerfile(V1) == V1


@pytest.mark.parametrize(
    "name", [f"elsewhere/{os.path.basename(V1)}", f"/docker/{os.path.basename(V1)}", "docker", "docker/"]
)
def test_another_folder_is_not_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError):
        find_dockerfile(name)


# ---------------------------------------------------------------- docker build


def test_the_plain_command_is_the_original_s() -> None:
    argv = image_command()
    assert argv[:6] == ["docker", "build", "--no-cache", "--pull", "-t", "perfzero/tensorflow"]
    assert argv[6:10] == ["--build-arg", "local_tensorflow_pip_spec=EMPTY", "--build-arg", "extra_pip_specs="]
    assert argv[10] == "-f"
    assert argv[11].endswith(V1)
    assert argv[12:] == ["workspace/resources"]


def test_every_flag_reaches_docker() -> None:
    argv = image_command(
        dockerfile_path=V2,
        workspace="my work",
        tensorflow_pip_spec="tensorflow==2.20.0",
        extra_pip_specs="a==1;b==2",
        docker_tag="me/it:1",
        extra_docker_build_args=("arg0", "", "arg1=value with space"),
    )
    arguments = [argv[number + 1] for number, word in enumerate(argv) if word == "--build-arg"]
    assert arguments == [
        "tensorflow_pip_spec=tensorflow==2.20.0",
        "local_tensorflow_pip_spec=EMPTY",
        "extra_pip_specs=a==1 b==2",
        "arg0",
        "arg1=value with space",
    ]
    assert argv[5] == "me/it:1"
    assert argv[-1] == os.path.join("my work", "resources")


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/x/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl",
        "file:///x/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl",
        "https://host/x/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl?signature=secret#x",
        "s3://bucket/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl",
    ],
)
def test_a_wheel_is_named_as_it_lies_in_the_context(url: str) -> None:
    name = "tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl"
    assert build_tensorflow_spec(url) == (name, name)
    argv = image_command(tensorflow_pip_spec=url)
    assert f"tensorflow_pip_spec={name}" in argv
    assert f"local_tensorflow_pip_spec={name}" in argv
    assert not [word for word in argv if "secret" in word]


@pytest.mark.parametrize("url", ["gs://bucket/x/", "https://host/tensorflow.whl", "file:///x/tensorflow-2.20.0.tar.gz"])
def test_a_url_that_names_no_wheel(url: str) -> None:
    with pytest.raises(UsageError, match="does not name a wheel") as caught:
        build_tensorflow_spec(url)
    assert ".whl" in (caught.value.hint or "")


@pytest.mark.parametrize("spec", [None, ""])
def test_without_a_spec_the_dockerfile_decides(spec: str | None) -> None:
    assert build_tensorflow_spec(spec) == (None, None)
    assert not [word for word in image_command(tensorflow_pip_spec=spec) if word.startswith("tensorflow_pip_spec")]


# ---------------------------------------------------------------- pip's words


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("", ()),
        (";", ()),
        ("a==1;b==2", ("a==1", "b==2")),
        (" numpy >= 1.2 ; ", ("numpy>=1.2",)),
        ("a[x,y]~=1.0;b", ("a[x,y]~=1.0", "b")),
    ],
)
def test_odd_lists_of_specs(text: str, specs: tuple[str, ...]) -> None:
    assert parse_pip_specs(text) == specs


@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]*(==[0-9.]+)?", fullmatch=True)))
def test_what_the_dockerfile_s_shell_splits_is_what_was_asked_for(specs: list[str]) -> None:
    (argument,) = [
        word for word in image_command(extra_pip_specs=";".join(specs)) if word.startswith("extra_pip_specs=")
    ]
    assert argument.removeprefix("extra_pip_specs=").split() == specs


# ---------------------------------------------------------------- TensorFlow 1

ONES = [
    "tensorflow==1.12.0",
    "tensorflow-gpu==1.15.5",
    "tensorflow ~= 1.15",
    "tensorflow<=1.15",
    "tensorflow<2",
    "tensorflow<2.0.0",
    "tf-nightly-gpu==1.14.1.dev1",
    "tensorflow-1.14.0-cp36-cp36m-linux_x86_64.whl",
    "tf_nightly_gpu-1.14.0-cp36-cp36m-linux_x86_64.whl",
]
TWOS = [
    None,
    "tensorflow",
    "tensorflow[and-cuda]",
    "tensorflow==2.12.0",
    "tensorflow==2.1.0",
    "tensorflow>=1.15",
    "tensorflow<2.20",
    "tf-nightly",
    "tf-nightly==2.21.0.dev1",
    "tensorflow-2.1.0-cp312-cp312-linux_x86_64.whl",
]


def test_tensorflow_1_is_recognised() -> None:
    assert [spec for spec in ONES if not is_tensorflow_1(spec)] == []
    assert [spec for spec in TWOS if is_tensorflow_1(spec)] == []


def test_tensorflow_1_does_not_fit_into_the_image_for_2() -> None:
    with pytest.raises(UsageError, match="is TensorFlow 1, and this Dockerfile is for TensorFlow 2") as caught:
        build_setup(SetupRequest(dockerfile_path=V2, tensorflow_pip_spec="tensorflow==1.12.0"))
    assert V1 in (caught.value.hint or "")


def test_the_document_s_own_example_is_taken_and_explained() -> None:
    setup = build_setup(SetupRequest(tensorflow_pip_spec="tensorflow==1.12.0"))
    (remark,) = build_remarks(setup)
    assert "python3.6" in remark
    assert build_remarks(build_setup(SetupRequest(tensorflow_pip_spec="tensorflow==2.20.0"))) == []


def test_a_dockerfile_of_the_user_s_may_do_what_it_likes(tmp_path: Path) -> None:
    file = tmp_path / os.path.basename(V2)
    file.write_text("FROM scratch\n")
    setup = build_setup(SetupRequest(dockerfile_path=str(file), tensorflow_pip_spec="tensorflow==1.12.0"))
    assert build_remarks(setup) == []


def test_a_key_that_opens_nothing_is_mentioned() -> None:
    (remark,) = build_remarks(build_setup(SetupRequest(gcloud_key_file_url="file:///key.json")))
    assert "not used" in remark
    wheel = "gs://b/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl"
    assert build_remarks(build_setup(SetupRequest(gcloud_key_file_url="file:///k", tensorflow_pip_spec=wheel))) == []


# ---------------------------------------------------------------- site packages


def test_folders_and_their_new_names(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    source = str(tmp_path / "src")
    assert parse_site_packages(f"{source}:models, {source}/ ,", "w/site-packages") == (
        (source, "w/site-packages/models"),
        (f"{source}/", "w/site-packages/src"),
    )
    assert parse_site_packages("", "w") == ()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../x"])
def test_a_new_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="does not name a folder"):
        parse_site_packages(f"{tmp_path}:{name}", "w")


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="there is no folder /no/such"):
        parse_site_packages("/no/such:x", "w")


# ---------------------------------------------------------------- disks

# As `lsblk --json --output NAME,TYPE,MOUNTPOINT` prints it on a machine with a boot disk and four local ones
DISKS = {
    "blockdevices": [
        {"name": "loop0", "type": "loop", "mountpoint": "/snap/core20/1974"},
        {
            "name": "sda",
            "type": "disk",
            "mountpoint": None,
            "children": [{"name": "sda1", "type": "part", "mountpoint": "/"}],
        },
        {"name": "nvme0n1", "type": "disk", "mountpoint": None},
        {"name": "nvme0n2", "type": "disk", "mountpoint": None},
    ]
}


def disks_with(*more: object) -> str:
    return json.dumps({"blockdevices": [*DISKS["blockdevices"], *more]})


def test_free_nvme_disks_are_found() -> None:
    assert parse_free_disks(disks_with()) == ("/dev/nvme0n1", "/dev/nvme0n2")


@pytest.mark.parametrize(
    "disk",
    [
        {"name": "nvme1n1", "type": "disk", "mountpoint": "/home"},
        {"name": "nvme1n1", "type": "disk", "mountpoint": None, "children": [{"name": "nvme1n1p1", "type": "part"}]},
        {"name": "nvme1n1", "type": "disk", "mountpoint": None, "children": [{"name": "md0", "type": "raid0"}]},
        {"name": "nvme1n1p1", "type": "part", "mountpoint": None},
        {"name": "sdb", "type": "disk", "mountpoint": None},
    ],
    ids=["mounted", "partitioned", "in an array", "a partition", "no NVMe"],
)
def test_a_disk_in_use_is_never_formatted(disk: object) -> None:
    """The original took every NVMe disk, the one that it ran from included."""
    assert parse_free_disks(disks_with(disk)) == ("/dev/nvme0n1", "/dev/nvme0n2")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "lsblk: no", '{"blockdevices": [{}]}', '{"blockdevices": [1]}']
)
def test_nonsense_from_lsblk(text: str) -> None:
    with pytest.raises(InfrastructureError, match="lsblk did not print"):
        parse_free_disks(text)


def test_several_disks_become_one_array() -> None:
    assert [shlex.join(one) for one in build_drive_commands(["/dev/a", "/dev/b"], "/data", as_root=True)] == [
        "mdadm --create /dev/md0 --run --level=0 --raid-devices=2 /dev/a /dev/b",
        "mkfs.ext4 -F /dev/md0",
        "mkdir -p /data",
        "mount /dev/md0 /data",
        "chmod a+w /data",
    ]


def test_one_disk_needs_no_array_and_a_user_needs_sudo() -> None:
    assert [shlex.join(one) for one in build_drive_commands(["/dev/a"], "/my data", as_root=False)] == [
        "sudo mkfs.ext4 -F /dev/a",
        "sudo mkdir -p '/my data'",
        "sudo mount /dev/a '/my data'",
        "sudo chmod a+w '/my data'",
    ]


# ---------------------------------------------------------------- entering


def test_the_way_into_the_image_is_a_command_line() -> None:
    words = shlex.split(render_entry(SetupRequest(root_data_dir="/my data", docker_tag="me/it")))
    assert words[:3] == ["docker", "run", "--gpus"]
    assert "/my data:/my data" in words
    assert words[-2:] == ["me/it", "bash"]


# ---------------------------------------------------------------- the Dockerfiles themselves


def instructions(text: str) -> list[tuple[str, str]]:
    """Word and rest of each instruction, comments gone, continued lines joined as Docker does."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def dockerfile(name: str) -> list[tuple[str, str]]:
    return instructions(Path(find_dockerfile(name)).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [V1, V2])
class TestDockerfiles:
    def test_only_known_instructions(self, name: str) -> None:
        assert {word for word, _ in dockerfile(name)} <= {"ARG", "FROM", "ENV", "COPY", "RUN", "WORKDIR"}

    def test_what_setup_says_is_heard(self, name: str) -> None:
        """An ARG is known only behind the FROM of its stage."""
        found = dockerfile(name)
        last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
        arguments = {rest.split("=")[0] for word, rest in found[last:] if word == "ARG"}
        assert arguments == {"tensorflow_pip_spec", "local_tensorflow_pip_spec", "extra_pip_specs"}
        assert found[0][0] == "ARG"
        assert found[0][1].startswith("base_image=")
        assert found[last] == ("FROM", "${base_image}")

    def test_no_tag_is_latest(self, name: str) -> None:
        images = [rest.split()[0] for word, rest in dockerfile(name) if word == "FROM"]
        images += [rest.partition("=")[2] for word, rest in dockerfile(name) if rest.startswith("base_image=")]
        assert [image for image in images if ":" not in image] == ["${base_image}"]

    def test_every_run_is_a_shell_script(self, name: str) -> None:
        for word, rest in dockerfile(name):
            if word == "RUN":
                done = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr

    def test_assay_is_installed_from_the_context(self, name: str) -> None:
        found = dockerfile(name)
        assert ("COPY", ". /resources/") in found
        assert [rest for word, rest in found if word == "RUN" and "/resources/assay-*.whl" in rest]


def install(
    name: str, tmp_path: Path, tensorflow: str, local: str = "EMPTY", extra: str = ""
) -> tuple[int, list[list[str]]]:
    """Run the Dockerfile's own install step with stand-ins for the two Pythons."""
    (script,) = [rest for word, rest in dockerfile(name) if word == "RUN" and "assay-*.whl" in rest]
    context = tmp_path / "resources"
    context.mkdir(exist_ok=True)
    (context / "assay-0.1.0-py3-none-any.whl").touch()
    tools = StandIns(tmp_path / "bin").put("pip", "python3", "python3.6", "assay")
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("/resources/", f"{context}/")],
        env={
            "PATH": f"{tools.folder}:/usr/bin:/bin",
            "tensorflow_pip_spec": tensorflow,
            "local_tensorflow_pip_spec": local,
            "extra_pip_specs": extra,
        },
        check=False,
    )
    named = [[word.replace(f"{context}/", "/resources/") for word in call] for call in tools.calls]
    return done.returncode, named


ASSAY = "/resources/assay-0.1.0-py3-none-any.whl[all]"


def test_the_image_for_2_installs_all_in_one_call(tmp_path: Path) -> None:
    code, calls = install(V2, tmp_path, "tensorflow[and-cuda]", extra="a==1 b==2")
    assert code == 0
    assert calls == [["pip", "install", ASSAY, "tensorflow[and-cuda]", "a==1", "b==2"]]


def test_the_image_for_2_takes_a_wheel(tmp_path: Path) -> None:
    _, calls = install(V2, tmp_path, "x.whl", local="x.whl")
    assert calls == [["pip", "install", ASSAY, "/resources/x.whl"]]


def test_the_image_for_1_is_by_default_the_newest_with_keras_2(tmp_path: Path) -> None:
    code, calls = install(V1, tmp_path, "tensorflow[and-cuda]", extra="a==1")
    assert code == 0
    assert calls[0] == ["pip", "install", ASSAY, "tensorflow[and-cuda]", "tf-keras", "a==1"]
    assert calls[1][0] == "python3"
    assert calls[2] == ["assay", "--version"]


def test_nightly_brings_its_own_keras(tmp_path: Path) -> None:
    _, calls = install(V1, tmp_path, "tf-nightly")
    assert calls[0] == ["pip", "install", ASSAY, "tf-nightly"]


@pytest.mark.parametrize("spec", [*ONES, *TWOS])
def test_setup_and_dockerfile_agree_on_what_tensorflow_1_is(spec: str | None, tmp_path: Path) -> None:
    text = "".join((spec or "tensorflow").split())
    local = text if text.endswith(".whl") else "EMPTY"
    code, calls = install(V1, tmp_path, text, local)
    assert code == 0
    is_old = calls[0][:3] == ["python3.6", "-m", "pip"]
    assert is_old == is_tensorflow_1(text)
    installed = [call for call in calls if "install" in call and (f"/resources/{text}" in call or text in call)]
    assert len(installed) == 1
    assert [call for call in calls if ASSAY in call], "Assay is in every image"


@pytest.mark.parametrize("spec", ["tensorflow==1.15.5", "tensorflow"])
def test_a_failed_installation_fails_the_build(spec: str, tmp_path: Path) -> None:
    (script,) = [rest for word, rest in dockerfile(V1) if word == "RUN" and "assay-*.whl" in rest]
    (tmp_path / "assay-0.1.0-py3-none-any.whl").touch()
    tools = StandIns(tmp_path / "bin").put("pip", "python3", "python3.6", "assay")
    tools.answer("pip", code=1)
    env = {"PATH": f"{tools.folder}:/usr/bin:/bin", "tensorflow_pip_spec": spec, "local_tensorflow_pip_spec": "EMPTY"}
    script = script.replace("/resources/", f"{tmp_path}/")
    done = subprocess.run(["/bin/sh", "-c", script], env=env | {"extra_pip_specs": ""}, check=False)
    assert done.returncode != 0


# ---------------------------------------------------------------- the command, with a stand-in for docker

WHEEL = "tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl"
NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"  # docker 28
)
NOT_ALLOWED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/version": dial unix /var/run/docker.sock: connect: permission denied\n'
)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return use_stand_ins(tmp_path, monkeypatch, "docker")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Cli:
    return build_call(capfd, "perfzero", "setup")


def builds(tools: StandIns) -> list[list[str]]:
    return [argv for argv in tools.calls if argv[1] in {"build", "load"}]


# ---------------------------------------------------------------- flags


def test_every_flag_has_the_original_s_name_and_default() -> None:
    parsed = vars(setup.build_parser().parse_args([]))
    assert parsed == {
        "dockerfile_path": "docker/Dockerfile_ubuntu_1804_tf_v1",
        "workspace": "workspace",
        "gcloud_key_file_url": "",
        "root_data_dir": "/data",
        "gce_nvme_raid": None,
        "tensorflow_pip_spec": None,
        "extra_pip_specs": "",
        "docker_tag": "perfzero/tensorflow",
        "site_package_downloads": "",
        "extra_docker_build_args": [],
        "dry_run": False,
    }


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["perfzero", "setup", "--no-such-flag"]) == 2
    assert "assay perfzero setup: error: unrecognized arguments: --no-such-flag" in capsys.readouterr().err


# ---------------------------------------------------------------- dry run


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--dockerfile_path=docker/Dockerfile_ubuntu_1804_tf_v2"],
        ["--tensorflow_pip_spec=tensorflow==1.12.0"],
        ["--dockerfile_path=gs://bucket/image.tar.gz", "--gcloud_key_file_url=file:///no/such/key.json"],
        [f"--tensorflow_pip_spec=https://127.0.0.1:1/{WHEEL}?token=secret"],
        ["--workspace=/no/such/place"],
    ],
)
def test_a_dry_run_does_nothing(arguments: list[str], tmp_path: Path, tools: StandIns, call: Cli) -> None:
    before = walk(tmp_path)
    result = call(*arguments, "--dry-run")
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith(("docker build ", "docker load "))
    assert "secret" not in result.out + result.err
    assert tools.calls == []
    assert walk(tmp_path) == before


def test_a_dry_run_shows_every_step(tools: StandIns, call: Cli) -> None:
    key, url = "file:///no/such/key.json", f"gs://bucket/{WHEEL}"
    result = call("-n", f"--tensorflow_pip_spec={url}", f"--gcloud_key_file_url={key}", "--extra_pip_specs=a==1;b==2")
    lines = result.out.splitlines()
    assert lines[:3] == [
        f"# fetch the key {key} to a private file, for this call only",
        f"# pack Assay as workspace/resources/{build_wheel_name()}",
        f"# fetch {url} to workspace/resources/{WHEEL}",
    ]
    assert lines[3].startswith(
        "docker build --no-cache --pull -t perfzero/tensorflow "
        f"--build-arg tensorflow_pip_spec={WHEEL} --build-arg local_tensorflow_pip_spec={WHEEL} "
        "--build-arg 'extra_pip_specs=a==1 b==2' -f /"
    )
    assert len(lines) == 4


def test_a_dry_run_needs_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Cli) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("-n").code == 0
    missing = call()
    assert missing.code == 2
    assert missing.err == "assay: docker was not found on PATH\n  install it: https://docs.docker.com/engine/install\n"


# ---------------------------------------------------------------- building


def test_an_image_is_built_with_assay_in_its_context(tools: StandIns, call: Cli) -> None:
    tools.answer("docker", "build", err="#1 [internal] load build definition\n")
    result = call("--dockerfile_path=docker/Dockerfile_ubuntu_1804_tf_v2", "--extra_pip_specs=a==1;b==2")
    assert result.code == 0
    (argv,) = builds(tools)
    assert "extra_pip_specs=a==1 b==2" in argv
    assert Path(argv[argv.index("-f") + 1]).name == "Dockerfile_ubuntu_1804_tf_v2"
    assert sorted(os.listdir(argv[-1])) == ["EMPTY", build_wheel_name()]
    with zipfile.ZipFile(Path(argv[-1]) / build_wheel_name()) as archive:
        assert "assay/compat/perfzero/setup.py" in archive.namelist()
    assert "#1 [internal] load build definition" in result.err, "docker's own words are seen"
    assert "built perfzero/tensorflow" in result.out
    assert "docker run --gpus all -it --rm" in result.out
    times = json.loads(result.err.partition("Setup time in seconds by operation:\n")[2])
    assert {"build_docker", "create_drive"} <= times.keys()


def test_the_wheel_of_another_version_goes(tools: StandIns, call: Cli) -> None:
    os.makedirs("workspace/resources")
    for name in ("assay-0.0.1-py3-none-any.whl", "other-1.0-py3-none-any.whl"):
        Path("workspace/resources", name).touch()
    assert call().code == 0
    assert sorted(os.listdir("workspace/resources")) == sorted(
        ["EMPTY", build_wheel_name(), "other-1.0-py3-none-any.whl"]
    )


def test_a_wheel_is_copied_into_the_context(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    wheel = tmp_path / WHEEL
    for content in ("monday", "tuesday"):  # a nightly changes under its name
        wheel.write_text(content)
        assert call(f"--tensorflow_pip_spec={wheel.as_uri()}").code == 0
        assert Path("workspace/resources", WHEEL).read_text() == content
    assert f"local_tensorflow_pip_spec={WHEEL}" in builds(tools)[-1]


def test_a_wheel_that_is_not_there_builds_nothing(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    result = call(f"--tensorflow_pip_spec={(tmp_path / WHEEL).as_uri()}")
    assert result.code in {2, 4}
    assert WHEEL in result.err
    assert "bug in Assay" not in result.err
    assert builds(tools) == []


@pytest.mark.parametrize(
    ("words", "hint"), [(NO_DAEMON, "sudo systemctl start docker"), (NOT_ALLOWED, "sudo usermod -a -G docker")]
)
def test_a_docker_that_does_not_listen(words: str, hint: str, tools: StandIns, call: Cli) -> None:
    tools.answer("docker", "version", code=1, err=words)
    result = call()
    assert result.code == 2
    assert words.strip() in result.err
    assert hint in result.err
    assert builds(tools) == []
    assert not os.path.exists("workspace"), "nothing was begun"


def test_a_build_that_fails(tools: StandIns, call: Cli) -> None:
    tools.answer("docker", "build", code=1, err="ERROR: failed to solve: process did not complete successfully\n")
    result = call()
    assert result.code == 4
    assert "ERROR: failed to solve" in result.err
    assert result.err.endswith("assay: docker build failed with exit code 1\n")
    assert "built" not in result.out


def test_a_workspace_that_cannot_be_made(tools: StandIns, call: Cli) -> None:
    Path("workspace").write_text("a file")
    result = call()
    assert result.code == 4
    assert "workspace" in result.err
    assert builds(tools) == []


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--dockerfile_path=docker/Dockerfile_ubuntu_1804_tf_v3", "did you mean 'docker/Dockerfile_ubuntu_1804_tf_v2'"),
        ("--dockerfile_path=image.tar.gz", "there is no file image.tar.gz"),
        ("--tensorflow_pip_spec=gs://bucket/folder/", "does not name a wheel"),
        ("--site_package_downloads=/no/such:x", "there is no folder /no/such"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_cannot_be_meant_is_refused_first(flag: str, words: str, dry: bool, tools: StandIns, call: Cli) -> None:
    result = call(flag, *(["-n"] if dry else []))
    assert result.code == 2
    assert words in result.err
    assert tools.calls == []
    assert os.listdir() == []


# ---------------------------------------------------------------- saved images


def test_a_saved_image_is_fetched_and_loaded_and_not_kept(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    image = tmp_path / "my image.tar.gz"
    image.write_bytes(b"layers")
    tools.answer("docker", "load", out="Loaded image: perfzero/tensorflow:latest\n")
    result = call(f"--dockerfile_path={image.as_uri()}")
    assert result.code == 0
    (argv,) = builds(tools)
    assert argv[:3] == ["docker", "load", "--input"]
    assert argv[3].startswith("workspace/docker-image-")
    assert "Loaded image: perfzero/tensorflow:latest" in result.out
    assert os.listdir("workspace") == []
    assert image.exists()


def test_a_saved_image_here_is_loaded_from_where_it_lies(tools: StandIns, call: Cli) -> None:
    Path("image.tar.gz").write_bytes(b"layers")
    assert call("--dockerfile_path=image.tar.gz").code == 0
    assert builds(tools) == [["docker", "load", "--input", "image.tar.gz"]]
    assert os.listdir() == ["image.tar.gz"]


def test_no_image_at_all(tools: StandIns, call: Cli) -> None:
    assert call("--dockerfile_path=").code == 0
    assert tools.calls == []


# ---------------------------------------------------------------- site packages and the key


def test_folders_are_copied_once(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    source = tmp_path / "src"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "a.py").write_text("1")
    flags = ("--dockerfile_path=", f"--site_package_downloads={source}:models")
    assert f"# copy {source} to workspace/site-packages/models" in call(*flags, "-n").out
    assert call(*flags).code == 0
    copy = Path("workspace/site-packages/models/inner/a.py")
    copy.write_text("my edit")
    again = call(*flags)
    assert "exists and is kept" in again.err
    assert copy.read_text() == "my edit"
    assert os.listdir("workspace/site-packages") == ["models"]


def test_the_key_is_private_and_gone_afterwards(
    tmp_path: Path, tools: StandIns, call: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel of gs:// comes from a stand-in for the object store, which looks at the key."""
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account"}')
    seen: list[tuple[str, int]] = []
    real = setup.fetch

    def fetch(url: str, target: str, **options: object) -> object:
        if url.startswith("gs://"):
            path = os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
            seen.append((Path(path).read_text(), os.stat(os.path.dirname(path)).st_mode & 0o777))
            Path(target).write_text("wheel")
            return None
        return real(url, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(setup, "fetch", fetch)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    result = call(f"--tensorflow_pip_spec=gs://bucket/{WHEEL}", f"--gcloud_key_file_url={key.as_uri()}")
    assert result.code == 0
    assert seen == [('{"type": "service_account"}', 0o700)]
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ
    assert os.listdir(tmp_path / "tmp") == []
    assert not [path for path in walk(Path("workspace")) if "key" in path]


# ---------------------------------------------------------------- the data disk


def put_disks(tools: StandIns, *names: str) -> None:
    tools.put("lsblk", "mdadm", "mkfs.ext4", "mkdir", "mount", "chmod", "sudo")
    disks = [{"name": name, "type": "disk", "mountpoint": None} for name in names]
    tools.answer("lsblk", out=json.dumps({"blockdevices": disks}))


def test_disks_become_the_data_folder(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    put_disks(tools, "sda", "nvme0n1", "nvme0n2")
    flags = ("--dockerfile_path=", "--gce_nvme_raid=all", f"--root_data_dir={tmp_path}/data")
    shown = call(*flags, "--dry-run").out.splitlines()
    assert [argv[0] for argv in tools.calls] == ["lsblk"], "a dry run looks and does not touch"
    assert call(*flags).code == 0
    done = tools.calls[2:]
    assert [argv[-1] for argv in done if argv[0] == "sudo" or os.geteuid() == 0] == [
        "/dev/nvme0n2",
        "/dev/md0",
        f"{tmp_path}/data",
        f"{tmp_path}/data",
        f"{tmp_path}/data",
    ]
    assert shown == [" ".join(argv) for argv in done]


def test_a_failing_step_ends_it(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    put_disks(tools, "nvme0n1", "nvme0n2")
    for name in ("mdadm", "sudo"):
        tools.answer(name, "mdadm", code=1, err="mdadm: cannot open /dev/nvme0n1: Device or resource busy\n")
    result = call("--gce_nvme_raid=1", f"--root_data_dir={tmp_path}/data")
    assert result.code == 4
    assert "mdadm failed with exit code 1" in result.err
    assert [argv for argv in tools.calls if "mkfs.ext4" in argv] == []
    assert builds(tools) == []


@pytest.mark.parametrize("dry", [True, False])
def test_no_free_disk(dry: bool, tmp_path: Path, tools: StandIns, call: Cli) -> None:
    put_disks(tools, "sda")
    result = call("--gce_nvme_raid=1", f"--root_data_dir={tmp_path}/data", *(["-n"] if dry else []))
    assert result.code == 2
    assert "there is no free NVMe disk here" in result.err


def test_a_mounted_data_folder_is_left_alone(tools: StandIns, call: Cli) -> None:
    put_disks(tools, "nvme0n1")
    result = call("--dockerfile_path=", "--gce_nvme_raid=1", "--root_data_dir=/proc")
    assert result.code == 0
    assert "/proc is already a mount point" in result.err
    assert tools.calls == []
