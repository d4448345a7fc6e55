"""What setup.py's flags mean, the command lines that come of them, and the Dockerfiles that come with us."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.stand_ins import StandIns, build_call, use_stand_ins, walk

from assay.compat.perfzero import setup
from assay.compat.perfzero.setup import Setup, build_parser, find_dockerfile, is_tensorflow_1, parse_free_disks
from assay.compat.perfzero.wheel import build_wheel_name
from assay.errors import InfrastructureError, NotFoundError, UsageError

V1, V2 = "docker/Dockerfile_ubuntu_1804_tf_v1", "docker/Dockerfile_ubuntu_1804_tf_v2"
WHEEL = "tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl"


def understand(*words: str) -> Setup:
    return Setup(build_parser().parse_args(words))


def build_arguments(*words: str) -> list[str]:
    """The arguments of the image that docker builds."""
    argv = understand(*words).build_image_command("Dockerfile")
    return [argv[number + 1] for number, word in enumerate(argv) if word == "--build-arg"]


def test_the_documented_names_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (V1, V2, os.path.basename(V2)):
        found = Path(find_dockerfile(name))
        assert found.is_absolute()
        assert found.name == os.path.basename(name)
        assert "FROM" in found.read_text()
    for name in (f"elsewhere/{os.path.basename(V1)}", f"/docker/{os.path.basename(V1)}", "docker", "docker/"):
        with pytest.raises(NotFoundError):
            find_dockerfile(name)
    (tmp_path / "docker").mkdir()
    (tmp_path / V1).write_text("FROM scratch\n")
    assert find_dockerfile(V1) == V1, "a file of the user's comes first"


# ---------------------------------------------------------------- docker build


def test_every_flag_has_the_original_s_name_and_default_and_reaches_docker() -> None:
    plain = understand()
    assert vars(plain.flags) == {
        "dockerfile_path": V1,
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
    assert shlex.join(plain.build_image_command("D")) == (
        "docker build --no-cache --pull -t perfzero/tensorflow --build-arg local_tensorflow_pip_spec=EMPTY "
        "--build-arg extra_pip_specs= -f D workspace/resources"
    )
    words = ["--workspace=my work", "--docker_tag=me/it:1", f"--dockerfile_path={V2}"]
    argv = understand(*words).build_image_command("D")
    assert (argv[5], argv[-1]) == ("me/it:1", os.path.join("my work", "resources"))
    words = ["--tensorflow_pip_spec=tensorflow==2.20.0", "--extra_pip_specs=a[x,y]~=1.0; b >= 2 ;;"]
    assert build_arguments(*words, "--extra_docker_build_args", "arg0", "", "arg1=value with space") == [
        "tensorflow_pip_spec=tensorflow==2.20.0",
        "local_tensorflow_pip_spec=EMPTY",
        "extra_pip_specs=a[x,y]~=1.0 b>=2",
        "arg0",
        "arg1=value with space",
    ]


def test_a_wheel_is_named_as_it_is_in_the_context() -> None:
    for url in (f"gs://bucket/x/{WHEEL}", f"file:///x/{WHEEL}", f"https://host/x/{WHEEL}?signature=secret#x"):
        arguments = build_arguments(f"--tensorflow_pip_spec={url}")
        assert arguments[:2] == [f"tensorflow_pip_spec={WHEEL}", f"local_tensorflow_pip_spec={WHEEL}"]
        assert not [word for word in arguments if "secret" in word]
    for url in ("gs://bucket/x/", "https://host/tensorflow.whl", "file:///x/tensorflow-2.20.0.tar.gz"):
        with pytest.raises(UsageError, match=r"(?s)does not name a wheel.*\.whl"):
            understand(f"--tensorflow_pip_spec={url}")


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


def test_tensorflow_1_is_recognised_and_does_not_fit_into_the_image_for_2(tmp_path: Path) -> None:
    assert [spec for spec in ONES if not is_tensorflow_1(spec)] == []
    assert [spec for spec in [None, *TWOS] if is_tensorflow_1(spec)] == []
    old = "--tensorflow_pip_spec=tensorflow==1.12.0"
    with pytest.raises(UsageError, match="is TensorFlow 1, and this Dockerfile is for TensorFlow 2") as caught:
        understand(f"--dockerfile_path={V2}", old)
    assert V1 in (caught.value.hint or "")
    (remark,) = understand(old).remarks
    assert "python3.6" in remark, "the document's own example is taken and explained"
    assert understand("--tensorflow_pip_spec=tensorflow==2.20.0").remarks == []
    own = tmp_path / os.path.basename(V2)
    own.write_text("FROM scratch\n")
    assert understand(f"--dockerfile_path={own}", old).remarks == [], "a Dockerfile of the user's may do what it likes"


def test_a_key_that_opens_nothing_is_mentioned() -> None:
    (remark,) = understand("--gcloud_key_file_url=file:///key.json").remarks
    assert "not used" in remark
    assert understand("--gcloud_key_file_url=file:///k", f"--tensorflow_pip_spec=gs://b/{WHEEL}").remarks == []


def test_folders_and_their_new_names(tmp_path: Path) -> None:
    source = str(tmp_path)
    assert understand("--workspace=w", f"--site_package_downloads={source}:models, {source}/ ,").copies == [
        (source, "w/site-packages/models"),
        (f"{source}/", f"w/site-packages/{tmp_path.name}"),
    ]
    assert understand().copies == []
    for name in ("..", ".", "a/b"):
        with pytest.raises(UsageError, match="does not name a folder"):
            understand(f"--site_package_downloads={source}:{name}")


# ---------------------------------------------------------------- disks

# As `lsblk --json --output NAME,TYPE,MOUNTPOINT` prints it on a machine with a boot disk and four local ones
DISKS = [
    {"name": "loop0", "type": "loop", "mountpoint": "/snap/core20/1974"},
    {"name": "sda", "type": "disk", "mountpoint": None, "children": [{"name": "sda1", "mountpoint": "/"}]},
    {"name": "nvme0n1", "type": "disk", "mountpoint": None},
    {"name": "nvme0n2", "type": "disk", "mountpoint": None},
]


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
    assert parse_free_disks(json.dumps({"blockdevices": [*DISKS, disk]})) == ("/dev/nvme0n1", "/dev/nvme0n2")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"blockdevices": [{}]}', '{"blockdevices": [1]}'])
def test_nonsense_from_lsblk(text: str) -> None:
    with pytest.raises(InfrastructureError, match="lsblk did not print"):
        parse_free_disks(text)


def test_several_disks_become_one_array_and_a_user_needs_sudo() -> None:
    build = setup.build_drive_commands
    assert [shlex.join(one) for one in build(["/dev/a", "/dev/b"], "/data", as_root=True)] == [
        "mdadm --create /dev/md0 --run --level=0 --raid-devices=2 /dev/a /dev/b",
        "mkfs.ext4 -F /dev/md0",
        "mkdir -p /data",
        "mount /dev/md0 /data",
        "chmod a+w /data",
    ]
    assert [shlex.join(one) for one in build(["/dev/a"], "/my data", as_root=False)] == [
        "sudo mkfs.ext4 -F /dev/a",
        "sudo mkdir -p '/my data'",
        "sudo mount /dev/a '/my data'",
        "sudo chmod a+w '/my data'",
    ]


# ---------------------------------------------------------------- the Dockerfiles themselves


def dockerfile(name: str) -> list[tuple[str, str]]:
    """Word and rest of each instruction, comments gone, continued lines joined as Docker does."""
    text = Path(find_dockerfile(name)).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


@pytest.mark.parametrize("name", [V1, V2])
def test_a_dockerfile_takes_what_setup_gives_it(name: str) -> None:
    """An ARG is known only behind the FROM of its stage."""
    found = dockerfile(name)
    assert {word for word, _ in found} <= {"ARG", "FROM", "ENV", "COPY", "RUN", "WORKDIR"}
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    arguments = {rest.split("=")[0] for word, rest in found[last:] if word == "ARG"}
    assert arguments == {"tensorflow_pip_spec", "local_tensorflow_pip_spec", "extra_pip_specs"}
    assert found[0][0] == "ARG"
    assert found[0][1].startswith("base_image=")
    assert found[last] == ("FROM", "${base_image}")
    images = [rest.split()[0] for word, rest in found if word == "FROM"]
    images += [rest.partition("=")[2] for _, rest in found if rest.startswith("base_image=")]
    assert [image for image in images if ":" not in image] == ["${base_image}"], "no tag is latest"
    assert ("COPY", ". /resources/") in found
    scripts = [rest for word, rest in found if word == "RUN"]
    assert any("/resources/assay-*.whl" in script for script in scripts)
    for script in scripts:
        subprocess.run(["/bin/sh", "-n", "-c", script], check=True)


ASSAY = "/resources/assay-0.1.0-py3-none-any.whl[all]"


class Install:
    """The install step of a Dockerfile, with stand-ins for the two Pythons."""

    def __init__(self, tmp_path: Path) -> None:
        self.context = tmp_path
        (tmp_path / "assay-0.1.0-py3-none-any.whl").touch()
        self.tools = StandIns(tmp_path / "bin").put("pip", "python3", "python3.6", "assay")

    def __call__(self, name: str, tensorflow: str, local: str = "EMPTY", extra: str = "") -> list[list[str]] | None:
        """How the programs were called; None: the step failed."""
        (script,) = [rest for word, rest in dockerfile(name) if word == "RUN" and "assay-*.whl" in rest]
        env = {"tensorflow_pip_spec": tensorflow, "local_tensorflow_pip_spec": local, "extra_pip_specs": extra}
        env["PATH"] = f"{self.tools.folder}:/usr/bin:/bin"
        before = len(self.tools.calls)
        script = script.replace("/resources/", f"{self.context}/")
        if subprocess.run(["/bin/sh", "-c", script], env=env, check=False).returncode:
            return None
        return [[word.replace(f"{self.context}/", "/resources/") for word in c] for c in self.tools.calls[before:]]


def test_what_the_images_install(tmp_path: Path) -> None:
    install = Install(tmp_path)
    two = install(V2, "tensorflow[and-cuda]", extra="a==1 b==2")
    assert two == [["pip", "install", ASSAY, "tensorflow[and-cuda]", "a==1", "b==2"]]
    assert install(V2, "x.whl", local="x.whl") == [["pip", "install", ASSAY, "/resources/x.whl"]]
    one = install(V1, "tensorflow[and-cuda]", extra="a==1")
    assert one is not None
    assert one[0] == ["pip", "install", ASSAY, "tensorflow[and-cuda]", "tf-keras", "a==1"], "the newest with Keras 2"
    assert [one[1][0], one[2]] == ["python3", ["assay", "--version"]]
    assert (install(V1, "tf-nightly") or [])[0] == ["pip", "install", ASSAY, "tf-nightly"], "it brings its own Keras"
    install.tools.answer("pip", code=1)
    assert install(V1, "tensorflow==1.15.5") is install(V1, "tensorflow") is None, "a failure fails the build"


def test_setup_and_dockerfile_agree_on_what_tensorflow_1_is(tmp_path: Path) -> None:
    install = Install(tmp_path)
    for spec in [*ONES, *TWOS]:
        text = "".join(spec.split())
        calls = install(V1, text, text if text.endswith(".whl") else "EMPTY")
        assert calls is not None
        assert (calls[0][:3] == ["python3.6", "-m", "pip"]) == is_tensorflow_1(text), text
        installed = [call for call in calls if "install" in call and (f"/resources/{text}" in call or text in call)]
        assert len(installed) == 1
        assert [call for call in calls if ASSAY in call], "Assay is in every image"


# ---------------------------------------------------------------- the command, with a stand-in for docker

# docker 28
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"
NOT_ALLOWED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_wheel: Callable[[str], str]) -> StandIns:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(setup, "write_wheel", copy_wheel)
    return use_stand_ins(tmp_path, monkeypatch, "docker")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Cli:
    return build_call(capfd, "perfzero", "setup")


def builds(tools: StandIns) -> list[list[str]]:
    return [argv for argv in tools.calls if argv[1] in {"build", "load"}]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--dockerfile_path=gs://bucket/image.tar.gz", "--gcloud_key_file_url=file:///no/such/key.json"],
        [f"--tensorflow_pip_spec=https://127.0.0.1:1/{WHEEL}?token=secret", "--workspace=/no/such/place"],
    ],
)
def test_a_dry_run_does_nothing(
    arguments: list[str], tmp_path: Path, tools: StandIns, call: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nor does it need docker
    before = walk(tmp_path)
    result = call(*arguments, "--dry-run", code=0)
    assert result.out.splitlines()[-1].startswith(("docker build ", "docker load "))
    assert "secret" not in result.out + result.err
    assert tools.calls == []
    assert walk(tmp_path) == before
    missing = call(*arguments, code=2)
    assert "docker was not found on PATH\n  install it: https://docs.docker.com/engine/install" in missing.err


def test_a_dry_run_shows_every_step(tools: StandIns, call: Cli) -> None:
    key, url = "file:///no/such/key.json", f"gs://bucket/{WHEEL}"
    result = call("-n", f"--tensorflow_pip_spec={url}", f"--gcloud_key_file_url={key}", "--extra_pip_specs=a==1;b==2")
    lines = result.out.splitlines()
    assert lines[:3] == [
        f"# fetch the key {key} to a private file, for this call only",
        f"# pack Assay as workspace/resources/{build_wheel_name()}",
        f"# fetch {url} to workspace/resources/{WHEEL}",
    ]
    (build,) = lines[3:]
    assert build.startswith("docker build --no-cache --pull -t perfzero/tensorflow --build-arg ")
    assert "--build-arg 'extra_pip_specs=a==1 b==2' -f /" in build


def test_an_image_is_built_with_assay_in_its_context(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    os.makedirs("workspace/resources")
    for name in ("assay-0.0.1-py3-none-any.whl", "other-1.0-py3-none-any.whl"):
        Path("workspace/resources", name).touch()
    tools.answer("docker", "build", err="#1 [internal] load build definition\n")
    wheel = tmp_path / WHEEL
    for content in ("monday", "tuesday"):  # a nightly changes under its name
        wheel.write_text(content)
        flags = [f"--dockerfile_path={V2}", f"--tensorflow_pip_spec={wheel.as_uri()}", "--root_data_dir=/my data"]
        result = call(*flags, code=0)
        assert Path("workspace/resources", WHEEL).read_text() == content
    argv = builds(tools)[-1]
    assert f"local_tensorflow_pip_spec={WHEEL}" in argv
    assert Path(argv[argv.index("-f") + 1]).name == os.path.basename(V2)
    assert sorted(os.listdir(argv[-1])) == sorted(["EMPTY", build_wheel_name(), "other-1.0-py3-none-any.whl", WHEEL])
    assert "#1 [internal] load build definition" in result.err, "docker's own words are seen"
    assert "built perfzero/tensorflow" in result.out
    entry = shlex.split(result.out.splitlines()[-1])
    assert (entry[:3], entry[-2:]) == (["docker", "run", "--gpus"], ["perfzero/tensorflow", "bash"])
    assert "/my data:/my data" in entry
    times = json.loads(result.err.partition("Setup time in seconds by operation:\n")[2])
    assert {"build_docker", "create_drive"} <= times.keys()


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
    result = call(code=2)
    assert words.strip() in result.err
    assert hint in result.err
    assert builds(tools) == []
    assert not os.path.exists("workspace"), "nothing was begun"


def test_a_build_or_a_workspace_that_fails(tools: StandIns, call: Cli) -> None:
    tools.answer("docker", "build", code=1, err="ERROR: failed to solve: process did not complete successfully\n")
    result = call(code=4)
    assert "ERROR: failed to solve" in result.err
    assert result.err.endswith("assay: docker build failed with exit code 1\n")
    assert "built" not in result.out
    Path("file").write_text("in the way of a folder")
    assert "assay: file" in call("--workspace=file", code=4).err
    assert len(builds(tools)) == 1


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--no-such-flag", "assay perfzero setup: error: unrecognized arguments: --no-such-flag"),
        ("--dockerfile_path=docker/Dockerfile_ubuntu_1804_tf_v3", "did you mean 'docker/Dockerfile_ubuntu_1804_tf_v2'"),
        ("--dockerfile_path=image.tar.gz", "there is no file image.tar.gz"),
        ("--dockerfile_path=https://[::1/image.tar.gz", "--dockerfile_path: 'https://[::1/image.tar.gz' is not a URL"),
        ("--gcloud_key_file_url=http://me:key@[k", "--gcloud_key_file_url: 'http://***@[k' is not a URL"),
        ("--site_package_downloads=/no/such:x", "there is no folder /no/such"),
    ],
)
def test_what_cannot_be_meant_is_refused_first(flag: str, words: str, tools: StandIns, call: Cli) -> None:
    for more in ([], ["-n"]):
        assert words in call(flag, *more, code=2).err
    assert tools.calls == []
    assert os.listdir() == []


def test_a_saved_image_is_fetched_and_loaded_and_not_kept(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    image = tmp_path / "my image.tar.gz"
    image.write_bytes(b"layers")
    tools.answer("docker", "load", out="Loaded image: perfzero/tensorflow:latest\n")
    result = call(f"--dockerfile_path={image.as_uri()}", code=0)
    (argv,) = builds(tools)
    assert argv[:3] == ["docker", "load", "--input"]
    assert argv[3].startswith("workspace/docker-image-")
    assert "Loaded image: perfzero/tensorflow:latest" in result.out
    assert os.listdir("workspace") == []
    assert call(f"--dockerfile_path={image}").code == 0
    assert builds(tools)[1] == ["docker", "load", "--input", str(image)], "from where it is"
    assert image.exists()


# ---------------------------------------------------------------- site packages and the key


def test_folders_are_copied_once_and_without_an_image(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    source = tmp_path / "src"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "a.py").write_text("1")
    flags = ("--dockerfile_path=", f"--site_package_downloads={source}:models")
    assert f"# copy {source} to workspace/site-packages/models" in call(*flags, "-n").out
    assert call(*flags).code == 0
    copy = Path("workspace/site-packages/models/inner/a.py")
    copy.write_text("my edit")
    assert "exists and is kept" in call(*flags).err
    assert copy.read_text() == "my edit"
    assert os.listdir("workspace/site-packages") == ["models"]
    assert tools.calls == []


def test_the_key_is_there_while_the_wheel_comes(
    tmp_path: Path, tools: StandIns, call: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account"}')
    seen: list[str] = []

    def fetch(_url: str, target: str, **_: object) -> None:
        seen.append(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        Path(target).write_text("wheel")

    monkeypatch.setattr(setup, "fetch", fetch)
    assert call(f"--tensorflow_pip_spec=gs://b/{WHEEL}", f"--gcloud_key_file_url={key.as_uri()}").code == 0
    assert seen == [key.read_text()]
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
        *("/dev/nvme0n2", "/dev/md0", f"{tmp_path}/data", f"{tmp_path}/data", f"{tmp_path}/data")
    ]
    assert shown == [" ".join(argv) for argv in done]


def test_a_failing_step_ends_it(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    put_disks(tools, "nvme0n1", "nvme0n2")
    for name in ("mdadm", "sudo"):
        tools.answer(name, "mdadm", code=1, err="mdadm: cannot open /dev/nvme0n1: Permission denied\n")
    assert "mdadm failed with exit code 1" in call("--gce_nvme_raid=1", f"--root_data_dir={tmp_path}/data", code=4).err
    assert [argv for argv in tools.calls if "mkfs.ext4" in argv] == []
    assert builds(tools) == []


def test_without_a_free_disk_or_with_a_mounted_folder_nothing_is_formatted(
    tmp_path: Path, tools: StandIns, call: Cli
) -> None:
    put_disks(tools, "sda")
    for more in ([], ["-n"]):
        result = call("--dockerfile_path=", "--gce_nvme_raid=1", f"--root_data_dir={tmp_path}/data", *more, code=2)
        assert "there is no free NVMe disk here" in result.err
    assert {argv[0] for argv in tools.calls} == {"lsblk"}
    result = call("--dockerfile_path=", "--gce_nvme_raid=1", "--root_data_dir=/proc", code=0)
    assert "/proc is already a mount point" in result.err
    assert len(tools.calls) == 2
