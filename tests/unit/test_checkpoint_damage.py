"""No bit of a checkpoint changes unseen: whatever is flipped, cut or erased, it is an error, or what is read is what was written."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.checkpoint import store
from parascale.checkpoint.manifest import MANIFEST, read_manifest, step_folder
from parascale.errors import CheckpointError

from .checkpoints import ALONE, save_run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint in a folder that names its step."""
    saved = save_run(tmp_path_factory.mktemp("run"))[2]
    return saved.rename(step_folder(saved.parent, 2))


@given(data=st.data())
def test_a_flipped_bit_or_a_cut_is_found_in_every_file(checkpoint, data):
    expected = read_manifest(checkpoint)["facts"]
    path = data.draw(st.sampled_from(sorted(checkpoint.iterdir())))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        changed = content[:place]
    else:
        changed = bytes([*content[:place], content[place] ^ (1 << data.draw(st.integers(0, 7))), *content[place + 1 :]])
    path.write_bytes(changed)
    try:
        assert store.check(checkpoint, ALONE) == expected
        # Nothing but the blanks between a manifest's values may differ.
        assert path.name == MANIFEST and json.loads(changed) == json.loads(content)
    except CheckpointError as error:
        assert str(checkpoint) in str(error)
    finally:
        path.write_bytes(content)


def rewritten(checkpoint, folder, change):
    """A copy of the checkpoint, with the values of its manifest changed."""
    shutil.copytree(checkpoint, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


LIES = {
    "the step": lambda manifest: manifest["facts"].update(step=3),
    "the best loss": lambda manifest: manifest["facts"]["evaluation"].update(best_validation_loss=0.0),
    "no checksum": lambda manifest: manifest.pop("xxh3"),
    "another schema": lambda manifest: manifest.update(schema_version=1),
    "a file left out": lambda manifest: manifest["files"].popitem(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(lie, checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match="is damaged"):
        store.check(rewritten(checkpoint, tmp_path / "step-000000002", LIES[lie]), ALONE)


def test_a_step_folder_under_another_name_is_refused(checkpoint, tmp_path):
    other = shutil.copytree(checkpoint, tmp_path / "step-000000003")
    with pytest.raises(CheckpointError, match="is of step 2"):
        store.check(other, ALONE)
