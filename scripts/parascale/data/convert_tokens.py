"""Conversion of flat token arrays into a format, and the manifest of that."""

from pathlib import Path

from parascale.data.convert import costed_folder
from parascale.data.formats import token_format
from parascale.data.manifests import MANIFEST, SCHEMA_VERSION
from parascale.data.progress import Progress
from parascale.files import require_space, sha256, write_json


def convert_tokens(tokens, dataset, format_name, output):
    """Write every split as `format_name` into the folder `output`; returns the manifest.

    tokens: parascale.data.text.Tokens. The same tokens give the same bytes.
    """
    module, output = token_format(format_name), Path(output)
    arrays = {split: tokens.split(split) for split in tokens.manifest["splits"]}
    total = sum(array.nbytes for array in arrays.values())
    require_space(output, total, f"dataset `{dataset}` as {format_name}")
    digests = token_digests(tokens)
    with costed_folder(output) as partial, Progress(f"{dataset} → {format_name}", "B", total) as progress:
        splits = {}
        for split, array in arrays.items():
            path = partial / f"{split}.{module.SUFFIX}"
            module.write_tokens(path, array)
            facts = {"file": path.name, "tokens": len(array), "bytes": path.stat().st_size, "sha256": sha256(path)}
            splits[split] = facts | {"source": digests[split]}
            progress.add(array.nbytes)
        manifest = {"schema_version": SCHEMA_VERSION, "kind": "tokens", "dataset": dataset, "format": format_name}
        manifest |= {"dtype": tokens.manifest["dtype"], "splits": splits}
        manifest["bytes"] = sum(facts["bytes"] for facts in splits.values())
        manifest["inodes"] = len(splits) + 3  # manifest, cost and the folder
        write_json(partial / MANIFEST, manifest)
    return manifest


def token_digests(tokens):
    """split → sha256 of its flat array: what the conversion of that split is made from."""
    files = tokens.manifest["files"]
    return {split: files[f"{split}.bin"]["sha256"] for split in tokens.manifest["splits"]}
