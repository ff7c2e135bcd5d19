"""Summarisers: models that read a document and write its summary."""

from parascale.families.kind import Kind

KINDS = {
    "encoder_decoder": Kind(
        task="summarisation",
        usual=True,
        compiled=True,
        settings="settings:EncoderDecoder",
        builds_on=("language",),
        degrees=("fsdp", "tp"),
        model="modules:EncoderDecoder",
    ),
    "pretrained": Kind(
        task="summarisation",
        compiled=True,
        settings="settings:Pretrained",
        builds_on=("language",),
        degrees=("fsdp",),
        model="pretrained_modules:PretrainedSummariser",
    ),
}
