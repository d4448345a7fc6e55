"""The commands that submit jobs to a farm, and the lines that show them, as strings: nothing is executed here.

All strings are shell text, since SUBMIT_CMD and RESOURCES are shell text: a value may have several arguments or flags.
Inserted values (paths, names, the job's command) are quoted for their position.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping

from assay.errors import UsageError
from assay.execute.script import quote_text
from assay.system.fast_dataclasses import replace
from assay.system.files import blake2b
from assay.values import layout
from assay.values.run import JobRequest
from assay.values.study import Farm, Quote, Value, quote_inside

_SHELLS = {"ash", "bash", "dash", "fish", "ksh", "mksh", "sh", "zsh"}
_RUN_DIR_WORD = "LOGDIR"
_NAMES = "job|name|slug|resources|command|dir|script|native_id"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<literal>{_NAMES})\}}\}}|(?<!\$)\{{(?P<name>{_NAMES})\}}")
_QUOTES: dict[str, Quote] = {"'": "single", '"': "double"}
_LABEL_LENGTH = 63  # the most characters that a name of Kubernetes may have


def build_submit_command(farm: Farm, request: JobRequest) -> str:
    """Return the bash text that submits attempt N of a run; the job starts `job.sh`, whatever the run's commands."""
    if farm.kind == "template":
        if not {"command", "script"} & _find_placeholders(farm.submit):
            hint = "write {command} or {script} where the farm's command takes the job"
            raise UsageError(f"the template of the farm {farm.name} submits nothing: {farm.submit}", hint)
        return _fill(farm.submit, _template_values(farm, request))
    name = shlex.quote(build_farm_name(farm, request))
    line = _render_line(farm, request, quote_text(build_job_command(farm, request)), name)
    return f"{_upload(farm, request)}{line}" if _is_ngc_batch(farm) else line


def render_submit_line(farm: Farm, request: JobRequest, training_command: str) -> str:
    """Return the submit line for display, with the training command instead of job.sh. As in runx's document, `--name`
    is shown for tagged runs only, and always for draco and NGC, but with the name that is submitted."""
    if farm.kind == "template":
        return _fill(farm.submit, {**_template_values(farm, request), "command": training_command})
    name = shlex.quote(build_farm_name(farm, request))
    if _has_own_form(farm):
        return _render_line(farm, request, quote_text(training_command), name)
    return _render_line(farm, request, f'"{quote_inside(training_command, "double")}"', name if request.label else None)


def build_job_command(farm: Farm, request: JobRequest) -> str:
    """Return `env ASSAY_…=… bash /path/job.sh`: a farm does not pass the environment on by itself."""
    script = shlex.quote(f"{build_state_dir(farm, request.dir)}/{layout.JOB_FILE}")
    return f"env {_assignments(request)} bash {script}"


def build_exec_command(farm: Farm, request: JobRequest) -> str:
    """Return the job's command with `exec`, which replaces the bash that executes it."""
    return f"{_assignments(request)} exec bash {shlex.quote(f'{build_state_dir(farm, request.dir)}/{layout.JOB_FILE}')}"


def build_job_script(farm: Farm, request: JobRequest) -> str:
    """Return the content of a file with the job's command, for farms that take a script (qsub, bsub <)."""
    return f"#!/usr/bin/env bash\nexec {build_job_command(farm, request)}\n"


def build_state_dir(farm: Farm, run_dir: str) -> str:
    """Return the folder in which the job's files appear: the run directory, or the run's folder below NGC_LOGROOT."""
    if farm.kind != "ngc" or not farm.remote_root:
        return run_dir
    return f"{farm.remote_root.rstrip('/')}/{_study_and_run(run_dir)}"


def build_job_name(request: JobRequest) -> str:
    """Return `<study>_<run>`, as runx names jobs, with the number of the attempt from the second attempt on."""
    name = re.sub(r"[^\w.,=+@-]+", "_", request.name).lstrip("-.") or "run"
    return f"{name}{layout.attempt_suffix(request.attempt)}"


def build_farm_name(farm: Farm, request: JobRequest) -> str:
    """Return the value of `--name`: as in runx's document the name of a tagged run, except for draco and NGC."""
    if not request.label or _has_own_form(farm):
        return build_job_name(request)
    return build_job_name(replace(request, name=request.label))


def build_slug(request: JobRequest) -> str:
    """Return the job's name in the form of Kubernetes: lower case, digits and dashes, at most 63 characters."""
    mark = blake2b(f"{request.dir}\0{request.attempt}".encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    plain = re.sub(r"[^a-z0-9]+", "-", build_job_name(request).lower()).strip("-")
    return f"{plain[: _LABEL_LENGTH - len(mark) - 3].strip('-') or 'run'}-{mark}".removeprefix("-")


def build_cancel_command(farm: Farm, run_dir: str, attempt: int, native_id: str) -> str | None:
    if not farm.cancel:
        return None
    request = JobRequest(dir=run_dir, name=_study_and_run(run_dir), attempt=attempt)
    return _fill(farm.cancel, {**_template_values(farm, request), "native_id": native_id})


def parse_native_id(output: str) -> str:
    """Return a farm's id of a job: the first integer that its submit command printed, else the last word of line 1."""
    number = re.search(r"(?<![\w.])\d+(?![\w])", output)
    if number:
        return number[0]
    words = output.strip().partition("\n")[0].split()
    return words[-1] if words else ""


def is_shell(farm: Farm) -> bool:
    """Return whether SUBMIT_CMD is a bare shell: it takes no --name, and its end is the job's end."""
    words = _words(farm.submit)
    while words and re.match(r"\w+=", words[0]):
        words.pop(0)
    is_bare = bool(words) and os.path.basename(words[0]) in _SHELLS and all(word[:1] == "-" for word in words[1:])
    return farm.kind == "generic" and is_bare


def find_program(farm: Farm) -> str | None:
    """Return the program that submits, which is checked before anything is written; None if the text is not plain."""
    words = [word for word in _words(farm.submit) if not re.match(r"\w+=", word)]
    program = os.path.expanduser(os.path.expandvars(words[0])) if words else ""
    return program if re.fullmatch(r"[\w./+@-]+", program) else None


def uses_script(farm: Farm) -> bool:
    return farm.kind == "template" and "script" in _find_placeholders(farm.submit)


def _find_placeholders(template: str) -> set[str]:
    return {match["name"] for match in _PLACEHOLDER.finditer(template) if match["name"]}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


# ---------------------------------------------------------------- the forms


def _render_line(farm: Farm, request: JobRequest, command: str, name: str | None) -> str:
    head = " ".join(filter(None, (farm.submit, render_resources(farm, request))))
    if not _has_own_form(farm):
        named = f" --name {name}" if name and not is_shell(farm) else ""
        return f"{head}{named} -c {command}"
    where = build_state_dir(farm, request.dir)
    if _is_ngc_batch(farm):
        workspace, there = _need(farm.workspace, farm, "WORKSPACE"), _need(farm.remote_root, farm, "NGC_LOGROOT")
        mount = shlex.quote(f"{workspace}:{there}:RW")
        return f"{head}  --name {name} --commandline {command} --workspace {mount}"
    return f"{head}  --name {name} --command {command} --logdir {shlex.quote(where + '/gcf_log')}"


def _has_own_form(farm: Farm) -> bool:
    return farm.kind in ("draco", "ngc")


def _is_ngc_batch(farm: Farm) -> bool:
    return farm.kind == "ngc" and "submit_job" not in farm.submit


def _upload(farm: Farm, request: JobRequest) -> str:
    """Return the command that copies the run directory into the workspace, unless an earlier attempt has copied it."""
    workspace = _need(farm.workspace, farm, "WORKSPACE")
    paths = ["--source", request.dir, "--destination", _study_and_run(request.dir)]
    upload = shlex.join(["ngc", "workspace", "upload", *paths, workspace])
    if request.attempt == 1:
        return f"{upload} && "
    there = shlex.quote(f"{build_state_dir(farm, request.dir)}/{layout.JOB_FILE}")
    return f"{{ [ -e {there} ] || {upload}; }} && "


def _need(value: str | None, farm: Farm, key: str) -> str:
    if not value:
        raise UsageError(f"the farm {farm.name} has no {key}", f"add `{key}: …` to its section in .runx")
    return value


def _study_and_run(run_dir: str) -> str:
    study, run = os.path.split(run_dir.rstrip("/"))
    return f"{os.path.basename(study)}/{run}"


def _assignments(request: JobRequest) -> str:
    pairs = {**request.env, layout.ENV_ATTEMPT_NUMBER: str(request.attempt), layout.ENV_ATTEMPT: request.tag}
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in pairs.items() if value)


# ---------------------------------------------------------------- resources


def render_resources(farm: Farm, request: JobRequest) -> str:
    """Render `--gpu 2 --cpu 16`: true is a flag, false and null add nothing, a list repeats its flag."""
    merged = {**dict(farm.resources), **dict(request.farm_resources)}
    where = build_state_dir(farm, request.dir)
    return " ".join(flag for key, value in merged.items() for flag in _flags(key, value, where))


def _flags(key: str, value: Value, where: str) -> Iterator[str]:
    if value is None or value is False:
        return
    if value is True:
        yield f"--{key}"
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flags(key, item, where)
    else:
        yield f"--{key} {_insert(str(value), {_RUN_DIR_WORD: where}, re.compile(_RUN_DIR_WORD))}"


# ---------------------------------------------------------------- putting values into shell text


def _template_values(farm: Farm, request: JobRequest) -> dict[str, str]:
    where = build_state_dir(farm, request.dir)
    return {
        "job": build_job_name(request),
        "name": request.name,
        "slug": build_slug(request),
        "resources": render_resources(farm, request),
        "command": build_job_command(farm, request),
        "dir": where,
        "script": f"{where}/{layout.submit_script_name(request.attempt)}",
    }


def _fill(template: str, values: Mapping[str, str]) -> str:
    return _insert(template, values, _PLACEHOLDER, plain=("resources",))


def _insert(text: str, values: Mapping[str, str], placeholder: re.Pattern[str], plain: tuple[str, ...] = ()) -> str:
    """Replace placeholders by values, each quoted as the shell's quotes around it demand. Values that `plain` names are
    shell text and are not quoted."""
    done: list[str] = []
    quote, last = "", 0
    for match in placeholder.finditer(text):
        quote = _quote_state(text[last : match.start()], quote)
        groups = match.groupdict()
        name = groups.get("name") or match[0]
        value = values.get(name, match[0])
        if groups.get("literal"):
            value = f"{{{groups['literal']}}}"
        elif name in values and name not in plain:
            value = quote_inside(value, _QUOTES.get(quote, "bare"))
        done += [text[last : match.start()], value]
        last = match.end()
    return "".join([*done, text[last:]])


def _quote_state(text: str, quote: str) -> str:
    """Return which quotes are open at the end of a piece of shell text: none, single or double."""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif char in "'\"" and not quote:
            quote = char
    return quote
