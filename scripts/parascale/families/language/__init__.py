"""Language models: they predict the next token of a text."""

from parascale.families.kind import Kind

KINDS = {
    "transformer_lm": Kind(
        task="language_model",
        usual=True,
        compiled=True,
        separates=True,
        settings="settings:TransformerLM",
        degrees=("fsdp", "tp", "pp", "cp"),
        model="modules:TransformerLM",
        sizes="sizes:TransformerSizes",
        export="export",
    ),
}
