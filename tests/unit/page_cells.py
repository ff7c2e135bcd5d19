"""The figures of a page, for tests that lead them back to where they come from."""

import html.parser


class Cells(html.parser.HTMLParser):
    """(table, run, figure) → exact value, of every cell that carries one."""

    def __init__(self, page):
        super().__init__()
        self.table, self.found = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "table":
            self.table = attributes["id"]
        if "data-figure" in attributes and "data-value" in attributes and "data-run" in attributes:
            key = (self.table, attributes["data-run"], attributes["data-figure"])
            self.found.setdefault(key, attributes["data-value"])
