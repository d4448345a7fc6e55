"""What setup.py's flags mean, and the command lines that come of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stand_ins import StandIns

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
