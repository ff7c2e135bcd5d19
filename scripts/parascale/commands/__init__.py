"""The verbs of the command `parascale`: what they take and what they print. What they do is done by the rooms beside this."""
