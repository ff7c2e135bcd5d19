"""Patterns of names match those names and no others, and stay short for tables of thousands of runs."""

import re

from hypothesis import given
from hypothesis import strategies as st

from parascale.settings.names import pattern

NAMES = st.text("ab-._0", min_size=1, max_size=6)


@given(st.sets(NAMES, max_size=12), NAMES)
def test_exactly_the_names_match(names, other):
    expression = re.compile(pattern(names))
    assert all(expression.fullmatch(name) for name in names)
    assert bool(expression.fullmatch(other)) == (other in names)


def test_numbered_names_make_a_short_pattern():
    names = [f"{strategy}-{number}" for strategy in ("ddp", "fsdp") for number in range(10_000)]
    assert len(pattern(names)) < 200
