"""Proof of identity compares every sample in every way of reading: what comes out too short or too long is no proof."""

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parascale.data.convert import convert
from parascale.data.formats import hdf5, open_images, parquet
from parascale.data.verify import verify_images
from parascale.errors import DataError
from parascale.files import sha256
from parascale.settings.formats import Formats
from tests.unit.image_sets import jpeg, packed_index


@pytest.fixture
def made(tmp_path):
    """A function: (index, folder) of 12 images in a format."""
    index = packed_index(tmp_path / "index", {"train": [(jpeg(seed), seed % 3) for seed in range(12)]})

    def make(name):
        convert(index, "set", name, Formats(threads=2), tmp_path / name)
        return index, tmp_path / name

    return make


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda samples: itertools.islice(samples, 11), "1 differences from its source:\n.*sample 11 .*own library", id="short"),
        pytest.param(lambda samples: itertools.chain(samples, [(b"more", 0)]), "more samples than the manifest has", id="long"),
    ],
)  # fmt: skip
def test_the_format_s_own_library_must_give_as_many_samples_as_the_source(change, said, made, monkeypatch):
    index, folder = made("hdf5")
    whole = hdf5.native
    monkeypatch.setattr(hdf5, "native", lambda path: change(whole(path)))
    with pytest.raises(DataError, match=said):
        verify_images(folder, index, "set", Formats())


@pytest.mark.parametrize(
    "change", [lambda rows: rows.slice(0, 11), lambda rows: pa.concat_tables([rows, rows.slice(3, 1)])]
)
def test_a_parquet_shard_of_other_rows_is_named_though_its_sha256_is_right(change, made):
    """Its groups say themselves how many rows there are, and reading in order follows them."""
    index, folder = made("parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    (facts,) = manifest["splits"]["train"]["shards"]
    path = folder / facts["file"]
    pq.write_table(change(pq.read_table(path)), path, **parquet.PLAIN)
    facts |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=rf"{path} has 1[13] rows instead of 12; remove {path.parent} and"):
        verify_images(folder, index, "set", Formats())
    with pytest.raises(DataError, match="rows instead of 12"):
        open_images(folder, "train")[0]
