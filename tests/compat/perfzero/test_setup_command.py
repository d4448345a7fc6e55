"""`assay perfzero setup` with a stand-in for docker: what it is called with, what fails, and what is left alone."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.stand_ins import StandIns, build_call, use_stand_ins, walk

from assay.cli.main import run
from assay.compat.perfzero import setup
from assay.compat.perfzero.wheel import build_wheel_name

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
