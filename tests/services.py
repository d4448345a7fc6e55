"""What tests marked `services` need besides Python, git and packages: where each is found, and how it is installed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
SBIN = ("/usr/sbin", "/usr/local/sbin")
TF_PYTHON = os.environ.get("ASSAY_TF_PYTHON") or str(TOP / ".venv-tf" / "bin" / "python")
DOCS_PYTHON = str(TOP / ".venv-docs" / "bin" / "python")
AZURITE = str(TOP / ".tools" / "azurite" / "node_modules" / ".bin" / "azurite-blob")
MODELS = TOP / ".tools" / "models"
VENDOR = TOP / "src" / "assay" / "web" / "vendor"
SPEEDSCOPE = VENDOR / "speedscope"
AXE = TOP / ".tools" / "web" / "axe-core"


def find_postgres(program: str) -> str:
    """Find a program of the server: Debian keeps them, one folder for each version, out of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    found = [str(folder / program) for folder in folders if (folder / program).exists()]
    return found[-1] if found else program


POSTGRES = find_postgres("initdb")


@dataclass(frozen=True)
class Service:
    programs: tuple[str, ...]
    install: str

    def find_missing(self) -> list[str]:
        return [name for name in self.programs if find_program(name) is None]


SERVICES = {
    "sshd": Service(("sshd", "ssh", "ssh-keygen"), "apt-get install -y openssh-server openssh-client"),
    "slurm": Service(
        ("sbatch", "slurmctld", "slurmd", "munged"), "apt-get install -y --no-install-recommends slurm-wlm munge"
    ),
    "slurmdbd": Service(
        ("slurmdbd", "mariadbd", "mariadb-install-db"),
        "apt-get install -y --no-install-recommends slurmdbd mariadb-server",
    ),
    "azurite": Service((AZURITE, "node"), "make .tools/azurite/.stamp"),
    "tensorflow": Service((TF_PYTHON,), "make .venv-tf/.stamp"),
    "compiler": Service(("g++",), "apt-get install -y g++"),
    "docs": Service((DOCS_PYTHON, str(TOP / ".tools" / "docs" / "iframe-worker")), "make docs"),
    "models": Service((str(MODELS / "faster_whisper"),), "make .tools/models/.stamp"),
    "postgres": Service((POSTGRES, "setpriv"), "apt-get install -y postgresql"),
    "kills": Service(
        (), ""
    ),  # many deaths, or a long sequence of commands: nothing is missing, but each takes ten seconds
    "frameworks": Service(
        (), ""
    ),  # torch's programs, Lightning, transformers and MLflow's server, from packages: they take seconds to start
    "api": Service((), ""),  # hundreds of questions to the page, of schemathesis (from packages) and of a hostile root
    "ray": Service((), ""),  # a package; a cluster takes seconds to start
    "browser": Service(
        ("chromium", str(VENDOR), str(AXE)), "make web && apt-get install -y --no-install-recommends chromium"
    ),
    "web": Service((str(SPEEDSCOPE),), "make web"),
    "shells": Service(("zsh", "fish"), "apt-get install -y --no-install-recommends zsh fish"),
    "backends": Service((), ""),  # compilers from packages: nothing is missing, but a case takes seconds
}

# Programs that are hidden from every other test, so that a test that needs one fails here.
HIDDEN = ("tmux", "screen", "node", "npm", "npx", "sshd", "ssh", "scp", "sftp", "ssh-keygen", "rsync")
HIDDEN += ("docker", "podman", "gcloud", "gsutil")
HIDDEN += ("sbatch", "srun", "squeue", "psql", "postgres", "chromium", "google-chrome", "firefox", "parallel")


def find_program(name: str) -> str | None:
    if os.path.isabs(name):
        return name if os.access(name, os.X_OK) else None
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))


def hide_programs(path: str, folder: Path) -> str:
    """`path` without the hidden programs: a folder that has one is replaced by links to its other programs."""
    return os.pathsep.join(_hide_in(entry, folder / str(number)) for number, entry in enumerate(path.split(os.pathsep)))


def _hide_in(entry: str, links: Path) -> str:
    if not any(os.path.lexists(os.path.join(entry, name)) for name in HIDDEN):
        return entry
    links.mkdir(parents=True)
    for name in set(os.listdir(entry)).difference(HIDDEN):
        os.symlink(os.path.join(os.path.abspath(entry), name), links / name)
    return str(links)
