"""A machine of one's own in Google's cloud: where it is, what it is wished to be, what was found."""

from __future__ import annotations

from dataclasses import dataclass

INSTANCE_PREFIX = "perfzero-dev-"
DEFAULT_ZONE = "us-west1-b"
DEFAULT_ACCELERATOR = "nvidia-tesla-v100"
# Google's public images for GPUs: CUDA 12.9, driver 580, Python 3.12; served until August 2028
IMAGE_PROJECT = "deeplearning-platform-release"
IMAGE_FAMILY = "common-cu129-ubuntu-2404-nvidia-580"
_SIZES = (8, 16, 32, 64, 96)  # processors of an n1-standard machine, from eight on
COUNTS = (0, 1, 2, 4, 8)  # accelerators that an n1 machine can have


@dataclass(frozen=True, slots=True)
class Place:
    """Which machine, and the way to it. Without a project it is the one that gcloud is configured for."""

    name: str
    zone: str = DEFAULT_ZONE
    project: str | None = None
    internal_ip: bool = False
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a new machine is to be."""

    accelerator_count: int = 1
    accelerator_type: str = DEFAULT_ACCELERATOR
    cpu_min_platform: str | None = None
    machine_type: str | None = None
    image: str | None = None  # of the user's own project, or projects/P/global/images/NAME
    nvme_count: int = 0
    boot_ssd_size_gb: int | None = None

    @property
    def machine(self) -> str:
        """Eight processors for each accelerator, unless said otherwise; of the sizes that there are, the next."""
        wanted = 8 * max(self.accelerator_count, 1)
        return self.machine_type or f"n1-standard-{next((size for size in _SIZES if size >= wanted), _SIZES[-1])}"


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as gcloud describes it."""

    name: str
    zone: str
    state: str  # in Google's words: RUNNING, TERMINATED, …
    machine: str
    external: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    accelerators: tuple[tuple[str, int], ...] = ()
    local_disks: int = 0
