"""Names as a regular expression."""

import re


def pattern(names):
    """A regular expression that matches exactly these names.

    It branches letter by letter, so that a match takes as long as the name is, however many others there are; and letters
    after which the same may follow share a branch, so that numbered names make a short expression. Both count where a
    table has thousands of runs: alternatives in a row are tried one after the other, and a workflow engine reads the
    expression again for each file.
    """
    tree = {}
    for name in names:
        branch = tree
        for letter in name:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return _branches(tree) if tree else "(?!)"


def _branches(tree):
    """What may follow. Where a name may end here, it does so only if nothing longer matches."""
    letters = {}
    for letter, after in tree.items():
        if letter:
            letters.setdefault(_branches(after), []).append(re.escape(letter))
    ways = [(first[0] if len(first) == 1 else f"[{''.join(first)}]") + rest for rest, first in letters.items()]
    if not ways:
        return ""
    if len(ways) == 1 and "" not in tree:
        return ways[0]
    return f"(?:{'|'.join(ways)}){'?' if '' in tree else ''}"
