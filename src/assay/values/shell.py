"""What bash is told apart from programs by."""

from __future__ import annotations

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
