import math

from assay.observe.columns import add_column, add_value, make_points, parse_number
from assay.values.series import MetricPoint


def test_points_made_in_bulk_are_ordinary_points():
    (point,) = make_points("loss", [0.5], [1.0], [None])
    assert point == MetricPoint("loss", 0.5, 1.0, None)
    assert hash(point) == hash(MetricPoint("loss", 0.5, 1.0, None))
    assert repr(point) == repr(MetricPoint("loss", 0.5, 1.0, None))


def test_columns_grow():
    columns = {}
    add_value(columns, "a", 1.0, 2.0, 3.0)
    add_column(columns, "a", [4.0], [5.0], [6.0])
    assert [list(column) for column in columns["a"]] == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_numbers_of_text_and_bytes():
    assert [parse_number("1.5"), parse_number(b"1.5"), parse_number("1_5"), parse_number(b"1_5"), parse_number("")] == [
        1.5,
        1.5,
        None,
        None,
        None,
    ]
    assert math.isnan(parse_number("nan"))
