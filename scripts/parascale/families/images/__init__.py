"""Image classifiers."""

from parascale.families.kind import Kind

KINDS = {
    "xresnet": Kind("classification", "settings:XResNet", "modules:XResNet", degrees=("fsdp",), usual=True),
}
