"""A page as tests read it: its figures, which lead back to where they come from, and its words."""

import html
import html.parser
import re

BLOCKS = "p|tr|table|h[1-6]|li|ul|section|figcaption|figure|summary|div|header|footer|dt|dd"


class Cells(html.parser.HTMLParser):
    """(table, run, figure) → exact value, of every cell that carries one."""

    def __init__(self, page):
        super().__init__()
        self.table, self.run, self.found = None, None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "table":
            self.table = attributes["id"]
        if tag == "tr":
            self.run = attributes.get("data-run")
        if tag in ("th", "td", "small") and "data-figure" in attributes and "data-value" in attributes:
            self.found.setdefault((self.table, self.run, attributes["data-figure"]), attributes["data-value"])


def words(page):
    """The text of a page: a line for each heading, paragraph and row of a table, without what is drawn."""
    text = re.sub(r"(?s)^.*?<body[^>]*>|<(svg|script|style)\b.*?</\1>", "", page)
    text = re.sub(rf"</?({BLOCKS})\b[^>]*>", "\n", re.sub(r"\s+", " ", text))
    text = re.sub(r"<(small|br|span)\b", r" <\1", re.sub(r"</t[hd]> *(?=<t[hd])", " | ", text))
    lines = (" ".join(html.unescape(re.sub("<[^>]+>", "", line)).split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))
