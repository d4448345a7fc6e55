"""The exceptions of Assay, as a tree.

AssayError                    anything a user can read and act on; a subclass carries the exit code
├── UsageError                exit 2: the command line or the environment is not as it must be
│   ├── ConfigError           exit 2: problems in a file, all of them, each with its position
│   ├── NotFoundError         exit 2: no such study, run, metric or file; carries suggestions
│   └── MissingExtraError     exit 2: an optional part is not installed; carries the install command; an ImportError
│       └── MissingPackageError   exit 2: a package that no extra of Assay installs, such as torch, is missing
├── FormatError               exit 4: a file of Assay that is damaged, too old or too new
└── InfrastructureError       exit 4: a farm, disk or service refused

Any other exception that is not caught is a bug in Assay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command. Of several results, `worst` chooses the one that counts."""

    OK = 0  # nothing failed
    FAILED = 1  # a run or a check failed, or the user's process crashed or timed out
    USAGE = 2  # usage or configuration error
    INCONCLUSIVE = 3  # inconclusive or changed
    INTERNAL = 4  # an internal or infrastructure error
    INTERRUPTED = 130  # Ctrl-C, SIGTERM or SIGHUP

    @classmethod
    def worst(cls, codes: Iterable[ExitCode]) -> ExitCode:
        present = set(codes)
        order = (cls.INTERRUPTED, cls.INTERNAL, cls.USAGE, cls.FAILED, cls.INCONCLUSIVE)
        return next((code for code in order if code in present), cls.OK)


class AssayError(Exception):
    """Base of all errors that a user can read and act on."""

    exit_code = ExitCode.INTERNAL
    finds_nothing = False  # True: the command is right, but no run matches

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """Return the message with its hint, for a terminal."""
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __str__(self) -> str:
        """Return the message with the hint, since a notebook shows only the traceback."""
        return self.render()


class UsageError(AssayError):
    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """All problems of a file; `str` of a problem is `file:line:column key: message`."""

    def __init__(self, problems: Sequence[object]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotFoundError(UsageError):
    """A name that does not exist; the hint has similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = (), hint: str | None = None) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"no {kind} named {name!r}", hint or did_you_mean(name, self.known))


def check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise NotFoundError for the first of these names that is not known."""
    choices = list(known)
    for name in names:
        if name not in choices:
            raise NotFoundError(kind, name, choices)


class MissingExtraError(UsageError, ImportError):
    """An optional part is not installed. Scripts expect an ImportError in this case, so this class is one as well."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an optional part of Assay", f"install it: pip install 'assay[{extra}]'")


class MissingPackageError(MissingExtraError):
    """A package that Assay never installs by itself, such as torch."""

    def __init__(self, what: str, package: str) -> None:
        self.extra = package
        UsageError.__init__(self, f"{what} needs {package}, which is not installed here: pip install {package}")


class FormatError(AssayError):
    """A file of Assay is damaged, too old or too new."""


class InfrastructureError(AssayError):
    """A farm, a disk or a service refused."""


class IndexDamagedError(InfrastructureError):
    """The index was damaged and is empty now. A command that only reads starts again, which fills the index."""


def explain_refusal(error: OSError) -> str:
    """Return the system's message, or, if file descriptors ran out, a message with their limit and how to raise it."""
    import errno
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # a descriptor above the limit is refused as EINVAL or EBADF when it is given to a new process
    if error.errno in (errno.EMFILE, errno.ENFILE) or (error.errno in (errno.EINVAL, errno.EBADF) and limit < 256):
        return f"no more file descriptors: this shell allows {limit} open files (raise the limit: ulimit -n 1024)"
    return str(error.strerror or error)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a suggestion for a mistyped name, else the list of known names if it is short, else None."""
    names = sorted(set(known))
    listed = "known: " + ", ".join(names) if 0 < len(names) <= 12 else None
    return suggest(name, names) or listed


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the names that are similar to a mistyped one, as a question; None if there are none."""
    import difflib

    names = sorted(set(known))
    swapped = [candidate for candidate in names if sorted(candidate) == sorted(name)]  # such as `=>` for `>=`
    close = swapped or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not close:
        by_lower = {candidate.lower(): candidate for candidate in names}
        close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]
    if not close and len(name) >= 2:
        close = [candidate for candidate in names if name.lower() in candidate.lower()][:3]
    return "did you mean " + " or ".join(repr(match) for match in close) + "?" if close else None
