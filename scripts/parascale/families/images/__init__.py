"""Classifiers of images."""

from parascale.families.kind import Kind

KINDS = {
    "xresnet": Kind(
        task="classification",
        usual=True,
        settings="settings:XResNet",
        degrees=("fsdp",),
        model="modules:XResNet",
    ),
}
