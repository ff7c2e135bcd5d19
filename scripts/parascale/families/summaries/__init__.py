"""x"""

from parascale.families.kind import Kind

KINDS = {
    "encoder_decoder": Kind(
        task="summarisation", degrees=("fsdp", "tp"), settings="settings:EncoderDecoder", model="", usual=True
    ),
    "pretrained": Kind(task="summarisation", degrees=("fsdp",), settings="settings:Pretrained", model=""),
}
