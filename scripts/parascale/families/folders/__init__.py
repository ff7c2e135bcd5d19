"""Causal language models of the library `transformers`, from folders as its `save_pretrained` writes them."""

from parascale.families.kind import Kind

KINDS = {
    "transformers": Kind(
        task="language_model",
        settings="settings:Folder",
        model="modules:FolderModel",
        degrees=("fsdp", "tp", "pp"),
        export="export",
    )
}
