import pytest

from assay.values import layout
from assay.values.layout import split_series


def test_attempts_that_the_newest_one_continues_count():
    names = ["a10-r0-h-1-1.jsonl", "a9-r1-h-1-1.jsonl", "a9-r2-h-1-1.jsonl", "a8-r0-h-1-1.jsonl"]
    assert split_series(names, [9]) == ([names[1], names[0]], [names[3], names[2]])


@pytest.mark.parametrize(
    ("used", "others"),
    [
        (["a10-r0-host-11-2.jsonl"], ["a2-r0-host-10-1.jsonl"]),  # the newest attempt
        (["a1-r0-h-1-1.jsonl", "a1-r0-h-2-1.jsonl"], []),  # several processes of an attempt
        (["a1-r0-h-1-1.jsonl"], ["a1-r1-h-2-1.jsonl", "a1-r2-h-3-1.jsonl"]),  # the lowest rank
        (["a1-r1-h-2-1.jsonl"], ["a1-r2-h-3-1.jsonl"]),
        (["a2-r0-h-1-1.jsonl"], ["mine.jsonl"]),  # other files belong to the first attempt
        (["mine.jsonl"], []),
        ([], []),
    ],
)
def test_which_files_count(used, others):
    assert split_series([*others, *used]) == (used, others)
    assert split_series(["notes.txt", *used, *others]) == (used, others)


@pytest.mark.parametrize("host", ["node7", "node7.farm.example"])
def test_a_supervisors_name_tells_who_it_is(host):
    assert layout.parse_supervisor(layout.supervisor_name(host, 4711, 99)) == (host, 4711, 99)


@pytest.mark.parametrize("name", ["supervisor.log", "supervisors.lock", "supervisor.1.2", "supervisor.h.1.x"])
def test_what_is_no_supervisor(name):
    assert layout.parse_supervisor(name) is None


def test_a_log_name_is_not_a_format_string() -> None:
    assert layout.log_name("log.{command}.{time}{suffix}", "train", 2, "20260101") == "log.train.20260101.2"
    assert layout.log_name("{command:>99999999999}{suffix}.log", "train", 1, "") == "{command:>99999999999}.log"
