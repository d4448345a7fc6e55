import os

from assay.system.tail import Tail


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


def test_only_new_bytes_are_read(tmp_path):
    path = tmp_path / "a 'log'\n.log"
    tail = Tail(path)
    assert tail.read() == b""
    append(path, b"one\n")
    assert tail.read() == b"one\n"
    assert tail.read() == b""
    append(path, b"two\n")
    assert (tail.read(), tail.offset, tail.restarts) == (b"two\n", 8, 0)


def test_the_limit_leaves_the_rest_for_the_next_call(tmp_path):
    path = tmp_path / "log"
    append(path, b"0123456789")
    tail = Tail(path, offset=2)
    assert [tail.read(5), tail.read(5), tail.read(5)] == [b"23456", b"789", b""]


def test_a_truncated_file_is_read_again_from_its_start(tmp_path):
    path = tmp_path / "log"
    append(path, b"a long first version\n")
    tail = Tail(path)
    tail.read()
    path.write_bytes(b"new\n")
    assert (tail.read(), tail.restarts) == (b"new\n", 1)


def test_a_replaced_file_is_read_again_although_it_is_longer(tmp_path):
    path, other = tmp_path / "log", tmp_path / "other"
    append(path, b"old\n")
    tail = Tail(path)
    tail.read()
    append(other, b"longer than before\n")
    os.replace(other, path)
    assert (tail.read(), tail.restarts) == (b"longer than before\n", 1)


def test_a_kept_inode_tells_a_replaced_file_in_a_new_process(tmp_path):
    path, other = tmp_path / "log", tmp_path / "other"
    append(path, b"old\n")
    first = Tail(path)
    first.read()
    append(other, b"other\n")
    os.replace(other, path)
    assert Tail(path, first.offset).read() == b"r\n"
    assert Tail(path, first.offset, first.inode).read() == b"other\n"


def test_an_offset_beyond_the_end_means_that_the_file_was_rewritten(tmp_path):
    path = tmp_path / "log"
    append(path, b"abc")
    tail = Tail(path, offset=100)
    assert (tail.read(), tail.restarts) == (b"abc", 1)


def test_a_missing_folder_is_an_empty_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert Tail(tmp_path / "none" / "log").read() == b""
    assert Tail(tmp_path / "file" / "log").read() == b""
