"""A command target whose run step happens on a board: compiled here, run there.

Options beside those of the command back end:
  address, port, key     where the board is, as ssh takes it: user@host
  ssh_options            more words for ssh
  connect_timeout_s      how long a board may take to answer; default 10
  deploy                 programs and scripts of `run` that are copied to the board, once for each content
  lock, lock_wait_s, lock_expiry_s
                         the lock's folder on the board, how long to wait for it, when one counts as abandoned
  remote_root            where folders of jobs are made; default /tmp
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from assay.errors import InfrastructureError, UsageError
from assay.probe.backends.board import Address, Board, LockRule, Stay
from assay.probe.backends.command import OPTIONS, CommandBackend, Place
from assay.probe.backends.speech import Speech
from assay.probe.backends.template import Template, Value
from assay.probe.backends.tool import describe_words, find_program, hash_file
from assay.values.model import Job, Target
from assay.values.tensors import TensorRef

BOARD_OPTIONS = (
    "address", "port", "key", "ssh_options", "connect_timeout_s", "deploy", "lock", "lock_wait_s", "lock_expiry_s",
    "remote_root",
)  # fmt: skip
_FIND = 'command -v "$1"; sha256sum "$(command -v "$1")" 2>/dev/null'


class SshBackend(CommandBackend):
    options = (*OPTIONS, *BOARD_OPTIONS)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        if not self._option("address"):
            raise UsageError(f"target {target.name}: there is no address", 'as in address = "root@board"')
        self._deployed: dict[str, str] = {}  # word of the template → where it is on the board
        rule = LockRule(
            self._option("lock") or LockRule().path,
            int(target.options.get("lock_wait_s", LockRule().wait_s)),
            int(target.options.get("lock_expiry_s", LockRule().expiry_s)),
        )
        self._board = Board(self._build_address(), rule)

    def _build_address(self) -> Address:
        options = self.target.options
        key = self._option("key")
        return Address(
            self._option("address"),
            int(options["port"]) if options.get("port") else None,
            os.path.join(self._project, os.path.expanduser(key)) if key else "",
            float(options.get("connect_timeout_s", Address("").connect_s)),
            tuple(str(word) for word in options.get("ssh_options") or ()),
            self._option("remote_root") or Address("").root,
        )

    def close(self) -> None:
        self._board.close()

    # ------------------------------------------------------------ who it is

    def _describe_tool(self, name: str, template: Template) -> dict[str, str]:
        if name != "run":
            return super()._describe_tool(name, template)
        files = {f"deploy: {os.path.basename(path)}": hash_file(path) for path in self._find_deployed().values()}
        system = self._board.demand("uname", "uname -srm").decode().strip()
        return {"board": system, **files, **self._describe_remote(template)}

    def _describe_remote(self, template: Template) -> dict[str, str]:
        """The program that the board has by itself, and files of ours that the template names."""
        named = [word for part in template.parts for word in part.words if not part.names]
        found = {f"run: {name}": sha for name, sha in describe_words(named[1:], self._project).items()}
        if template.program in self._find_deployed():
            return found
        code, out, _ = self._board.ask(_FIND, template.program)
        lines = out.decode("utf-8", "replace").split()
        if code and not lines:
            raise InfrastructureError(
                f"{template.program} is not on the board {self._board.address.name}",
                f"install it there, or copy ours: deploy = [{template.program!r}]",
            )
        return found | {f"run: {template.program}": lines[1][:16] if len(lines) > 1 else lines[0]}

    # ------------------------------------------------------------ the run

    def _find_deployed(self) -> dict[str, str]:
        """Words of the template → files here."""
        words = [str(word) for word in self.target.options.get("deploy") or ()]
        return {word: self._find_file(word) for word in words}

    def _find_file(self, word: str) -> str:
        path = os.path.join(self._project, os.path.expanduser(word))
        return path if os.path.isfile(path) else find_program(word, self._environment(), self._project)[0]

    def _deploy(self) -> None:
        for word, path in self._find_deployed().items():
            self._deployed[word] = self._board.deploy(path, hash_file(path))

    def build_command(self, name: str, values: Mapping[str, Value]) -> list[str]:
        words = super().build_command(name, values)
        return [self._deployed.get(word, word) for word in words] if name == "run" else words

    def _locate(self, name: str, program: str) -> list[str]:
        return [program] if name == "run" else super()._locate(name, program)

    @contextmanager
    def _open_place(self, job: Job, artifact: str, refs: Sequence[TensorRef], raw: str) -> Iterator[Place]:
        self._board.connect()
        self._deploy()
        with self._board.occupy() as stay:
            place = There(stay, job, raw)
            place.stage(job.source, artifact, refs)
            yield place


class There(Place):
    """A job's folder on a board."""

    def __init__(self, stay: Stay, job: Job, raw: str) -> None:
        self._stay = stay
        self._folders = {raw: "outputs"} | ({job.profile_dir: "profile"} if job.profile_dir else {})
        self._names: dict[str, str] = {}  # our path → name in the job's folder

    def stage(self, source: str, artifact: str, refs: Sequence[TensorRef]) -> None:
        """A model that lies in a folder with its external data takes that along."""
        self._names[artifact] = f"artifact/{os.path.basename(artifact)}"
        for ref in refs:
            self._names[ref.path] = f"inputs/{os.path.basename(ref.path)}"
        files = {name: path for path, name in self._names.items()}
        self._stay.upload(files | ({"artifact": source} if artifact != source else {}))

    def seen(self, path: str) -> str:
        name = self._names.get(path) or self._folders.get(path)
        if name is None:
            folder, base = os.path.split(path)
            name = f"{self._folders[folder]}/{base}"
        return f"{self._stay.folder}/{name}"

    def call(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Speech:  # noqa: ARG002 - of this machine
        return self._stay.run(argv, env)

    def fetch(self) -> None:
        for folder, name in self._folders.items():
            self._stay.download(name, folder)
