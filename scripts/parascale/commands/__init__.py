"""The subcommands of `parascale`: their options and output. Other packages do the work."""
