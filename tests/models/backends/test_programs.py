"""Programs by variable and by PATH, and what they say of themselves."""

from __future__ import annotations

import os

import pytest
from tests.models.backends.backend_helpers import write_program

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
    parse_template,
)


def test_a_program_that_is_nowhere_names_both_places(tmp_path):
    with pytest.raises(InfrastructureError) as caught:
        find_program("torq-run.module", {"PATH": str(tmp_path)}, str(tmp_path))
    assert "torq-run.module was not found: $TORQ_RUN_MODULE is not set, and it is not in PATH" in str(caught.value)
    assert "export TORQ_RUN_MODULE=/path/to/torq-run.module" in str(caught.value)


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


def test_the_variable_goes_before_path(tmp_path, monkeypatch):
    """A path in it is relative to where one stands: where the program runs, it would be another one, or none."""
    inside, outside = write_program(tmp_path / "bin" / "my-tool"), write_program(tmp_path / "other tool")
    monkeypatch.chdir(tmp_path)
    for value, words in (
        ("", [inside]),
        ("./other tool", [outside]),
        ("./bin/my-tool", [inside]),
        ("bin/my-tool --k 1", [inside, "--k", "1"]),
        ("'./other tool' -u 'a script.py'", [outside, "-u", "a script.py"]),
    ):
        assert find_program("my-tool", {"PATH": "bin:/bin", "MY_TOOL": value}, "/") == [str(word) for word in words]
    assert find_program("./bin/my-tool", {}, str(tmp_path)) == [str(inside)], "of the project"


@pytest.mark.parametrize(
    ("text", "limit_s", "said"),
    [
        ("echo tool 1.2; echo more", 60, "tool 1.2 more"),
        ("cat; echo asked", 60, "asked"),
        ("echo no >&2; exit 1", 60, ""),
        ("exec sleep 1000", 0.1, ""),
        ("exec yes", 0.1, ""),
    ],
)
def test_versions_are_asked_carefully(tmp_path, monkeypatch, text, limit_s, said):
    monkeypatch.setattr(programs, "VERSION_S", limit_s)
    program = write_program(tmp_path / "tool", f"#!/bin/sh\n{text}\n")
    assert ask_version([str(program), "--version"], os.environ, str(tmp_path)) == said
    assert ask_version([str(tmp_path / "none")], {}, str(tmp_path)) == ""


def test_words_that_are_nothing_report_nothing(tmp_path):
    """A folder that we stand in is not searched."""
    words = ["--flag", "", "none", "a" * 5000, "x\0y", "print(1); print(2)", "--k=3", "-", ".", "..", "/"]
    assert describe_words(words, str(tmp_path)) == {}
    assert describe_words(["x"], os.path.join(os.devnull, "x")) == {}


@pytest.mark.parametrize(
    "word", ["s.json", "--config=s.json", "-Is.json", "@s.json", "--all=t.json,s.json", "a:s.json", "--lib=lib"]
)
def test_a_file_counts_however_it_is_named_and_a_folder_with_all_that_is_in_it(tmp_path, word):
    seen = []
    for text in "123":
        write_program(tmp_path / "s.json", text)
        write_program(tmp_path / "lib" / "deep" / ("x.py" if text < "3" else "new"), text)
        seen.append(str(describe_words([word], str(tmp_path))))
    assert "{}" not in seen
    assert len(set(seen)) == 3


def test_what_running_a_program_leaves_does_not_count_links_are_followed_and_loops_end(tmp_path):
    real, lib = write_program(tmp_path / "real" / "x"), tmp_path / "lib"
    lib.mkdir()
    for name, target in {"link": "real", "loop": "lib", "broken": "none"}.items():
        (lib / name).symlink_to(tmp_path / target)
    first = hash_tree(str(lib))
    write_program(lib / "__pycache__" / "x.pyc")
    assert hash_tree(str(lib)) == first
    real.write_text("2")
    assert hash_tree(str(lib)) != first


def test_a_file_that_is_edited_is_read_again_even_with_its_old_date(tmp_path, monkeypatch):
    path = tmp_path / "tool"
    path.write_text("one")
    hash_file(str(path))
    assert str(path) not in programs._hashes, "it was just written"
    monkeypatch.setattr(programs, "_FRESH_NS", -(10**18))  # everything is old
    first = hash_file(str(path))
    date = path.stat()
    assert hash_file(str(path)) == first
    while path.stat().st_ctime_ns == date.st_ctime_ns:  # the clock of files is a coarse one
        path.write_text("two")
        os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))
    assert hash_file(str(path)) != first


def test_the_words_of_a_program_where_it_is_and_where_its_link_leads_count(tmp_path):
    """Two virtual environments have one python, and other packages."""
    one, two = write_program(tmp_path / "v1" / "tool"), write_program(tmp_path / "v2" / "tool")
    seen = [describe_program([str(one), *more]) for more in ([], ["--k", "1"], ["--k", "2"])]
    seen.append(describe_program([str(two)]))
    link = tmp_path / "current"
    for target in ("v1", "v2"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        seen.append(describe_program([str(link / "tool")]))
    assert len({str(each) for each in seen}) == 6


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
        "#!/bin/sh\nexec {folder}/inner\n{folder}/tool\n",  # a wrapper of a wrapper
    ],
)
def test_what_a_wrapper_calls_counts(tmp_path, text):
    real = write_program(tmp_path / "real")
    write_program(tmp_path / "inner", f"#!/bin/sh\nexec {real}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "real-tool").symlink_to(real)
    tool = write_program(tmp_path / "tool", text.format(folder=tmp_path))
    first = behind(tool, tmp_path / "bin")
    real.write_text("#!/bin/sh\necho changed")
    assert behind(tool, tmp_path / "bin") != first


def test_packages_of_the_python_that_runs_it_count(tmp_path, monkeypatch):
    """`pip install -U` leaves the script as it is. They are looked at again when one is installed again."""
    python = write_program(tmp_path / "bin" / "python")
    tool = write_program(tmp_path / "tool", f"#!{tmp_path}/bin/python\nfrom vendor import main\n")
    record = write_program(tmp_path / "lib/python3.12/site-packages/vendor-1.0.dist-info/RECORD", "sha256=1,1")
    seen = [behind(tool), behind(python)]
    assert all(f"packages of {python}" in each for each in seen)
    record.write_text("sha256=2,1")
    assert behind(tool) != seen[0]
    monkeypatch.setattr(programs, "_FRESH_NS", -(10**18))  # everything is old, and so remembered
    second = behind(python)
    assert second != seen[1]
    assert behind(python) == second
    place, date = record.parents[1], record.parents[1].stat().st_ctime_ns
    record.write_text("sha256=3,1")
    while place.stat().st_ctime_ns == date:  # the clock of files is a coarse one
        record.parent.rename(place / "aside")
        (place / "aside").rename(record.parent)
    assert behind(python) != second


def test_a_long_script_is_not_searched_and_its_interpreter_counts(tmp_path):
    other = write_program(tmp_path / "other")
    found = behind(write_program(tmp_path / "tool", "#!/bin/sh\n" + f"{other}\n" * 10_000))
    assert str(other) not in found
    assert "/bin/sh" in found


def test_files_and_folders_of_variables_count_and_where_programs_look_for_their_parts(tmp_path):
    own = {"PYTHONPATH": "other:lib", "SETTINGS": "s.json", "LEVEL": "3", "PATH": "/usr/bin:/bin"}
    seen = []
    for name, text in (("lib/x.py", "1"), ("s.json", "1"), ("lib/x.py", "2"), ("s.json", "2")):
        write_program(tmp_path / name, text)
        seen.append(str(describe_environment(own, str(tmp_path), {})))
    assert len(set(seen)) == 4
    for name in programs.SEARCHED:
        seen = [describe_environment({}, "/", {name: value, "HOME": value}) for value in ("", "/opt/v1", "/opt/v2")]
        assert seen == [{}, {name: "/opt/v1"}, {name: "/opt/v2"}]


def test_files_of_all_cases(tmp_path):
    for name in ("a.json", "b.json", "c.txt"):
        (tmp_path / name).touch()
    assert find_matching("--calibration=*.json", str(tmp_path)) == [str(tmp_path / f"{each}.json") for each in "ab"]


KNOWN = ("model", "artifact", "out", "ir_dir", "profile_dir", "chip", "flags", "case")
VALUES = {**dict.fromkeys(KNOWN), "model": "m.onnx", "artifact": "a b", "flags": ["-x", "-y z"], "case": ""}


def expand(content, **values):
    return parse_template(content, KNOWN, "target sim: compile").expand({**VALUES, **values})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ([], "is empty"),
        (3, "must be a string or a list"),
        ([1], "1 is neither a word nor a list of words"),
        ([["a", 1]], "is neither"),
        ("cc 'x", "cannot be split into words"),
        ("cc {modell}", r"{modell} is not known here\n  did you mean 'model'"),
        ("cc {inputs}", r"{inputs} is not known here\n  known: artifact, case"),
        ("cc {", "a lone brace in '{'"),
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


@pytest.mark.parametrize(
    ("value", "flags"), [("{artifact} [x] 'y", []), ("", ["", "{flags}"]), ("{{", ["[a", "b]"]), ("\n\\\0", ["%s"])]
)
def test_any_value_is_one_word_any_list_is_its_words_and_none_is_expanded_again(value, flags):
    assert expand(["cc", "{model}", "{flags}"], model=value, flags=flags) == ["cc", value, *flags]
