"""The figures of a page, for tests that lead them back to where they come from."""

import html.parser


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
