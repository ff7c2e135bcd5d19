"""Causal language models of the library `transformers`, from folders written by its `save_pretrained`."""

from parascale.families.kind import Kind

KINDS = {
    "transformers": Kind(
        "language_model", "settings:Folder", "modules:FolderModel", ("fsdp", "tp", "pp", "cp"), export="export"
    )
}
