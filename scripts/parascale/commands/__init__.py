"""The verbs of the command `parascale`: what they take and what they print. The packages beside this one do the work."""
