"""Names as a regular expression."""

import re


def pattern(names):
    """A regular expression that matches exactly these names.

    It branches letter by letter, so that a match takes as long as the name is, however many others there are:
    alternatives in a row are tried one after the other.
    """
    tree = {}
    for name in names:
        branch = tree
        for letter in name:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return _branches(tree) if tree else "(?!)"


def _branches(tree):
    """What may follow: the end of a name comes last, because the longest name wins."""
    ways = [re.escape(letter) + _branches(after) for letter, after in tree.items() if letter]
    if len(ways) == 1 and "" not in tree:
        return ways[0]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)}){'?' if '' in tree else ''}"
