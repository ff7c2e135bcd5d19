"""x"""

from parascale.families.kind import Kind

KINDS = {"xresnet": Kind(task="classification", degrees=("fsdp",), settings="settings:XResNet", model="", usual=True)}
