"""A command target whose run step happens on a board: models are compiled here and run there.

Options in addition to those of the command back end:
  address, port, key     the board as ssh takes it: user@host
  ssh_options            more arguments for ssh
  connect_timeout_s      how long a board may take to answer; default 10
  deploy                 programs and scripts of `run` that are copied to the board, once for each content
  lock, lock_wait_s, lock_expiry_s
                         the lock's folder on the board, how long to wait for it, when a lock counts as abandoned
  remote_root            where folders of jobs are made; default /tmp
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from assay.errors import InfrastructureError, UsageError
from assay.models.backends.base import OPTIONS
from assay.models.backends.board import Board, LockRule, Stay
from assay.models.backends.captured_output import CapturedOutput
from assay.models.backends.command import CommandBackend, RunLocation
from assay.models.backends.programs import Template, Value, describe_words, find_program, hash_file, list_names
from assay.models.values.model import Job, Step, Target
from assay.models.values.tensors import TensorRef
from assay.system.files import is_inside
from assay.system.ssh import Address

# Options, and the fields of Address and LockRule that they set.
_ADDRESS = {"address": "name", "port": "port", "key": "key", "connect_timeout_s": "connect_s", "remote_root": "root"}
_LOCK = {"lock": "path", "lock_wait_s": "wait_s", "lock_expiry_s": "expiry_s"}
# Lists number, path and hash of files on the board, which may change: of the program that is the first word, of the
# programs that its first line names, and of the other words that are files or folders.
_DESCRIBE = r"""
[ -n "$1" ] && PATH=$1
shift
describe() {
  if [ -d "$2" ]; then found=$(find -L "$2" -type f -exec cksum {} + 2>/dev/null | LC_ALL=C sort | cksum)
  elif [ -f "$2" ]; then found=$( (sha256sum <"$2" || cksum <"$2" || ls -lL "$2") 2>/dev/null)
  elif [ -n "$3" ]; then found=itself
  else return; fi
  printf '%s\t%s\t%s\n' "$1" "$2" "$found"
}
program=$(command -v "$1")
describe 0 "$program" "$program"
if [ -f "$program" ]; then
  first=$(head -c 200 "$program" | head -n 1 | tr -d '\000')
  case $first in '#!'*) for word in ${first#??}; do describe "for $word" "$(command -v "$word")"; done ;; esac
fi
shift
number=1
for word in "$@"; do describe $number "$word"; number=$((number + 1)); done
"""


class SshBackend(CommandBackend):
    options = OPTIONS["ssh"]

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        if not self._option("address"):
            raise UsageError(f"target {target.name}: there is no address", 'as in address = "root@board"')
        self._deployed: dict[str, str] = {}  # word of the template → its path on the board
        given = {name: value for name, value in target.options.items() if value not in (None, "")}
        if "key" in given:
            given["key"] = os.path.join(self._project, os.path.expanduser(given["key"]))
        address, rule = (
            {field: given[name] for name, field in each.items() if name in given} for each in (_ADDRESS, _LOCK)
        )
        words = tuple(map(str, given.get("ssh_options", ())))
        self._board = Board(Address(**address, options=words), LockRule(**rule))

    def close(self) -> None:
        self._board.close()

    def _describe_tool(self, name: str, template: Template) -> dict[str, str]:
        if name != "run":
            return super()._describe_tool(name, template)
        files = {f"deploy: {word}": hash_file(path) for word, path in self._find_deployed().items()}
        system = self._board.demand("uname", "uname -a").decode().strip()
        return {"board": system, **files, **self._describe_remote(template)}

    def _describe_remote(self, template: Template) -> dict[str, str]:
        """Describe the program on the board and the files that its command names: absolute paths are the board's."""
        words = self.list_words("run", template)
        ours = describe_words(words, self._project)
        found = {f"run: {name}": sha for name, sha in ours.items() if not os.path.isabs(name)}
        words += self._own_environment().values()
        program = template.words[0]
        there = self._ask_board(program, [name for word in words for name in list_names(word)])
        if program in self._find_deployed():
            there.pop(program, None)
        elif program not in there:
            raise InfrastructureError(
                f"{program} is not on the board {self._board.address.name}",
                f"install it there, or copy ours: deploy = [{program!r}]",
            )
        return found | {f"board: {name}": found_there for name, found_there in there.items()}

    def _ask_board(self, program: str, names: Sequence[str]) -> dict[str, str]:
        """Return the path and a hash of the content of each name that exists on the board. A program runs in its
        job's folder, so only absolute paths are the board's own; folders that contain jobs are skipped."""
        root = self._board.address.root
        paths = [name for name in dict.fromkeys(names) if os.path.isabs(name) and not is_inside(root, name)]
        out = self._board.demand("looking", _DESCRIBE, self._own_environment().get("PATH", ""), program, *paths)
        asked = [program, *paths]
        found = {}
        for line in out.decode("utf-8", "replace").splitlines():
            number, location, found_there = (line + "\t\t").split("\t")[:3]
            name = asked[int(number)] if number.isdecimal() else number
            found[name] = f"{location} {found_there.removesuffix('-').strip()}"
        return found

    def _describe_dependency(self, step: Step, word: str) -> str:
        """Return the hash of a file on this machine, else on the board, to which only the run step connects."""
        path = os.path.join(self._project, os.path.expanduser(word))
        if os.path.exists(path) or not os.path.isabs(word):
            return super()._describe_dependency(step, word)
        if step is not Step.RUN:
            return "on the board"
        found = self._ask_board("sh", [word]).get(word)
        return found or super()._describe_dependency(step, word)

    def _find_deployed(self) -> dict[str, str]:
        """Return the words of the option `deploy` and the local files that they name."""
        found = {}
        for word in map(str, self.target.options.get("deploy") or ()):
            path = os.path.join(self._project, os.path.expanduser(word))
            is_there = os.path.isfile(path)
            found[word] = path if is_there else find_program(word, self._environment(), self._project)[0]
        return found

    def build_command(self, name: str, values: Mapping[str, Value]) -> list[str]:
        words = super().build_command(name, values)
        return [self._deployed.get(word, word) for word in words] if name == "run" else words

    def _locate(self, name: str, program: str) -> list[str]:
        return [program] if name == "run" else super()._locate(name, program)

    @contextmanager
    def _open_location(self, job: Job, artifact: str, refs: Sequence[TensorRef], raw: str) -> Iterator[RunLocation]:
        self._board.connect()
        for word, path in self._find_deployed().items():
            self._deployed[word] = self._board.deploy(path, hash_file(path))
        with self._board.occupy() as stay:
            location = BoardLocation(stay, job, raw)
            location.stage(job.source, artifact, refs)
            yield location


class BoardLocation(RunLocation):
    """A job's folder on a board."""

    def __init__(self, stay: Stay, job: Job, raw: str) -> None:
        self._stay = stay
        self._folders = {raw: "outputs"} | ({job.profile_dir: "profile"} if job.profile_dir else {})
        self._names: dict[str, str] = {}  # our path → its name in the job's folder
        self._packed: dict[str, list[str]] = {}  # folder in the job's folder → arguments of the local tar that packs it

    def stage(self, source: str, artifact: str, refs: Sequence[TensorRef]) -> None:
        """Copy the files that a run needs to the board; of a model in a folder, also its external data."""
        self._names[artifact] = f"artifact/{os.path.basename(artifact)}"
        for ref in refs:
            self._names[ref.path] = f"inputs/{os.path.basename(ref.path)}"
        files = {name: path for path, name in self._names.items()}
        self._stay.upload(files | ({"artifact": source} if artifact != source else {}))
        self._packed["artifact"] = ["-C", source, "."] if artifact != source else _pack(artifact)
        self._packed["inputs"] = [word for ref in refs for word in _pack(ref.path)]

    def seen(self, path: str) -> str:
        name = self._names.get(path) or self._folders.get(path)
        if name is None:
            folder, base = os.path.split(path)
            name = f"{self._folders[folder]}/{base}"
        return f"{self._stay.folder}/{name}"

    def describe(self, argv: Sequence[str], env: Mapping[str, str], _cwd: str) -> str:
        """Return a command line to paste locally. It creates the job's folder again, which the board has removed."""
        folder, enter = self._stay.folder, self._stay.address.command
        made = [f"{folder}/{name}" for name in self._folders.values()]
        lines = [f"{enter} {shlex.quote(shlex.join(['mkdir', '-p', *made]))}"]
        for name, words in self._packed.items():
            target = shlex.quote(f"{folder}/{name}")
            unpack = f"mkdir -p {target} && tar -xf - -C {target}"
            lines += [f"tar -chf - {shlex.join(words)} | {enter} {shlex.quote(unpack)}"] if words else []
        front = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        run = f"cd {shlex.quote(folder)} && {shlex.join([*front, *argv])}"
        return " && ".join([*lines, f"{enter} {shlex.quote(run)}"])

    def call(self, argv: Sequence[str], env: Mapping[str, str], _cwd: str) -> CapturedOutput:
        return self._stay.run(argv, env)

    def fetch(self) -> None:
        for folder, name in self._folders.items():
            self._stay.download(name, folder)


def _pack(path: str) -> list[str]:
    folder, name = os.path.split(os.path.realpath(path))
    return ["-C", folder, name]
