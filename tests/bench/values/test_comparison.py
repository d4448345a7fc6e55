from dataclasses import FrozenInstanceError

import pytest

from assay.bench.values.comparison import ChangePoint, EnvironmentSegment, Samples


def test_clean_values_leave_out_contaminated_trials():
    samples = Samples((1.0, 2.0, 3.0, 4.0), contaminated={1: "foreign load", 3: "throttled"})
    assert samples.clean == (1.0, 3.0)


def test_clean_values_are_all_values_when_nothing_disturbed_them():
    assert Samples((1.0, 2.0)).clean == (1.0, 2.0)


def test_contamination_of_trials_that_do_not_exist_changes_nothing():
    assert Samples((1.0, 2.0), contaminated={7: "foreign load"}).clean == (1.0, 2.0)


def test_no_values_are_no_clean_values():
    assert Samples(()).clean == ()


@pytest.mark.parametrize(
    "value",
    [
        Samples((1.0,)),
        EnvironmentSegment(0, 3, None),
        ChangePoint(5, 4, 0.1, (0.08, 0.12), 1.0, 1.1, 0.99),
    ],
)
def test_values_do_not_change(value):
    name = next(iter(type(value).__dataclass_fields__))
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, None)
