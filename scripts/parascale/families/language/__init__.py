"""x"""

from parascale.families.kind import Kind

KINDS = {
    "transformer_lm": Kind(
        task="language_model", degrees=("fsdp", "tp", "pp"), settings="settings:TransformerLM", model="", usual=True
    )
}
