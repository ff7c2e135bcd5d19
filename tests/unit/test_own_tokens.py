"""Tokens that other tools wrote are read as those tools read them back, in place where they are flat; damage and other numbers are found."""

import json
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from parascale.checkpoint import export
from parascale.data.convert import convert_tokens
from parascale.data.formats import open_tokens
from parascale.data.own_tokens import prepare_tokens
from parascale.data.text import Tokens, Windows
from parascale.data.verify import verify_tokens
from parascale.errors import ConfigError, DataError
from parascale.settings import Text
from parascale.settings.data import ExpectedText
from parascale.store.keys import data_known, meaning_of
from tests.unit.test_tokenizers import gpt2, saved
from tests.unit.trees import read_in_place

SIZE = 300  # entries of the vocabulary
LENGTHS = (40, 1, 0, 300, 7)
ROWS = [np.random.default_rng(seed).integers(0, SIZE, length).tolist() for seed, length in enumerate(LENGTHS)]
TOKENS = [number for row in ROWS for number in row]


def nanogpt(path, dtype=np.uint16):
    """As its `prepare.py` writes, and its `train.py` reads."""
    array = np.memmap(path, dtype, "w+", shape=(len(TOKENS),))
    array[:] = TOKENS
    array.flush()
    return lambda: np.memmap(path, dtype, "r")


def llmc(path, magic=20240520, version=1, dtype="<u2"):
    """As `write_datafile` of llm.c's `dev/data/data_common.py` lays it out, and its `dataloader.h` reads."""
    header = struct.pack("<3i", magic, version, len(TOKENS))
    path.write_bytes(header.ljust(1024, b"\0") + np.array(TOKENS, dtype).tobytes())
    return lambda: np.frombuffer(path.read_bytes()[1024:], dtype)


def llama3(path):
    return llmc(path, 20240801, 7, "<u4")


def megatron(path, code=4, dtype="<i4", modes=b""):
    """As `IndexedDatasetBuilder` of Megatron-LM writes, and its `IndexedDataset` reads: a sequence by its place and length."""
    lengths = [len(row) for row in ROWS]
    places = (np.cumsum([0, *lengths[:-1]]) * np.dtype(dtype).itemsize).astype("<i8")
    parts = [np.array(lengths, "<i4"), places, np.arange(len(ROWS) + 1).astype("<i8")]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(ROWS), len(ROWS) + 1)
    path.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts) + modes)
    path.write_bytes(np.array(TOKENS, dtype).tobytes())
    content = path.read_bytes()
    return lambda: np.concatenate([np.frombuffer(content, dtype, n, p) for n, p in zip(lengths, places, strict=True)])


def megatron_short(path):
    return megatron(path, 8, "<u2", bytes(len(ROWS)))


def numpy_wide(path):
    np.save(path, np.array(TOKENS, np.int64).reshape(2, -1))
    return lambda: np.load(path).reshape(-1)


def numpy_other_end(path):
    np.save(path, np.array(TOKENS, ">u4"))
    return lambda: np.load(path)


def parquet(path):
    pa.parquet.write_table(pa.table({"input_ids": ROWS, "n": range(len(ROWS))}), path, row_group_size=2)
    return lambda: np.concatenate(pa.parquet.read_table(path)["input_ids"].to_numpy())


def arrow(path):
    table = pa.table({"input_ids": pa.array(ROWS, pa.large_list(pa.int32()))})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return lambda: np.concatenate(pa.ipc.open_file(str(path)).read_all()["input_ids"].to_numpy())


def padded(path):
    """As `tokenizer(…, padding=True)` of transformers gives rows."""
    longest = max(map(len, ROWS))
    ids = [row + [0] * (longest - len(row)) for row in ROWS]
    masks = [[1] * len(row) + [0] * (longest - len(row)) for row in ROWS]
    pa.parquet.write_table(pa.table({"input_ids": ids, "attention_mask": masks}), path, row_group_size=2)
    return lambda: np.array(ids)[np.array(masks) == 1]


def blocks(path):
    """Rows of one length, as a type."""
    rows = pa.array(np.array(TOKENS).reshape(-1, 2).tolist(), pa.list_(pa.int32(), 2))
    pa.parquet.write_table(pa.table({"input_ids": rows, "attention_mask": [[1, 1]] * len(rows)}), path)
    return lambda: np.concatenate(pa.parquet.read_table(path)["input_ids"].to_numpy())


def datasets_saved(path):
    import datasets

    datasets.Dataset.from_dict({"input_ids": ROWS}).save_to_disk(path, num_shards=2)
    return lambda: np.concatenate([np.array(row, np.int64) for row in datasets.load_from_disk(path)["input_ids"]])


FLAT = dict.fromkeys((nanogpt, llmc, llama3, megatron, megatron_short), "a.bin") | {numpy_wide: "a.npy"}
COPIED = dict.fromkeys((parquet, padded, blocks), "a.parquet")
COPIED |= {numpy_other_end: "a.npy", arrow: "a.arrow", datasets_saved: "a"}


def prepared(folder, files, text=None, **source):
    raw = read_in_place(folder, files, **source)
    assert raw.holds_tokens()
    prepare_tokens(raw, text or Text(max_vocabulary=SIZE), ExpectedText(train_tokens=len(TOKENS)), folder / "flat")
    return Tokens(folder / "flat")


@pytest.mark.parametrize("write", [*FLAT, *COPIED], ids=lambda write: write.__name__)
def test_the_tokens_are_those_that_their_tool_reads_back(write, tmp_path):
    name = (FLAT | COPIED)[write]
    theirs = write(tmp_path / name)
    last = f"{name}[{'50%' if write in FLAT else '1'}:]"
    tokens = prepared(tmp_path, {"train": name, "validation": f"{name}[:50%]" if write in FLAT else name, "test": last})
    assert tokens.split("train").tolist() == theirs().tolist() == TOKENS
    assert os.path.islink(tmp_path / "flat/train.bin") == (write in FLAT)
    if write in FLAT:
        assert tokens.split("validation").tolist() == TOKENS[: len(TOKENS) // 2]
        assert tokens.split("test").tolist() == TOKENS[len(TOKENS) // 2 :]
    assert tokens.vocabulary_size == SIZE and tokens.tokenizer.end is None
    inputs, labels = Windows(tokens.split("train"), 7).batch([0, 3])
    assert inputs.tolist() == [TOKENS[:7], TOKENS[21:28]] and labels.tolist() == [TOKENS[1:8], TOKENS[22:29]]
    assert tokens.decode(tokens.encode("17 0 299")) == "17 0 299"
    assert export.tokenizer(None, tokens) == {} and meaning_of(data_known(tmp_path / "flat")) is None
    with pytest.raises(ConfigError, match="came without a tokenizer: give numbers from 0 to 299"):
        tokens.encode("17 300")


def test_files_of_a_split_are_joined_once_and_converted_as_others_are(tmp_path):
    for number in range(2):
        llmc(tmp_path / f"x_train_{number}.bin")
    megatron(tmp_path / "x_val.bin")
    files = {"train": "x_train_*.bin", "validation": "x_val.bin", "test": "x_val.bin"}
    with pytest.raises(DataError, match=f"train_tokens` is {len(TOKENS)}, but there are {2 * len(TOKENS)}"):
        prepared(tmp_path, files)
    prepare_tokens(read_in_place(tmp_path, files), Text(max_vocabulary=SIZE), ExpectedText(), tmp_path / "flat")
    tokens = Tokens(tmp_path / "flat")
    assert tokens.split("train").tolist() == TOKENS * 2 and tokens.split("test").dtype == np.int32
    for form in ("hdf5", "arrow", "parquet"):
        convert_tokens(tokens, "x", form, tmp_path / form)
        verify_tokens(tmp_path / form, tokens, "x")
        assert open_tokens(tmp_path / form, "validation").tolist() == TOKENS


def test_a_tokenizer_beside_the_tokens_gives_size_end_and_text(tmp_path):
    tokenizer, beside, end = gpt2()
    folder, number = saved(tmp_path / "model", tokenizer, beside), tokenizer.token_to_id(end)
    ids = [*tokenizer.encode("the cat").ids, number, *tokenizer.encode("the mat").ids, number]
    np.array(ids, np.uint16).tofile(tmp_path / "a.bin")
    text = Text(tokenizer="pretrained", pretrained=str(folder))
    prepare_tokens(read_in_place(tmp_path, "a.bin"), text, ExpectedText(), tmp_path / "flat")
    tokens = Tokens(tmp_path / "flat")
    assert tokens.manifest["splits"]["test"]["documents"] == 2 and tokens.vocabulary_size == number + 1
    assert tokens.decode(tokens.split("train")) == "the cat\nthe mat\n"


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def cut_index(path):
    cut(path.with_suffix(".idx"))


def table(**columns):
    return lambda path: pa.parquet.write_table(pa.table(columns), path)


def edit_index(place, value):
    def edit(path):
        index = path.with_suffix(".idx")
        content = bytearray(index.read_bytes())
        content[place : place + len(value)] = value
        index.write_bytes(content)

    return edit


@pytest.mark.parametrize(
    ("write", "damage", "message"),
    [
        *((write, cut, r"a\.\w+: (has .* bytes, not .*: fetch|not a NumPy file)") for write in FLAT),
        (parquet, cut, "not a complete Parquet file"),
        (arrow, cut, "not a complete Arrow file"),
        (megatron, cut_index, r"a\.idx: incomplete Megatron index \([0-9]+ bytes instead of [0-9]+\)"),
        (megatron, edit_index(0, b"x"), "wrong magic number"),
        (megatron, edit_index(34, b"\0"), "its sequences do not lie one after the other"),
        (megatron, edit_index(17, b"\7"), r"its numbers are of type 7, which tokens are not\. Supported: nanoGPT's"),
        (
            llmc,
            lambda path: llmc(path, 20240522),
            r"a file of llm\.c, but no tokens.*Supported: nanoGPT's and llm\.c's",
        ),
        (llmc, lambda path: llmc(path, 20240520, 2), r"a file of llm\.c, but no tokens"),
        (nanogpt, lambda path: (path.parent / "index.json").write_text("{}"), r"a file of LitData\. Supported:"),
        (numpy_wide, lambda path: np.save(path, np.ones(3)), r"holds float64, not tokens\. Supported:"),
        (numpy_wide, lambda path: np.save(path, np.asfortranarray(np.ones((2, 3), int))), "one after the other"),
        (numpy_wide, lambda path: np.save(path, np.array([{}]), allow_pickle=True), "not a NumPy file"),
        (numpy_wide, lambda path: path.write_text("1 2 3"), "not a NumPy file(?!.*pickle)"),
        (nanogpt, lambda path: np.uint16([3, SIZE]).tofile(path), "holds 300, but the vocabulary has the numbers 0 to"),
        (numpy_wide, lambda path: np.save(path, np.array([3, -1])), "holds -1, but"),
        (parquet, table(input_ids=[[1], None]), "`input_ids` has missing numbers"),
        (parquet, table(input_ids=[["a"]]), "or holds string, not tokens"),
        (parquet, table(input_ids=[[1, 2]], attention_mask=[[1]]), "`attention_mask` is not as long as `input_ids`"),
        (nanogpt, lambda path: path.write_bytes(b"\1"), "has 1 bytes, not 0"),
        (nanogpt, lambda path: nanogpt(path, np.uint32), "looks like numbers of 4 or 8 bytes, not nanoGPT"),
        (nanogpt, lambda path: nanogpt(path, np.int64), "looks like numbers of 4 or 8 bytes, not nanoGPT"),
    ],
)
def test_what_is_damaged_or_of_another_kind_is_named(write, damage, message, tmp_path):
    name = (FLAT | COPIED)[write]
    write(tmp_path / name)
    damage(tmp_path / name)
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, name)


def test_tokens_need_a_size_or_a_tokenizer_and_no_text_beside_them(tmp_path):
    nanogpt(tmp_path / "a.bin")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a"}))
    with pytest.raises(ConfigError, match=r"the size of their vocabulary\. Set `data\.text\.max_vocabulary`"):
        prepared(tmp_path, "a.bin", Text())
    with pytest.raises(DataError, match="tokens in train, but text in other splits"):
        read_in_place(tmp_path, {"train": "a.bin", "validation": "b.jsonl", "test": "b.jsonl"}).holds_tokens()
    with pytest.raises(DataError, match="tokens have no columns document, summary"):
        list(read_in_place(tmp_path, {"train": "a.bin"}).pairs("train"))


def test_a_later_file_without_the_tokens_is_named(tmp_path):
    parquet(tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"ids": ROWS}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: no column `input_ids` \(it has ids\)"):
        prepared(tmp_path, {"train": ["a.parquet", "b.parquet"], "validation": "a.parquet", "test": "a.parquet"})


def test_a_table_with_texts_is_text_whatever_else_it_has(tmp_path):
    pa.parquet.write_table(pa.table({"text": ["a"], "input_ids": [[1]]}), tmp_path / "a.parquet")
    assert not read_in_place(tmp_path, {"train": "a.parquet"}).holds_tokens()
    assert read_in_place(tmp_path, {"train": "a.parquet"}, columns={"text": "body"}).holds_tokens()
    assert read_in_place(tmp_path, {"train": "a.parquet"}, columns={"input_ids": "input_ids"}).holds_tokens()
