"""What bash is told apart from programs by, and command lines that people can paste."""

from __future__ import annotations

from collections.abc import Sequence

# bash does these itself, and does them to the shell that it is called from
SHELL_WORDS = frozenset(
    (
        *(".", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen"),
        *("complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif"),
        *("else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function"),
        *("getopts", "hash", "help", "history", "if", "in", "jobs", "kill", "let", "local", "logout"),
        *("mapfile", "popd", "pushd", "read", "readarray", "readonly", "return", "select", "set", "shift"),
        *("shopt", "source", "suspend", "then", "time", "times", "trap", "type", "typeset", "ulimit"),
        *("umask", "unalias", "unset", "until", "wait", "while"),
    )
)


def build_command(words: Sequence[str], operands: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """A command line that works when it is pasted: quoted, and with `--` before operands that begin with a dash."""
    if any(operand.startswith("-") for operand in operands):
        return " ".join(map(quote_word, (*words, *options, "--", *operands)))
    return " ".join(map(quote_word, (*words, *operands, *options)))


def quote_word(word: str) -> str:
    """A word for bash; one with line breaks or bytes that no terminal shows is written as $'…'."""
    if word.isprintable():
        import shlex

        return shlex.quote(word)
    data = word.encode("utf-8", "surrogateescape")
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in data)
    return "$'" + "".join(plain) + "'"
