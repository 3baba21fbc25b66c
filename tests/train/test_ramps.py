"""Values that grow over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.errors import ConfigError
from litebert.train.ramps import Ramp


def test_a_ramp_is_read_as_it_is_written() -> None:
    ramp = Ramp.parse("1/4:0.6, 0.5:0.8", "depth_ramp")
    assert [ramp.at(step, 100, 12) for step in (0, 59, 60, 79, 80, 99)] == [3, 3, 6, 6, 12, 12]
    assert ramp.changes(100) == [60, 80]


def test_no_ramp_is_the_full_value_from_the_start() -> None:
    ramp = Ramp.parse("", "depth_ramp")
    assert ramp.at(0, 100, 12) == 12
    assert ramp.changes(100) == []


@pytest.mark.parametrize("text", ["3", "1/4", "1/0:0.5", "1/4:x", "2:0.5", "0:0.5", "1/4:0.8,1/2:0.6", "1/4:1.5", ":"])
def test_a_ramp_that_makes_no_sense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"batch_ramp=.*1/4:0.6,1/2:0.8"):
        Ramp.parse(text, "batch_ramp")


@given(st.integers(1, 5000), st.integers(1, 100))
def test_the_last_step_has_the_full_value_and_no_value_is_out_of_range(steps: int, full: int) -> None:
    ramp = Ramp.parse("1/4:0.6,1/2:0.8", "depth_ramp")
    values = [ramp.at(step, steps, full) for step in range(steps)]
    assert 1 <= min(values) <= max(values) <= full
    assert values == sorted(values)
    assert ramp.at(steps, steps, full) == full
