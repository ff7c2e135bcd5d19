"""config/README.md says of every setting what the dataclasses say."""

import json
from pathlib import Path

import pytest

from parascale.errors import ConfigError
from parascale.settings import reference
from tests.command import parascale

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "config/README.md"
EMPTY = "".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in reference.tables())


def command(page, *arguments):
    return parascale("schema", "--page", page, *arguments)


def test_the_page_is_what_the_settings_say():
    page = PAGE.read_text(encoding="utf-8")
    assert reference.fill(page) == page, "run: parascale schema --write"


def test_each_kind_of_setting_is_told_with_its_value_default_and_meaning():
    page = reference.fill(EMPTY)
    for row in (
        "| `optim.lr` |  | number > 0 | `0.001` | recipe | Peak learning rate, for `training.global_batch` |",
        "| `model.dropout` | `transformer_lm`, `encoder_decoder`, `pretrained` | number ≥ 0, ≤ 0.99 | `0.0` | recipe | Dropout probability |",
        "| `optim.name` |  | `adamw`, `sgd` | `adamw` | recipe | Optimizer |",
        "| `loss_parallel` | true or false | `true` | layout | Tensor parallelism computes the loss on split logits |",
        "| `run` | text | required | site | Name of the run: letters, digits, `-`, `_` and `.` |",
        "| `partitions[].name` | text | required | site | Its name in Slurm |",
    ):
        assert row in page.splitlines()


def test_page_and_schemas_are_written_around_words_by_hand(tmp_path):
    page, schema = tmp_path / "README.md", tmp_path / "schema/site.json"
    page.write_text(f"before\n{EMPTY}after\n")
    assert command(page, "--write").returncode == 0
    assert page.read_text() == reference.fill(f"before\n{EMPTY}after\n") and page.read_text().startswith("before\n")
    assert json.loads(schema.read_text()) == reference.schemas()["site"]


def test_without_an_order_the_page_is_printed_and_nothing_written(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(EMPTY)
    assert command(page).stdout == reference.fill(EMPTY)
    assert page.read_text() == EMPTY and list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("page", ["no table", EMPTY + EMPTY, EMPTY.replace("table: site", "table: sites")])
def test_a_page_that_lacks_or_repeats_a_table_is_refused(page):
    with pytest.raises(ConfigError, match="must have each table once"):
        reference.fill(page)
