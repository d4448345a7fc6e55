"""Containers of Slurm's jobs: the image, the runtime, the mounted folders, and the digest that is recorded.

`job.sh` runs on the node itself. Each command of the run is started inside the container by a shell function that the
batch script defines (ASSAY_LAUNCH), so leases, tokens, logs and exit codes are the same as without a container.

An image of a registry is pulled once for each study, into `.assay/containers`: all runs of a study have the same image.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil

from assay.errors import AssayError, ConfigError, InfrastructureError, UsageError
from assay.farms.engines import APPTAINER, PYXIS
from assay.farms.slurm_queue import call, summarize_errors
from assay.system.fast_dataclasses import dataclass
from assay.system.files import blake2b, replacing
from assay.values import layout
from assay.values.study import Farm, Problem

NOT_INSTALLED = 5  # exit code of a job if its node lacks the runtime; the job has started nothing of the run
CONTAINER_FUNCTION = "_assay_container"
_PULL_S = 3600.0
_FOLDER = "containers"

# The study's folder contains the run's directory with the copy of the code; the folder of live code may be elsewhere.
_APPTAINER = r"""command -v apptainer > /dev/null || exit {missing}
_assay_container() {
  apptainer exec {flags} --bind "${ASSAY_RUN_DIR%/*}" --bind "$(pwd -P)" --pwd "$PWD" {image} bash -c "$1"
}
export -f _assay_container; export ASSAY_LAUNCH=_assay_container
"""
_PYXIS = r"""_assay_srun() {
  srun --nodes=1 --ntasks=1 {flags} bash -c 'eval "$1"' bash "$1"
}
export -f _assay_srun; export ASSAY_LAUNCH=_assay_srun
"""
_PYXIS_MOUNTS = '"${ASSAY_RUN_DIR%/*}:${ASSAY_RUN_DIR%/*},$(pwd -P):$(pwd -P)"'


@dataclass(frozen=True, slots=True)
class ContainerImage:
    path: str  # the path or name that the runtime gets
    record: str  # the image as the farm names it, and its digest


def choose_runtime(farm: Farm) -> str | None:
    """Return the container's program; None if the farm has no container."""
    image = farm.options.get("container")
    if not image:
        return None
    return str(farm.options.get("runtime") or (PYXIS if str(image).endswith(".sqsh") else APPTAINER))


def check_container(farm: Farm) -> None:
    """Check the image and the runtime as far as this machine can, before anything is written."""
    runtime, image = choose_runtime(farm), str(farm.options.get("container"))
    if runtime is None:
        return
    if not _is_remote(image, runtime) and not os.path.isfile(os.path.expanduser(image)):
        hint = "name a file that the nodes see at the same path, or an image as in docker://ubuntu:24.04"
        raise _refuse(farm, f"the image {image} does not exist", hint)
    if runtime == APPTAINER and _is_remote(image, runtime) and shutil.which(APPTAINER) is None:
        hint = "install it, load its module, or name a .sif file that was pulled elsewhere"
        raise _refuse(farm, f"apptainer, which would pull {image}, is not installed here", hint)
    if runtime == PYXIS and "--container-image" not in call(("srun", "--help")).stdout:
        hint = "have Slurm's plug-in pyxis installed, or write `runtime: apptainer`"
        raise _refuse(farm, "Slurm's plug-in pyxis is not installed: srun has no --container-image", hint)


def load_image(farm: Farm, study_dir: str) -> ContainerImage | None:
    """Return the image with its digest; pull Apptainer's image of a registry. Raise InfrastructureError on failure."""
    runtime, image = choose_runtime(farm), str(farm.options.get("container"))
    if runtime is None:
        return None
    if set(":,") & set(study_dir):
        hint = "choose another folder for the runs (--root or ASSAY_ROOT)"
        raise UsageError(f"the container of {farm.name} cannot get {study_dir}: its path has a colon or a comma", hint)
    pinned = image.rpartition("@")[2] if "@sha256:" in image else ""
    if runtime == PYXIS and _is_remote(image, runtime):
        return ContainerImage(image, f"{image} {pinned or '(no digest: name it with @sha256:…)'}")
    path = _pull(image, study_dir) if _is_remote(image, runtime) else os.path.abspath(os.path.expanduser(image))
    try:
        with open(path, "rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise InfrastructureError(f"cannot read the image {path}: {error.strerror}") from error
    return ContainerImage(path, f"{image} {pinned or digest}")


def build_launch(farm: Farm, image: ContainerImage) -> str:
    """Return the part of the batch script that starts commands in the container, unless srun starts them as tasks."""
    if choose_runtime(farm) == PYXIS:
        given = shlex.join(farm.options.get("srun_flags", ()))
        return _PYXIS.replace("{flags}", f"{given} {build_srun_flags(farm, image)}".lstrip())
    flags = ["--nv"] if farm.options.get("gpus") else []
    flags += [word for mount in farm.options.get("mounts", ()) for word in ("--bind", mount)]
    text = _APPTAINER.replace("{missing}", str(NOT_INSTALLED)).replace("{flags}", shlex.join(flags))
    return text.replace("{image}", shlex.quote(image.path))


def build_srun_flags(farm: Farm, image: ContainerImage | None) -> str:
    """Return Pyxis' options of srun as shell text."""
    if image is None or choose_runtime(farm) != PYXIS:
        return ""
    more = "".join(f",{mount if ':' in mount else f'{mount}:{mount}'}" for mount in farm.options.get("mounts", ()))
    words = [shlex.quote(f"--container-image={image.path}"), f"--container-mounts={_PYXIS_MOUNTS}{shlex.quote(more)}"]
    return " ".join([*words, '--container-workdir="$PWD"'])


def _is_remote(image: str, runtime: str) -> bool:
    """Return whether an image is in a registry; Pyxis takes the names of such images unchanged."""
    is_name = not image.startswith(("/", ".", "~")) and not image.endswith(".sqsh")
    return "://" in image or (runtime == PYXIS and is_name)


def _pull(image: str, study_dir: str) -> str:
    folder = os.path.join(study_dir, layout.STUDY_META_DIR, _FOLDER)
    path = os.path.join(folder, f"{blake2b(image.encode(), digest_size=8).hexdigest()}.sif")
    if os.path.exists(path):
        return path
    try:
        os.makedirs(folder, exist_ok=True)
        with replacing(path) as aside:
            answer = call((APPTAINER, "pull", "--force", aside, image), _PULL_S)
            if answer.returncode != 0 or not os.path.exists(aside):
                said = summarize_errors(answer.stderr or answer.stdout)
                raise InfrastructureError(f"cannot pull the image {image}: {said}")
    except OSError as error:
        raise InfrastructureError(f"cannot store the image {image} in {folder}: {error.strerror}") from error
    return path


def _refuse(farm: Farm, message: str, hint: str) -> AssayError:
    if farm.position is None:
        return UsageError(f"the farm {farm.name}: {message}", hint)
    return ConfigError([Problem(message, f"{farm.name}.container", farm.position, hint)])
