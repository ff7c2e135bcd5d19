"""Sentences out of docstrings: what is English is kept, what is code, table, drawing or markup is left out.

A paragraph is prose if it starts with a capital letter, ends like a sentence, and most of it is words.
"""

import re

FEWEST_WORDS = 6
SMALLEST_SHARE_OF_WORDS = 0.75  # of a paragraph's tokens; code and formulas lie far below

BULLET = re.compile(r"(?:[-*•+]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+")
DIRECTIVE = re.compile(r"\.\. .*")
CODE_START = re.compile(r">>> ?|\.\.\. ?|In \[|\$ |%|@|def |class |import |from \w+ import ")
DRAWING = re.compile(r"[-=+|~^*#_.:<>/\\]{4,}|  \s*\S+  +\S")  # a rule, a table's border, columns set apart by spaces
LINK = re.compile(r"<?https?://\S+")
ROLE = re.compile(r":[a-z:+-]+:`(?:[^`<]*<)?[~!.]?([^`>]*)>?`")
MARKUP = re.compile(r"(?<!\w)[`*|]{1,3}[~!.]?([^`*|\n]+)[`*|]{1,3}_{0,2}(?!\w)")
TOKEN = re.compile(r"[A-Za-z_][\w]*(?:['’-][A-Za-z]+)*|\d+(?:\.\d+)*|\.\.\.|[^\w\s]")
SENTENCE_END = (".", "!", "?", ":")


def paragraphs(docstring):
    """The prose of a cleaned docstring: a list of paragraphs as words with spaces between, punctuation apart as in WikiText."""
    found = (TOKEN.findall(_plain(" ".join(lines))) for lines in _blocks(docstring))
    return [" ".join(words) for words in found if _is_prose(words)]


def summary_and_body(docstring):
    """(first paragraph, which by PEP 257 sums up the rest, the prose after it) of a cleaned docstring; empty where there is none."""
    first, _, rest = docstring.partition("\n\n")
    words = TOKEN.findall(_plain(" ".join(line.strip() for line in first.splitlines())))
    return " ".join(words), " ".join(paragraphs(rest))


def _blocks(docstring):
    """Runs of lines that belong together: same indentation, no empty line between, a list's item on its own."""
    block, indent = [], 0
    literal = None  # indentation of the line that announced a literal block with `::`
    for line in docstring.expandtabs().splitlines():
        text = line.strip()
        here = len(line) - len(line.lstrip())
        if not text:
            if block:
                yield block
                literal = indent if block[-1].endswith("::") else literal
            block = []
            continue
        if literal is not None and here > literal:
            continue
        literal = None
        bullet = BULLET.match(text)
        if (block and here != indent) or bullet:
            if block:
                yield block
            block = []
        indent = here + (bullet.end() if bullet else 0)
        block.append(text[bullet.end() :] if bullet else text)
        if DIRECTIVE.match(text):
            literal = here if text.endswith("::") and not text.endswith(("note::", "warning::", "tip::")) else None
    if block:
        yield block


def _plain(text):
    """A paragraph without markup; empty where it is code or a drawing."""
    if CODE_START.match(text) or DRAWING.search(text) or DIRECTIVE.match(text):
        return ""
    text = ROLE.sub(r"\1", LINK.sub("", text))
    return MARKUP.sub(r"\1", text).replace("::", ":").replace("`", "")


def _is_prose(words):
    if len(words) < FEWEST_WORDS or not words[0][0].isupper() or words[-1] not in SENTENCE_END:
        return False
    alphabetic = sum(word[0].isalpha() and "_" not in word for word in words)
    return alphabetic >= SMALLEST_SHARE_OF_WORDS * len(words)
