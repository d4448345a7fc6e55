"""Secrets: the names and forms by which they are recognised, and how they are hidden in output and files.

A value is hidden if its name is that of a secret (`HF_TOKEN`, `--password`), or if it has the form of a known kind of
token (`ghp_…`). Tables of parameters must stay readable, so numbers and the words of language models (`max_tokens`,
`eos_token`) are not hidden. Patterns are shell patterns; the last that fits a name decides, and a pattern that begins
with `!` is an exception.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import groupby
from typing import Any

from assay.system.fast_dataclasses import dataclass, replace
from assay.values.run import Command, Private, RunSpec

HIDDEN = "***"

SECRET_FILES = (
    *(".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("*.ppk", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*credentials*", "*secret*", ".netrc", "_netrc"),
    *(".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials", ".dockercfg", ".dockerconfigjson"),
    *("kubeconfig", "*.kubeconfig", "service-account*.json", "service_account*.json", "*.tfvars", "*token.json"),
    *("token.txt", "*.token", "*apikey*", "*api_key*", ".boto", ".s3cfg", "*passwords*", ".vault-token"),
    *(".ssh/", ".aws/", ".azure/", ".gnupg/", ".kube/", ".gcloud/"),
)

_MODEL_WORDS = (  # noqa: SIM905 words before TOKEN that are about a language model
    "PAD PADDING EOS BOS EOT UNK CLS SEP MASK STOP START END BEGIN CLASS IMAGE VIDEO AUDIO TEXT SPECIAL NEXT PREFIX "
    "REGISTER DIST VOCAB PROMPT NUM MAX MIN QUERY MEMORY SUMMARY SEPARATOR NEWLINE DECODER ENCODER TASK LANG LANGUAGE "
    "CONTROL VISION PATCH BLANK EXTRA FIRST LAST INPUT OUTPUT TARGET SOURCE LABEL SENTINEL RESERVED THINK GLOBAL LATENT"
).split()

# Patterns for names of parameters, flags and environment variables, in capitals, with words separated by `_`.
SECRET_NAMES = (
    *("*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*_PWD", "*SECRET*", "*CREDENTIAL*", "*TOKEN*"),
    *("*API_KEY*", "*APIKEY*", "*ACCESS_KEY*", "*ACCESSKEY*", "*PRIVATE_KEY*", "*AUTH_KEY*", "*ENCRYPTION_KEY*"),
    *("*SIGNING_KEY*", "*ACCOUNT_KEY*", "*LICENSE_KEY*", "*SSH_KEY*", "*DEPLOY_KEY*", "*SERVICE_KEY*", "*STORAGE_KEY*"),
    *("*WANDB_KEY*", "*OPENAI_KEY*", "*ANTHROPIC_KEY*", "*COMET_KEY*", "*AWS_KEY*", "*AZURE_KEY*", "*HF_KEY*"),
    *("*MASTER_KEY*", "*CLIENT_KEY*", "*SUBSCRIPTION_KEY*", "AUTH", "*_AUTH", "AUTH_HEADER", "*AUTHORIZATION*"),
    *("*BEARER*", "*WEBHOOK*", "*COOKIE*", "*_DSN", "*CONNECTION_STRING*"),
    *("!*TOKENIZ*", "!*TOKENS*", "!TOKEN_*", "!*_PER_TOKEN*", "!*_TOKEN_DIM*", "!*_TOKEN_LEN*", "!USE_*", "!OLD_PWD"),
    *("!*_FILE", "!*_PATH", "!*_DIR", "!*_NAME", "!*_TYPE", "!*_ID", "!*_IDS", "!*_TTL", "!*_TIMEOUT", "!*_EXPIRY"),
    *(f"!{word}_TOKEN*" for word in _MODEL_WORDS),
    *(f"!*_{word}_TOKEN*" for word in _MODEL_WORDS),
    *("*AUTH_TOKEN*", "*ACCESS_TOKEN*", "*API_TOKEN*", "*BOT_TOKEN*", "*REFRESH_TOKEN*"),
)
# More patterns for environment variables: these are not in tables, so that any `…_KEY` may be hidden.
_ENV_NAMES = (
    *("*_KEY", "*_PAT", "AUTH_*"),
    *(f"!*{word}_KEY" for word in ("SORT", "CACHE", "PRIMARY", "FOREIGN", "PARTITION", "PUBLIC", "GROUP", "METRIC")),
)
_WORDS = tuple(name.strip("*") for name in (*SECRET_NAMES, *_ENV_NAMES) if not name.startswith("!"))
# The regular expressions are strings: `re` compiles each when it is first used, and caches it.
_STRONG = r"PASSW|PASSPHRASE|SECRET|API_?KEY"  # names with these words may have a number as their secret
_NUMBER = r"(?i)[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?"
_PLAIN_WORDS = frozenset(("", "true", "false", "none", "null", "yes", "no", "on", "off", "auto", HIDDEN.lower()))
_WORD_START = r"(?<=[a-z0-9])(?=[A-Z])"
_LEAST_KNOWN = 6  # shorter values are not searched in other texts: they would be found by chance

_TOKEN = (
    r"(?<![A-Za-z0-9_])(?:"
    r"hf_(?:[A-Za-z0-9]{30,}|(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*\d)[A-Za-z0-9]{10,})"
    r"|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}"
    r"|dckr_pat_[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|dapi[0-9a-f]{30,}|nvapi-[\w-]{20,}|gsk_\w{20,}|r8_\w{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.?[\w-]*"
    r")"
)
_URL_PASSWORD = r"(?<=://)([^\s/:@'\"]*):([^\s/@'\"]+)(?=@)"
_HEADER = (
    r"(?i)(authorization\\?[\"']?\s*:\s*\\?[\"']?(?:bearer|basic|token)\s+|\bbearer\s+(?=[\w.~+/=-]{8}))([\w.~+/=-]+)"
)
_LOGIN = r"(?<=\s)((?:-u|--user)[= ]*['\"]?[^\s:'\"=]+:|sshpass\s+-p\s*['\"]?)([^\s'\"]+)"
_TAKES_LOGIN = r"\b(curl|wget|sshpass)\b"
_PRIVATE_KEY = r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)"
_VALUE = r"(?:\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'|\\.|[^\s\"'|;&<>()\\])+"
_QUOTED = r"\\?\"[^\"\\\n]*\\?\"|'[^'\n]*'"
_REST = r"(?m)[^\s\"'{\[#](?:(?!\s+#|\s*$)[^\n])*"  # the rest of a line, as in YAML and shell scripts
_FLOW_VALUE = r"[^\s,}\]\"'{\[][^,}\]\n]*"
_FLAG = r"(?<![\w-])--?(?P<name>[A-Za-z][\w.-]*)(?:=|\s+)"
_ASSIGNMENT = r"(?<![\w$.-])(?P<name>[A-Za-z_][\w.-]*)="
_FIELD = r"\\?[\"'](?P<name>[A-Za-z_][\w.-]*)\\?[\"']\s*[:=]\s*"
_LITERAL = r"\b(?P<name>[A-Za-z_][\w.-]*)\s*[:=]\s*(?=[\"'])"
_LINE = r"(?m)^[+ -]?\s*(?:-\s+|export\s+)?(?P<name>[A-Za-z_][\w.-]*)\s*[:=]\s*(?![\s\"'])"
_FLOW = r"[{,]\s*(?P<name>[A-Za-z_][\w.-]*)\s*:\s*(?![\s\"'])"  # the key of a YAML mapping in braces
_HINTS = (  # noqa: SIM905 a text that contains none of these words, in lower case, is not searched for secrets
    "token passw passphrase secret credential key auth bearer webhook cookie dsn connection pwd _pat hf_ ghp_ gho_ "
    "ghu_ ghs_ ghr_ github_ glpat sk- sk_ rk_ xox xapp akia asia aiza ya29 npm_ pypi- dckr sg. dapi nvapi gsk_ r8_ eyj "
    ":// curl wget sshpass private"
).split()


@dataclass(frozen=True, slots=True)
class SecretRules:
    """The patterns of the settings, in addition to the built-in ones."""

    names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def file_patterns(self) -> tuple[str, ...]:
        return (*SECRET_FILES, *self.files)


DEFAULT_RULES = SecretRules()


# ---------------------------------------------------------------- by name


def is_secret_name(name: str, rules: SecretRules = DEFAULT_RULES, *, in_env: bool = False) -> bool:
    """Whether a parameter, a flag or a variable of this name contains a secret."""
    return _fits(name, rules.names, in_env)


@lru_cache(maxsize=4096)
def _fits(name: str, own: tuple[str, ...], in_env: bool) -> bool:
    """Check the user's patterns, the last one first, then those for variables, then the built-in ones."""
    spelled = re.sub(r"[^A-Z0-9]+", "_", re.sub(_WORD_START, "_", name).upper())
    if not own and not any(word in spelled or word in name.upper() for word in _WORDS):
        return False  # most names contain no word of a pattern
    for pattern in (*reversed(own), *(reversed(_ENV_NAMES) if in_env else ()), *reversed(SECRET_NAMES)):
        bare = pattern.removeprefix("!").upper().replace("-", "_").replace(".", "_")
        if matches(spelled, bare) or matches(name.upper(), bare):
            return not pattern.startswith("!")
    return False


def matches(text: str, pattern: str) -> bool:
    """Match as `fnmatchcase` does. Most patterns have stars only at their ends and are not compiled: to compile the
    built-in ones at every start would take longer than to read the study."""
    inner = pattern.strip("*")
    if any(mark in inner for mark in "*?["):
        return fnmatchcase(text, pattern)
    if pattern.startswith("*"):
        return inner in text if pattern.endswith("*") else text.endswith(inner)
    return text.startswith(inner) if pattern.endswith("*") else text == inner


def is_secret(name: str, value: object, rules: SecretRules = DEFAULT_RULES, *, in_env: bool = False) -> bool:
    """Whether a value is secret. Numbers, booleans and empty values are not, but a password may be a number."""
    if value is None or isinstance(value, bool) or not is_secret_name(name, rules, in_env=in_env):
        return False
    if isinstance(value, list | dict):
        return bool(value)
    text = str(value).strip()
    if text.lower() in _PLAIN_WORDS:
        return False
    return not re.fullmatch(_NUMBER, text) or re.search(_STRONG, name.upper().replace("-", "_")) is not None


# ---------------------------------------------------------------- files


FileMatcher = Callable[[str, str, bool], bool]  # name, relative path, whether the path is a folder


def build_file_matcher(patterns: Sequence[str]) -> FileMatcher:
    """Build a matcher for files that look like secrets. A pattern that ends in a slash matches folders, a pattern with
    a slash inside matches a path. Source code and documents never match: `credentials.py` is a program."""
    sorts = groupby(patterns, lambda pattern: (not pattern.startswith("!"), pattern.endswith("/")))
    rules = [(is_taken, folders, _join(group)) for (is_taken, folders), group in sorts]

    def matches(name: str, path: str, is_folder: bool) -> bool:
        name = name.lower()
        if not is_folder and name.endswith(_READABLE):
            return False
        fitting = (taken for taken, folders, fits in reversed(rules) if folders == is_folder and fits(name, path))
        return next(fitting, False)

    return matches


def holds_tokens(data: bytes) -> bool:
    """Whether a file contains tokens for `assay serve`: a scope and a token on every line."""
    lines = [line.split() for line in data.splitlines() if line.strip() and not line.startswith(b"#")]
    return bool(lines) and all(len(words) == 2 and words[0].partition(b":")[0] in _SCOPES for words in lines)


_SCOPES = (b"read", b"write", b"upload")
_READABLE = (
    *(".py", ".pyi", ".pyx", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".go", ".js", ".ts", ".java"),
    *(".jl", ".r", ".lua", ".scala", ".md", ".rst", ".html", ".css", ".svg", ".png"),
)


def _join(patterns: Iterable[str]) -> Callable[[str, str], bool]:
    """Join patterns. Most patterns have stars only at their ends: comparing texts is faster than one expression."""
    tidy = [pattern.removeprefix("!").removeprefix("./").rstrip("/") for pattern in patterns]
    names = [each.lower() for each in tidy if "/" not in each]
    plain = [each for each in names if not any(mark in each.strip("*") for mark in "*?[")]
    ends: dict[tuple[bool, bool], list[str]] = {}  # key: whether the pattern begins with a star, and ends with one
    for each in plain:
        ends.setdefault((each.startswith("*"), each.endswith("*")), []).append(each.strip("*"))
    whole, inner = frozenset(ends.get((False, False), ())), ends.get((True, True), [])
    first, last = tuple(ends.get((False, True), ())), tuple(ends.get((True, False), ()))
    by_name = "|".join(translate(each) for each in names if each not in plain) or r"(?!)"
    by_path = "|".join(translate(each.lstrip("/")) for each in tidy if "/" in each) or r"(?!)"

    def fits(name: str, path: str) -> bool:
        if name in whole or name.startswith(first) or name.endswith(last) or any(each in name for each in inner):
            return True
        return bool(re.match(by_name, name) or re.match(by_path, path))

    return fits


# ---------------------------------------------------------------- in texts


def may_hold_secrets(text: str, rules: SecretRules = DEFAULT_RULES) -> bool:
    """Whether a text needs a closer check: nearly all of a hundred thousand command lines contain no secret."""
    lowered = text.lower()
    return bool(rules.names) or any(hint in lowered for hint in _HINTS)


def hide_text(text: str, rules: SecretRules = DEFAULT_RULES, known: Iterable[str] = ()) -> str:
    """Replace each secret in a command line, or any other text, by `***`. `known`: secret values to replace."""
    for value in sorted(known, key=len, reverse=True):
        for form in (value, shlex.quote(value)) if len(value) >= _LEAST_KNOWN else ():
            text = text.replace(form, HIDDEN)
    if not may_hold_secrets(text, rules):
        return text
    text = _hide_forms(text)
    text = _hide_values(text, _FLAG, _VALUE, rules, in_env=False)
    text = _hide_values(text, _ASSIGNMENT, _VALUE, rules, in_env=True)
    return _hide_values(text, _FIELD, _QUOTED, rules, in_env=False)


def _hide_forms(text: str) -> str:
    text = re.sub(_TOKEN, HIDDEN, text)
    text = re.sub(_URL_PASSWORD, rf"\1:{HIDDEN}", text)
    text = re.sub(_HEADER, rf"\1{HIDDEN}", text)
    if re.search(_TAKES_LOGIN, text):
        text = re.sub(_LOGIN, rf"\1{HIDDEN}", text)
    return re.sub(_PRIVATE_KEY, rf"\1{HIDDEN}\2", text)


def _hide_values(text: str, head: str, value: str, rules: SecretRules, *, in_env: bool) -> str:
    """Replace the text after each head with a secret name by `***`; text after another head may contain a head."""
    parts, last = [], 0
    for found in re.finditer(head, text):
        if found.start() < last or not is_secret_name(found["name"], rules, in_env=in_env):
            continue
        match = re.compile(value).match(text, found.end())
        if match is not None:
            parts += [text[last : found.end()], _hide_value(found["name"], match[0], rules, in_env=in_env)]
            last = match.end()
    return "".join([*parts, text[last:]])


def _hide_value(name: str, value: str, rules: SecretRules, *, in_env: bool) -> str:
    """Replace a value by `***` in its quotes; references to variables, other flags and hidden values stay."""
    bare = value.strip().strip("\\\"'")
    if bare.startswith(("$", "-", "`")) or not is_secret(name, bare, rules, in_env=in_env):
        return value
    quotes = re.fullmatch(r"(\\?[\"']).*\1", value, re.DOTALL)
    return f"{quotes[1]}{HIDDEN}{quotes[1]}" if quotes else HIDDEN


def hide_assignment(text: str, rules: SecretRules = DEFAULT_RULES) -> str:
    """Hide the whole value of `NAME=VALUE` if the name is secret, else each secret in the text."""
    name, equals, value = text.partition("=")
    if equals and is_secret(name.strip(), value, rules):
        return f"{name}={HIDDEN}"
    return _hide_values(hide_text(text, rules), _FLOW, _FLOW_VALUE, rules, in_env=True)


def hide_arguments(
    words: Sequence[str], rules: SecretRules = DEFAULT_RULES, known: Iterable[str] = ()
) -> tuple[str, ...]:
    """Hide secrets in a command line that is already split into arguments."""
    known = tuple(known)
    found: list[str] = []
    for index, word in enumerate(words):
        flag = words[index - 1] if index else ""
        is_value = flag.startswith("-") and "=" not in flag and not word.startswith("-")
        hidden = is_value and is_secret(flag.lstrip("-"), word, rules)
        found.append(HIDDEN if hidden else hide_text(word, rules, known))
    return tuple(found)


def hide_diff(diff: str, rules: SecretRules = DEFAULT_RULES, known: Iterable[str] = ()) -> str:
    """Return a diff without the contents of files that look like secrets, and with `***` for each secret in others."""
    parts = re.split(r"(?m)^(?=diff --git )", diff)
    matches, known = build_file_matcher(rules.file_patterns), tuple(known)
    return "".join(_hide_part(part, rules, matches, known) for part in parts)


def holds_secrets(text: str, rules: SecretRules = DEFAULT_RULES) -> bool:
    """Whether the text of a file, such as a study's, contains a value that would be hidden."""
    part = f"diff --git a/study.yml b/study.yml\n{text}"
    return hide_diff(part, rules) != part or hide_text(text, rules) != text


def _hide_part(part: str, rules: SecretRules, matches: FileMatcher, known: tuple[str, ...]) -> str:
    head = part.partition("\n")[0]
    names = re.findall(r"(?:^| )\"?[ab]/(.+?)\"?(?= \"?b/|$)", head.removeprefix("diff --git"))
    if any(_is_secret_path(name, matches) for name in names):
        return f"{head}\n[left out: the file's name looks like a secret]\n"
    if not known and not may_hold_secrets(part, rules):
        return part
    text = _hide_forms(part)
    for value in known:
        text = text.replace(value, HIDDEN) if len(value) >= _LEAST_KNOWN else text
    for before in (_FIELD, _LITERAL):
        text = _hide_values(text, before, _QUOTED, rules, in_env=True)
    is_program = bool(names) and names[-1].endswith(_PROGRAMS)
    if is_program:
        return text
    text = _hide_values(text, _FLOW, _FLOW_VALUE, rules, in_env=True)
    return _hide_values(text, _LINE, _REST, rules, in_env=True)


def _is_secret_path(path: str, matches: FileMatcher) -> bool:
    """Whether a path is a secret file, or is inside of a secret folder."""
    *folders, name = path.split("/")
    inside = ("/".join(folders[: index + 1]) for index in range(len(folders)))
    return matches(name, path, False) or any(matches(each.rpartition("/")[2], each, True) for each in inside)


_PROGRAMS = (
    *(".py", ".pyi", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".h", ".rs", ".go", ".js", ".ts", ".java", ".jl", ".md"),
)


# ---------------------------------------------------------------- in runs


def hide_params(params: Mapping[str, Any], rules: SecretRules = DEFAULT_RULES) -> dict[str, Any]:
    """Return a run's parameters without their secrets."""
    return {
        name: HIDDEN if is_secret(str(name), value, rules) else _hide_inside(value, rules)
        for name, value in params.items()
    }


def _hide_inside(value: Any, rules: SecretRules) -> Any:
    if isinstance(value, str):
        return hide_text(value, rules)
    if isinstance(value, dict):
        return hide_params(value, rules)
    if isinstance(value, list):
        return [_hide_inside(inner, rules) for inner in value]
    return value


def hide_named(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hide secrets by name only, without searching plain texts: a fast way for the files of other tools."""
    found = {name: each for name, each in params.items() if isinstance(each, dict | list) or is_secret(str(name), each)}
    return {**params, **hide_params(found)} if found else params


def find_values(params: Mapping[str, Any], env: Iterable[tuple[str, str]], rules: SecretRules) -> tuple[str, ...]:
    """Return the secret values of parameters and variables as texts."""
    found = [str(value) for name, value in params.items() if is_secret(str(name), value, rules)]
    return tuple(found + [value for name, value in env if is_secret(name, value, rules, in_env=True)])


def hide_spec(spec: RunSpec, rules: SecretRules = DEFAULT_RULES, shown: Sequence[Command] | None = None) -> RunSpec:
    """Return the run without its secrets, which move to `private` and are written to one file only. `shown`: the
    commands with hidden parameters filled in, if the caller has the templates."""
    if spec.private is not None:
        return spec
    known = find_values(spec.params, spec.env, rules)
    params = hide_params(spec.params, rules)
    commands = tuple(replace(each, text=hide_text(each.text, rules, known)) for each in shown or spec.commands)
    env = tuple((name, _hide_variable(name, value, rules, known)) for name, value in spec.env)
    if (params, commands, env) == (spec.params, spec.commands, spec.env):
        return spec
    real = zip(spec.commands, commands, strict=True)
    private = Private(
        commands={command.name: command.text for command, hidden in real if command != hidden},
        env={name: value for (name, value), (_, hidden) in zip(spec.env, env, strict=True) if value != hidden},
        values=known,
    )
    tag = None if spec.tag is None else hide_text(spec.tag, rules, known)
    return replace(spec, params=params, commands=commands, env=env, tag=tag, private=private)


def hide_env(spec: RunSpec, rules: SecretRules = DEFAULT_RULES) -> RunSpec:
    """Return the run without secret variables, if its parameters and commands contain no secret."""
    hidden = _hide_variables(spec.env, rules)
    return replace(spec, env=hidden[0], private=hidden[1]) if hidden else spec


@lru_cache(maxsize=16)
def _hide_variables(
    env: tuple[tuple[str, str], ...], rules: SecretRules
) -> tuple[tuple[tuple[str, str], ...], Private] | None:
    """Hide secret variables, which all runs of a study share; None if nothing is secret."""
    known = find_values({}, env, rules)
    hidden = tuple((name, _hide_variable(name, value, rules, known)) for name, value in env)
    real = {name: value for (name, value), (_, shown) in zip(env, hidden, strict=True) if value != shown}
    return (hidden, Private(env=real, values=known)) if real else None


def _hide_variable(name: str, value: str, rules: SecretRules, known: Iterable[str]) -> str:
    return HIDDEN if is_secret(name, value, rules, in_env=True) else hide_text(value, rules, known)
