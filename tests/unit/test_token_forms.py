"""A `.bin` is read as the tool wrote it, or refused: tokens of 2 bytes are never refused, and no header is ever trained on."""

import struct
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parascale.data.own_tokens import prepare_tokens
from parascale.data.sources.flat import flat
from parascale.errors import DataError
from parascale.settings import Text
from parascale.settings.data import ExpectedText
from tests.unit import test_own_tokens as tools
from tests.unit.test_tokenizers import gpt2, saved
from tests.unit.trees import read_in_place

CASE = Path(__file__).parents[3] / "shared" / "cases" / "tokens-behind-a-header"
VOCABULARIES = (2, 16, 65, 257, 5000, 50257, 65536)


@st.composite
def tokens(draw, vocabularies=VOCABULARIES, fewest=1):
    """Tokens as texts have them: any length, from all alike to a few that are nearly all, where 0 may be any of them."""
    size, count = draw(st.sampled_from(vocabularies)), draw(st.integers(fewest, 5000))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = random.zipf(draw(st.sampled_from([1.1, 1.5, 3])), count) % size
    found = (found if draw(st.booleans()) else random.integers(0, size, count)) + draw(st.sampled_from([0, size // 2]))
    found[random.random(count) < draw(st.sampled_from([0, 0, 0.002, 0.5, 0.98]))] = 0
    return found % size


def read(path):
    return np.concatenate([np.zeros(0, int), *flat(path)]).tolist()


@given(tokens())
@settings(derandomize=True, max_examples=150)
def test_what_a_known_tool_wrote_is_read_to_the_bit(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("forms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "TOKENS", found.tolist())
        patch.setattr(tools, "ROWS", [found.tolist()])
        for write in (tools.nanogpt, tools.llmc, tools.llama3, tools.numpy_other_end, tools.megatron_short):
            short = write is tools.llmc or write is tools.nanogpt
            write(path := folder / f"{write.__name__}{'.npy' if write is tools.numpy_other_end else '.bin'}")
            assert read(path) == (found.astype("<u2") if short else found).tolist(), write


NUMBERS = st.integers(0, 9).map(lambda value: struct.pack("<I", value))
NAMES = st.sampled_from([b"", b"TKBN", b"my_t", b"TOKENS_2", b"\x9a\xf1\x03\xee"])


@given(tokens((5000, 32000, 50257), 1000), NAMES, st.lists(NUMBERS, max_size=3), st.sampled_from("-IQ"), st.data())
@settings(derandomize=True, max_examples=150)
def test_no_header_of_another_tool_is_trained_on(tmp_path_factory, found, name, fields, count, data):
    head = name + b"".join(fields) + (b"" if count == "-" else struct.pack(f"<{count}", len(found)))
    head = head.ljust(data.draw(st.sampled_from([len(head), 16, 24, 63, 64])), b"\0")
    width = data.draw(st.sampled_from("248"))
    assume(4 <= len(head) <= 64 and np.mean(found == 0) < 0.9)
    # Of 2 bytes, where 0 is a token nothing tells; nor does a name alone.
    assume(width != "2" or (found.all() and (count != "-" or len(fields) > 2 or head.endswith(bytes(8)))))
    path = tmp_path_factory.mktemp("header") / "a.bin"
    path.write_bytes(head + found.astype(f"<u{width}").tobytes())
    with pytest.raises(DataError, match=r"looks like numbers|bytes, not"):
        flat(path)


@pytest.mark.parametrize("width", ["<u4", "<i8", ">u4"])
@pytest.mark.parametrize("size", [2, 300, 50257, 70000, 900000])
def test_numbers_of_4_and_8_bytes_are_told_by_shares_whatever_the_vocabulary(width, size, tmp_path):
    found = np.random.default_rng(0).integers(0, size, 3000)
    found[7] = -1 if width == "<i8" else 2**20 + 5  # one of another size hides nothing
    found.astype(width).tofile(tmp_path / "a.bin")
    with pytest.raises(DataError, match="looks like numbers of 4 or 8 bytes"):
        flat(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", found)
    with pytest.raises(DataError, match="a file of NumPy without its ending"):
        flat((tmp_path / "b.npy").rename(tmp_path / "b.bin"))


@pytest.mark.parametrize("name", ["two-bytes.bin", "four-bytes.bin"])
@pytest.mark.skipif(not CASE.is_dir(), reason="needs ../shared")
def test_the_known_case_is_refused(name):
    with pytest.raises(DataError, match="looks like numbers"):
        flat(CASE / name)


@pytest.mark.parametrize(
    ("beside", "mask", "read"),
    [
        ({"labels": [[5, 6], [7, 8]]}, None, [5, 6, 7, 8]),
        ({"labels": [[5, 6], [7, -100]]}, [[1, 1], [1, 0]], [5, 6, 7]),  # of padding
        ({"labels": [[5, 6], [-100, 8]]}, [[1, 1], [1, 0]], "labels"),
        ({"labels": [[-100, 6], [7, 8]]}, None, "labels"),
        ({"labels": [[6, 7], [8, 5]]}, None, "labels"),  # of the places behind
        ({"labels": [[5], [7, 8]]}, None, "labels"),
        ({"labels": [0, 1]}, None, [5, 6, 7, 8]),  # of texts
        ({"loss_mask": [[1, 1], [1, 1]]}, None, [5, 6, 7, 8]),
        ({"loss_mask": [[False, True], [True, True]]}, None, "loss_mask"),
        ({"completion_mask": [[1, 1], [0, 1]]}, None, "completion_mask"),
        ({"assistant_masks": [[0, 1], [0, 1]]}, None, "assistant_masks"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow", "saved"])
def test_what_rows_leave_out_of_the_loss_is_not_trained_on(form, beside, mask, read, tmp_path):
    table = datasets.Dataset.from_dict(
        {"input_ids": [[5, 6], [7, 8]], **beside} | ({"attention_mask": mask} if mask else {})
    )
    if form == "saved":
        table.save_to_disk(tmp_path / "a.saved")
    elif form == "parquet":
        table.to_parquet(tmp_path / "a.parquet")
    else:
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.data.schema) as writer:
            writer.write_table(table.data.table)
    raw = read_in_place(tmp_path, {"train": f"a.{form}"})
    if isinstance(read, list):
        assert [number for entry in raw.files("train") for part in raw.tokens(entry) for number in part] == read
    else:
        with pytest.raises(DataError, match=f"`{read}` (masks tokens of the loss.*remove_columns|is not as long)"):
            [list(raw.tokens(entry)) for entry in raw.files("train")]


def test_texts_without_an_end_are_named(tmp_path, capsys):
    tokenizer, beside, end = gpt2()
    text = Text(tokenizer="pretrained", pretrained=str(saved(tmp_path / "model", tokenizer, beside)))
    for number, rows in enumerate(([[5, 6], [7]], [[5, tokenizer.token_to_id(end)], [7]])):
        pa.parquet.write_table(pa.table({"input_ids": rows}), tmp_path / "a.parquet")
        raw = read_in_place(tmp_path, "a.parquet")
        prepare_tokens(raw, text, ExpectedText(), tmp_path / f"flat{number}")
        assert (f"none of its 3 tokens is `{end}`" in capsys.readouterr().out) == (number == 0)
