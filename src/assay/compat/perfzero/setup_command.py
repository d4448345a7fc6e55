"""`assay perfzero setup`: PerfZero's setup.py, with its flags."""

from __future__ import annotations

import argparse

from assay.compat.original_command import Parsed
from assay.show.console import Console

DEFAULT_DOCKERFILE = "docker/Dockerfile_ubuntu_1804_tf_v1"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="assay perfzero setup", description="Build the Docker image in which benchmarks run; set up its data disk."
    )
    _add_image_flags(parser)
    parser.add_argument("--workspace", default="workspace", metavar="DIR", help="its resources/ is the build context")
    parser.add_argument("--root_data_dir", default="/data", metavar="DIR", help="where benchmarks find their data")
    parser.add_argument(
        "--gce_nvme_raid",
        metavar="ANY",
        help="if not empty: format the free NVMe disks, several as one striped array, and mount at --root_data_dir",
    )
    parser.add_argument(
        "--gcloud_key_file_url",
        default="",
        metavar="URL",
        help="key of a service account for gs:// addresses; fetched to a private file for this time only",
    )
    parser.add_argument(
        "--site_package_downloads",
        default="",
        metavar="SRC:NAME,…",
        help="folders to copy to site-packages/NAME of the workspace",
    )
    ours = parser.add_argument_group("beyond the original")
    ours.add_argument("-n", "--dry-run", action="store_true", help="print the commands; do nothing")
    return parser


def _add_image_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dockerfile_path",
        default=DEFAULT_DOCKERFILE,
        metavar="FILE",
        help="a file of yours, or one of Assay's: docker/Dockerfile_ubuntu_1804_tf_v1 or …_v2 (default: v1); a saved "
        "image (*.tar.gz, file or URL) is loaded instead; empty: no image",
    )
    parser.add_argument(
        "--tensorflow_pip_spec",
        metavar="SPEC",
        help="the TensorFlow to install, as in tensorflow==2.20.0, or the URL of a wheel (gs, s3, file, http, https); "
        "default: what the Dockerfile says",
    )
    parser.add_argument(
        "--extra_pip_specs", default="", metavar="'A;B'", help="more to install, as in 'numpy==1.26.4;scipy==1.11.4'"
    )
    parser.add_argument(
        "--docker_tag",
        default="perfzero/tensorflow",
        metavar="TAG",
        help="the image's name (default: perfzero/tensorflow)",
    )
    parser.add_argument(
        "--extra_docker_build_args",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="more --build-arg of docker build",
    )


def run(parsed: Parsed) -> int:
    from assay.compat.perfzero.setup import SetupRequest, build_tools, set_up

    request = SetupRequest(
        dockerfile_path=parsed.dockerfile_path,
        workspace=parsed.workspace,
        gcloud_key_file_url=parsed.gcloud_key_file_url,
        root_data_dir=parsed.root_data_dir,
        gce_nvme_raid=parsed.gce_nvme_raid,
        tensorflow_pip_spec=parsed.tensorflow_pip_spec,
        extra_pip_specs=parsed.extra_pip_specs,
        docker_tag=parsed.docker_tag,
        site_package_downloads=parsed.site_package_downloads,
        extra_docker_build_args=tuple(parsed.extra_docker_build_args),
    )
    console = Console()
    set_up(request, build_tools(parsed.dry_run, console.print, console.error), console.print_lines)
    return 0
