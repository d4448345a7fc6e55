"""Programs by variable and by PATH, and what they say of themselves."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InfrastructureError, UsageError
from assay.models.backends import programs
from assay.models.backends.programs import (
    ask_version,
    describe_called,
    describe_environment,
    describe_program,
    describe_words,
    find_matching,
    find_program,
    hash_file,
    hash_tree,
    name_variable,
    parse_template,
)


def write_program(path, text="#!/bin/sh\necho hello"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("program", "variable"),
    [("torq-compile", "TORQ_COMPILE"), ("torq-run-module", "TORQ_RUN_MODULE"), ("python3.11", "PYTHON3_11")],
)
def test_the_variable_of_a_program(program, variable):
    assert name_variable(program) == variable


def test_a_program_that_is_nowhere_names_both_places(tmp_path):
    with pytest.raises(InfrastructureError) as caught:
        find_program("torq-compile", {"PATH": str(tmp_path)}, str(tmp_path))
    assert "torq-compile was not found: $TORQ_COMPILE is not set, and it is not in PATH" in str(caught.value)
    assert "export TORQ_COMPILE=/path/to/torq-compile" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_text(""), "may not be executed"),
    ],
)
def test_a_variable_that_leads_nowhere(tmp_path, make, reason):
    path = tmp_path / "tool"
    make(path)
    with pytest.raises(InfrastructureError, match=rf"\$MY_TOOL is .*tool, which {reason}"):
        find_program("my-tool", {"PATH": "/bin", "MY_TOOL": str(path)}, str(tmp_path))
    with pytest.raises(InfrastructureError, match=reason):
        find_program("./tool", {}, str(tmp_path))


def test_the_variable_goes_before_path(tmp_path):
    (tmp_path / "bin").mkdir()
    inside, outside = write_program(tmp_path / "bin" / "my-tool"), write_program(tmp_path / "other tool")
    env = {"PATH": str(tmp_path / "bin")}
    assert find_program("my-tool", env, "/") == [str(inside)]
    assert find_program("my-tool", {**env, "MY_TOOL": str(outside)}, "/") == [str(outside)]
    assert find_program("my-tool", {**env, "MY_TOOL": ""}, "/") == [str(inside)]


def test_a_variable_may_hold_a_command(tmp_path):
    env = {"PATH": os.environ["PATH"], "MY_TOOL": f"{sys.executable} -u 'a script.py'"}
    assert find_program("my-tool", env, "/") == [sys.executable, "-u", "a script.py"]


def test_a_path_is_relative_to_the_project(tmp_path):
    path = write_program(tmp_path / "tool")
    assert find_program("./tool", {}, str(tmp_path)) == [str(path)]


@pytest.mark.parametrize("given", ["./bin/my-tool", "bin/my-tool --k 1"])
def test_a_path_in_a_variable_is_relative_to_where_one_stands(tmp_path, monkeypatch, given):
    """The program runs elsewhere: there the same words would be another program, or none."""
    (tmp_path / "bin").mkdir()
    path = write_program(tmp_path / "bin" / "my-tool")
    monkeypatch.chdir(tmp_path)
    env = {"PATH": "/bin", "MY_TOOL": given}
    assert find_program("my-tool", env, "/") == [str(path), *given.split()[1:]]
    assert find_program("my-tool", {"PATH": "bin"}, "/") == [str(path)]


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo tool 1.2; echo more", "tool 1.2 more"),
        ("echo no >&2; exit 1", ""),
        ("exec sleep 1000", ""),
        ("yes", ""),
        ("cat; echo asked", "asked"),
    ],
)
def test_versions_are_asked_carefully(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr("assay.models.backends.programs.VERSION_S", 0.5)
    program = write_program(tmp_path / "tool", f"#!/bin/sh\n{text}\n")
    assert ask_version([str(program), "--version"], os.environ, str(tmp_path)) == said


def test_a_version_of_nothing(tmp_path):
    assert ask_version([str(tmp_path / "none")], {}, str(tmp_path)) == ""


def test_words_that_are_nothing_report_nothing(tmp_path):
    words = ["--flag", "", "none", "a" * 5000, "x\0y", "print(1); print(2)", "--k=3", "-"]
    assert describe_words(words, str(tmp_path)) == {}
    assert describe_words(["x"], os.path.join(os.devnull, "x")) == {}


@pytest.mark.parametrize(
    "word", ["s.json", "--config=s.json", "-Is.json", "@s.json", "--all=t.json,s.json", "a:s.json"]
)
def test_a_file_counts_however_it_is_named(tmp_path, word):
    (tmp_path / "s.json").write_text("1")
    first = describe_words([word], str(tmp_path))
    assert first
    (tmp_path / "s.json").write_text("2")
    assert describe_words([word], str(tmp_path)) != first


def test_a_folder_counts_with_all_that_is_in_it(tmp_path):
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    inner = tmp_path / "lib" / "deep" / "x.py"
    inner.write_text("1")
    seen = [describe_words(["--lib=lib"], str(tmp_path))]
    inner.write_text("2")
    seen.append(describe_words(["--lib=lib"], str(tmp_path)))
    (tmp_path / "lib" / "new").touch()
    seen.append(describe_words(["--lib=lib"], str(tmp_path)))
    assert len({str(each) for each in seen}) == 3


@pytest.mark.parametrize("word", [".", "..", "/"])
def test_a_folder_that_we_stand_in_is_not_searched(tmp_path, word):
    (tmp_path / "runs").mkdir()
    assert describe_words([word], str(tmp_path)) == {}


def test_what_running_a_program_leaves_does_not_count(tmp_path):
    (tmp_path / "x.py").write_text("1")
    first = hash_tree(str(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("1")
    assert hash_tree(str(tmp_path)) == first


def test_links_in_a_folder_are_followed_and_loops_end(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("1")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "lib" / "loop").symlink_to(tmp_path / "lib")
    (tmp_path / "lib" / "broken").symlink_to(tmp_path / "none")
    first = hash_tree(str(tmp_path / "lib"))
    (tmp_path / "real" / "x").write_text("2")
    assert hash_tree(str(tmp_path / "lib")) != first


def test_a_file_that_is_edited_is_read_again_even_with_its_old_date(tmp_path, monkeypatch):
    path = tmp_path / "tool"
    path.write_text("one")
    monkeypatch.setattr(programs, "_FRESH_NS", -(10**18))  # everything is old
    first = hash_file(str(path))
    date = path.stat()
    assert hash_file(str(path)) == first
    while path.stat().st_ctime_ns == date.st_ctime_ns:  # the clock of files is a coarse one
        path.write_text("two")
        os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))
    assert hash_file(str(path)) != first


def test_a_file_that_was_just_written_is_not_remembered(tmp_path):
    path = tmp_path / "tool"
    path.write_text("one")
    hash_file(str(path))
    assert str(path) not in programs._hashes


# ---------------------------------------------------------------- programs


def test_arguments_of_a_program_count(tmp_path):
    tool = str(write_program(tmp_path / "tool"))
    assert describe_program([tool, "--k", "1"]) != describe_program([tool, "--k", "2"])


def test_one_content_in_two_places_is_two_programs(tmp_path):
    """Two virtual environments have one python, and other packages."""
    one, two = write_program(tmp_path / "a" / "tool"), write_program(tmp_path / "b" / "tool")
    assert describe_program([str(one)]) != describe_program([str(two)])


def test_where_a_link_leads_to_counts(tmp_path):
    write_program(tmp_path / "v1" / "tool")
    write_program(tmp_path / "v2" / "tool")
    link = tmp_path / "current"
    link.symlink_to("v1")
    first = describe_program([str(link / "tool")])
    link.unlink()
    link.symlink_to("v2")
    assert describe_program([str(link / "tool")]) != first


def behind(path, *folders):
    env = {"PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]])}
    return describe_called([str(path)], "/", env)


@pytest.mark.parametrize(
    "text",
    [
        '#!/bin/sh\nexec {folder}/real "$@"\n',
        '#!/bin/sh\nexec real-tool "$@"\n',
        '#!/bin/sh\nset -e\nREAL={folder}/real\n"$REAL" "$@"\n',
        '#!/bin/bash\nexec "$(dirname "$0")/real" "$@"\n',
        "#!/bin/sh\nexec ${{0%/*}}/real $@\n",
        "#!/usr/bin/env -S bash -e\nreal-tool\n",
        "#!/usr/bin/env real-tool\nprogram text\n",
        "#!{folder}/real\nprogram text\n",
    ],
)
def test_what_a_wrapper_calls_counts(tmp_path, text):
    real = write_program(tmp_path / "real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "real-tool").symlink_to(real)
    tool = write_program(tmp_path / "tool", text.format(folder=tmp_path))
    first = behind(tool, tmp_path / "bin")
    real.write_text("#!/bin/sh\necho changed")
    assert behind(tool, tmp_path / "bin") != first


def test_a_wrapper_of_a_wrapper(tmp_path):
    real = write_program(tmp_path / "real")
    inner = write_program(tmp_path / "inner", f"#!/bin/sh\nexec {real}\n")
    tool = write_program(tmp_path / "tool", f"#!/bin/sh\nexec {inner}\n{tmp_path}/tool\n")
    first = behind(tool)
    real.write_text("#!/bin/sh\necho changed")
    assert behind(tool) != first


def test_packages_of_the_python_that_runs_it_count(tmp_path):
    """`pip install -U` leaves the script as it is."""
    write_program(tmp_path / "bin" / "python")
    tool = write_program(tmp_path / "tool", f"#!{tmp_path}/bin/python\nfrom vendor import main\n")
    record = tmp_path / "lib" / "python3.12" / "site-packages" / "vendor-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("vendor/__init__.py,sha256=1,1")
    seen = [behind(tool), behind(tmp_path / "bin" / "python")]
    record.write_text("vendor/__init__.py,sha256=2,1")
    assert behind(tool) != seen[0]
    assert behind(tmp_path / "bin" / "python") != seen[1]


def test_packages_are_looked_at_again_when_one_is_installed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_FRESH_NS", -(10**18))  # everything is old, and so remembered
    write_program(tmp_path / "bin" / "python")
    record = tmp_path / "lib" / "python3.12" / "site-packages" / "vendor-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("vendor/__init__.py,sha256=1,1")
    first = behind(tmp_path / "bin" / "python")
    assert behind(tmp_path / "bin" / "python") == first
    place, date = record.parents[1], record.parents[1].stat().st_ctime_ns
    record.write_text("vendor/__init__.py,sha256=2,1")
    while place.stat().st_ctime_ns == date:  # the clock of files is a coarse one
        record.parent.rename(place / "aside")
        (place / "aside").rename(record.parent)
    assert behind(tmp_path / "bin" / "python") != first


def test_a_long_script_is_not_searched_and_its_interpreter_counts(tmp_path):
    other = write_program(tmp_path / "other")
    tool = write_program(tmp_path / "tool", "#!/bin/sh\n" + f"{other}\n" * 10_000)
    assert str(other) not in behind(tool)
    assert "/bin/sh" in behind(tool)


# ---------------------------------------------------------------- variables


def test_files_and_folders_of_variables_count(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "x.py").write_text("1")
    (tmp_path / "s.json").write_text("1")
    own = {"PYTHONPATH": "other:lib", "SETTINGS": "s.json", "LEVEL": "3"}
    seen = [describe_environment(own, str(tmp_path), {})]
    for name in ("lib/x.py", "s.json"):
        (tmp_path / name).write_text("2")
        seen.append(describe_environment(own, str(tmp_path), {}))
    assert len({str(each) for each in seen}) == 3


def test_path_is_not_hashed():
    assert describe_environment({"PATH": "/usr/bin:/bin"}, "/", {}) == {}


@pytest.mark.parametrize("name", programs.SEARCHED)
def test_where_programs_look_for_their_parts_counts(name):
    seen = [describe_environment({}, "/", {name: value, "HOME": value}) for value in ("", "/opt/v1", "/opt/v2")]
    assert seen == [{}, {name: "/opt/v1"}, {name: "/opt/v2"}]


def test_files_of_all_cases(tmp_path):
    for name in ("a.json", "b.json", "c.txt"):
        (tmp_path / name).touch()
    assert find_matching("--calibration=*.json", str(tmp_path)) == [
        str(tmp_path / each) for each in ("a.json", "b.json")
    ]


def test_our_own_python_is_described():
    """The one that runs this test: many packages, and none of them is lost."""
    assert f"packages of {sys.executable}" in describe_called([sys.executable], "/", os.environ)


# ---------------------------------------------------------------- command templates

KNOWN = ("model", "artifact", "out", "ir_dir", "profile_dir", "chip", "flags", "case")
VALUES = {
    "model": "m.onnx",
    "artifact": "a b",
    "out": "o",
    "ir_dir": None,
    "profile_dir": None,
    "chip": None,
    "flags": ["-x", "-y z"],
    "case": "",
}


def expand(content, **values):
    return parse_template(content, KNOWN, "target sim: compile").expand({**VALUES, **values})


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ([], "is empty"),
        (3, "must be a text or a list"),
        ([1], "1 is neither a word nor a list of words"),
        ([[]], r"\[\] is neither"),
        ([["a", 1]], "is neither"),
        ("cc 'x", "cannot be split into words"),
        ("cc {modell}", r"{modell} is not known here\n  did you mean 'model'"),
        ("cc {inputs}", r"{inputs} is not known here\n  known: artifact, case"),
        ("cc {", "a lone brace in '{'"),
        ("cc x}", "a lone brace in 'x}'"),
        ("cc '{\"a\": 1}'", "write {{ and }} for braces"),
        ("cc [--a {ir_dir}", "the bracket before '--a' is never closed"),
        ("cc [--fast]", r"\[--fast\] asks for nothing that may be absent"),
        ("cc [1,2]", r"write \[\[ \]\] for brackets"),
    ],
)
def test_a_template_that_is_wrong_reports_where_and_what(content, words):
    with pytest.raises(UsageError, match=words) as caught:
        expand(content)
    assert str(caught.value).startswith("target sim: compile")


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize(
    ("content", "argv"),
    [
        ("cc {model} -o {artifact}", ["cc", "m.onnx", "-o", "a b"]),
        (["cc", "{model}", "-o={artifact}"], ["cc", "m.onnx", "-o=a b"]),
        ("cc 'two words' \"{model}\"", ["cc", "two words", "m.onnx"]),
        ("cc {flags} end", ["cc", "-x", "-y z", "end"]),
        ("cc --all={flags}", ["cc", "--all=-x -y z"]),
        ("cc {{model}} {{}}", ["cc", "{model}", "{}"]),
        ("cc --dump={ir_dir} {model}", ["cc", "m.onnx"]),
        ("cc [--dump {ir_dir} --all] {model}", ["cc", "m.onnx"]),
        ("cc [--dump={ir_dir}] [--chip {chip}]", ["cc"]),
        (["cc", ["--dump", "{ir_dir}"], "{model}"], ["cc", "m.onnx"]),
        ("cc [[1,2]] --s=[1,2]", ["cc", "[1,2]", "--s=[1,2]"]),
        ("cc '{case}' x", ["cc", "", "x"]),
    ],
)
def test_words(content, argv):
    assert expand(content) == argv


@pytest.mark.parametrize(
    "content", ["cc [--dump {ir_dir} --all] {model}", ["cc", ["--dump", "{ir_dir}", "--all"], "{model}"]]
)
def test_a_part_is_there_when_its_value_is(content):
    assert expand(content, ir_dir="d") == ["cc", "--dump", "d", "--all", "m.onnx"]


def test_no_flags_are_no_words():
    assert expand("cc {flags} {model}", flags=[]) == ["cc", "m.onnx"]


def test_values_are_never_expanded_again():
    assert expand("cc {model}", model="{artifact} [x] 'y") == ["cc", "{artifact} [x] 'y"]


@given(st.text(), st.lists(st.text(), max_size=4))
def test_any_value_is_one_word_and_any_list_is_its_words(value, flags):
    assert expand(["cc", "{model}", "{flags}"], model=value, flags=flags) == ["cc", value, *flags]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="{}")), min_size=1, max_size=5))
def test_plain_words_of_a_list_stay_as_they_are(words):
    assert expand(words) == words
