import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.points import build_points

from assay.observe.columns import add_column, add_value, parse_number
from assay.observe.files import parse_csv_columns, parse_jsonl_columns, parse_logx_columns


def as_points(parsed):
    columns, consumed, state = parsed
    return build_points(columns), consumed, state


def parse_jsonl(data, state=None, **how):
    return as_points(parse_jsonl_columns(data, state or {}, **how))


def parse_csv(data, state=None, **how):
    return as_points(parse_csv_columns(data, state or {}, **how))


def parse_logx(data):
    return as_points(parse_logx_columns(data, {}))


def rows(points):
    return [(point.metric, point.value, point.step, point.time) for point in points]


def test_lines_of_assay_log():
    data = b'{"step":1,"time":1.5,"loss":0.5}\n{"step":2,"time":2.5,"loss":0.25}\n'
    points, consumed, state = parse_jsonl(data)
    assert rows(points) == [("loss", 0.5, 1.0, 1.5), ("loss", 0.25, 2.0, 2.5)]
    assert (consumed, state) == (len(data), {})


def test_records_with_different_keys_keep_the_order_of_each_metric():
    found = rows(parse_jsonl(b'{"step":1,"loss":1}\n{"step":1,"acc":0.5}\n{"step":2,"loss":2,"acc":0.6}\n')[0])
    assert [row for row in found if row[0] == "loss"] == [("loss", 1.0, 1.0, None), ("loss", 2.0, 2.0, None)]
    assert [row for row in found if row[0] == "acc"] == [("acc", 0.5, 1.0, None), ("acc", 0.6, 2.0, None)]


def test_nested_objects_are_dotted_and_what_is_no_number_is_left_out():
    data = b'{"step": 3, "val": {"loss": 1, "top": {"5": 2}}, "ok": true, "name": "x", "n": null, "list": [1]}\n'
    assert rows(parse_jsonl(data)[0]) == [("val.loss", 1.0, 3.0, None), ("val.top.5", 2.0, 3.0, None)]


@pytest.mark.parametrize(
    ("pair", "step", "time"),
    [
        *((f'"{key}": 7', 7.0, None) for key in ("step", "global_step", "iteration", "iter", "epoch")),
        ('"timestamp": 12.5', None, 12.5),
        ('"timestamp": "12.5"', None, 12.5),
        ('"timestamp": "1970-01-01T00:01:00"', None, 60.0),
        ('"timestamp": "1970-01-01T01:00:00+01:00"', None, 0.0),
        ('"timestamp": "noon"', None, None),
    ],
)
def test_keys_of_steps_and_times(pair, step, time):
    assert rows(parse_jsonl(f'{{"loss": 1, {pair}}}\n'.encode())[0]) == [("loss", 1.0, step, time)]


def test_epoch_beside_a_step_is_a_metric_and_the_given_key_wins():
    data = b'{"step": 1, "epoch": 2, "loss": 3}\n'
    assert rows(parse_jsonl(data)[0]) == [("epoch", 2.0, 1.0, None), ("loss", 3.0, 1.0, None)]
    assert rows(parse_jsonl(data, step="epoch")[0]) == [("step", 1.0, 2.0, None), ("loss", 3.0, 2.0, None)]
    assert [point.step for point in parse_jsonl(data, step="images")[0]] == [None, None, None]


def test_nan_and_infinity():
    points, _, _ = parse_jsonl(b'{"a": NaN, "b": -Infinity, "c": Infinity}\n')
    assert math.isnan(points[0].value)
    assert [point.value for point in points[1:]] == [-math.inf, math.inf]


def test_damaged_lines_are_skipped_and_counted():
    data = b'{"step":1,"loss":1}\n{"step":2,"lo\n[1]\n7\n\xff\n\n{"a":1\n"b":2}\n{"step":3,"loss":3}\n'
    points, consumed, state = parse_jsonl(data, {"damaged": 1})
    assert [point.step for point in points] == [1.0, 3.0]
    assert consumed == len(data)
    assert (state["damaged"], state["example"]) == (7, '{"step":2,"lo')


def test_an_integer_that_no_float_holds_is_left_out():
    assert rows(parse_jsonl(b'{"step": 1, "big": 1%s, "loss": 2}\n' % (b"0" * 400))[0]) == [("loss", 2.0, 1.0, None)]


def test_an_unfinished_line_is_offered_again_and_read_when_final():
    data = b'{"loss":1}\n{"loss":2}'
    points, consumed, _ = parse_jsonl(data)
    assert (len(points), consumed) == (1, 11)
    points, consumed, _ = parse_jsonl(data[consumed:], final=True)
    assert ([point.value for point in points], consumed) == ([2.0], 10)


NUMBERS = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False))
VALUES = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=3))


@given(st.lists(st.dictionaries(st.sampled_from(["step", "time", "a", "b.c", "é"]), VALUES), max_size=6))
def test_every_number_of_every_record_is_found_once(records):
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    points, consumed, state = parse_jsonl(data)
    assert consumed == len(data)
    assert "damaged" not in state
    for metric in ("a", "b.c", "é"):
        values = [record[metric] for record in records if type(record.get(metric)) in (int, float)]
        assert [point.value for point in points if point.metric == metric] == [float(value) for value in values]


@given(st.integers(0, 200))
def test_reading_in_two_parts_is_reading_at_once(cut):
    data = b"".join(b'{"step":%d,"loss":%d.5}\n' % (n, n) for n in range(8))
    first, consumed, state = parse_jsonl(data[:cut])
    second, more, _ = parse_jsonl(data[consumed:], state)
    assert first + second == parse_jsonl(data)[0]
    assert consumed + more == len(data)


def test_csv_with_a_header_and_empty_cells_as_lightning_writes_it():
    data = b"epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.25\n1,19,0.4,\n"
    points, consumed, state = parse_csv(data)
    assert sorted(rows(points)) == [
        ("epoch", 0.0, 9.0, None),
        ("epoch", 0.0, 9.0, None),
        ("epoch", 1.0, 19.0, None),
        ("train_loss", 0.4, 19.0, None),
        ("train_loss", 0.5, 9.0, None),
        ("val_loss", 0.25, 9.0, None),
    ]
    assert consumed == len(data)
    more, _, _ = parse_csv(b"2,29,0.3,\n", state)
    assert ("train_loss", 0.3, 29.0, None) in rows(more)


@pytest.mark.parametrize(
    ("text", "metric", "found"),
    [
        *(("\ufeffstep,time,loss\r\n1,5,0.5\r\n".replace(",", mark), "loss", [(0.5, 1.0, 5.0)]) for mark in ",\t;"),
        # columns of text are not metrics, and quotes are understood
        ('step,phase,"loss, mean"\n1,a,0.5\n2,"a,b","0.25"\n', "loss, mean", [(0.5, 1.0, None), (0.25, 2.0, None)]),
        ("time,loss\n1970-01-01 00:00:30,1\nlater,2\n", "loss", [(1.0, None, 30.0), (2.0, None, None)]),
    ],
)
def test_csv_of_many_kinds(text, metric, found):
    assert rows(parse_csv(text.encode())[0]) == [(metric, *each) for each in found]


def test_csv_lines_that_do_not_fit_the_header_are_counted():
    points, _, state = parse_csv(b'step,loss\n1\n2,0.5,7\n"3,1\nstep,loss\n4,0.25\n')
    assert rows(points) == [("loss", 0.25, 4.0, None)]
    assert (state["damaged"], state["example"]) == (3, "1")


def test_csv_waits_for_its_header_and_takes_the_given_column():
    assert parse_csv(b"") == parse_csv(b"images,lo") == ([], 0, {})
    assert parse_csv(b"images,loss\n")[0] == []
    assert rows(parse_csv(b"images,loss\n64,1\n,2\n", step="images")[0]) == [
        ("loss", 1.0, 64.0, None),
        ("loss", 2.0, None, None),
    ]


LOGX = (
    b"start,start/step,0,timestamp,100.5\r\n"
    b"val,loss,0.5,acc,90.0,epoch,0,timestamp,110.0\r\n"
    b"val,loss,0.25,acc,95.0,epoch,1,timestamp,120.0\r\n"
)


@pytest.mark.parametrize("parse", [parse_logx, parse_csv])
def test_metrics_csv_of_logx(parse):
    points, consumed, state = parse(LOGX)
    assert rows(points) == [
        ("loss", 0.5, 0.0, 110.0),
        ("loss", 0.25, 1.0, 120.0),
        ("acc", 90.0, 0.0, 110.0),
        ("acc", 95.0, 1.0, 120.0),
    ]
    assert consumed == len(LOGX)
    assert (state["start"], state.get("damaged")) == (100.5, None)


def test_logx_continues_behind_its_start_and_keeps_the_first_start():
    _, consumed, state = parse_csv(LOGX)
    more = b"start,start/step,0,timestamp,500.0\r\nval,loss,0.1,epoch,2,timestamp,510.0\r\n"
    points, _, state = parse_csv((LOGX + more)[consumed:], state)
    assert rows(points) == [("loss", 0.1, 2.0, 510.0)]
    assert state["start"] == 100.5


def test_logx_lines_with_different_metrics():
    data = b"val,loss,1,epoch,0,timestamp,5\r\nval,acc,2,epoch,1,timestamp,6\r\nval,loss,nan,epoch,2,timestamp,7\r\n"
    points = parse_logx(data)[0]
    assert rows(points)[2] == ("acc", 2.0, 1.0, 6.0)
    assert [point.metric for point in points] == ["loss", "loss", "acc"]
    assert math.isnan(points[1].value)


def test_logx_damaged_lines():
    bad = b"val,loss,1,epoch,3\r\nval,loss,1,epoch\r\nval,loss,1\r\nwhat,is,this\r\nstart,x\r\n"
    points, _, state = parse_logx(bad + b"val,loss,bad,acc,2,epoch,1,timestamp,6\r\n")
    assert rows(points) == [("acc", 2.0, 1.0, 6.0)]
    assert state["damaged"] == 5


def test_logx_quoted_names():
    data = b'val,"loss, mean",0.5,"say ""x""",1,epoch,0,timestamp,5\r\n'
    assert rows(parse_logx(data)[0]) == [("loss, mean", 0.5, 0.0, 5.0), ('say "x"', 1.0, 0.0, 5.0)]


def test_columns_grow():
    columns = {}
    add_value(columns, "a", 1.0, 2.0, 3.0)
    add_column(columns, "a", [4.0], [5.0], [6.0])
    assert [list(column) for column in columns["a"]] == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_numbers_of_text_and_bytes():
    assert [parse_number(text) for text in ("1.5", b"1.5", "1_5", b"1_5", "")] == [1.5, 1.5, None, None, None]
    assert math.isnan(parse_number("nan"))
