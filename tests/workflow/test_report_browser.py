"""The report in a real browser, opened from a file: no error, no request, readable at both widths, accessible.

Skipped where chromium, chromedriver or axe-core are missing, saying which.
"""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from parascale.report.sections import SECTIONS

WIDTHS = (390, 1024, 1440)


def test_every_section_is_there_to_be_looked_at(pages):
    """Who adds a section adds made-up results for it: the other tests see no more than is there."""
    shown = {name: re.findall('<section id="(.*?)"', page.read_text()) for name, page in pages.items()}
    assert len(shown["report"]) == len(SECTIONS), shown["report"]
    written = "findings job attempts usage phases operators loss parity plan provenance"
    assert shown["job"] == written.split()


def test_the_page_asks_for_nothing_and_says_nothing_on_the_console(browser, page):
    browser.show(page, 390)  # the browser's own first page asks for things until it is left
    browser.log("browser"), browser.log("performance")
    browser.show(page, 1440)
    events = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked, "the browser's own record of requests is empty, so it proves nothing"
    assert [url for url in asked if url != page.as_uri() and not url.startswith("data:")] == []
    assert browser.log("browser") == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_of_the_page(browser, page, width):
    """Wide tables scroll inside their frames; the page itself never scrolls sideways, and text stays readable: neither tiny,
    nor in a column of single words."""
    browser.show(page, width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    ends = browser.run("return [...document.querySelectorAll('.panel')].map(one => one.getBoundingClientRect().right)")
    assert max(ends) <= width, "a figure must be scrolled to"
    rows = browser.run("return [...document.querySelectorAll('tr')].map(row => row.getBoundingClientRect().height)")
    assert max(rows) <= 250, "a row is higher than a few lines of text"
    narrow = browser.run(
        """return [...document.querySelectorAll('td.words, td.sentences')].filter(
             cell => cell.offsetWidth && cell.offsetWidth < 120).map(cell => cell.textContent)"""
    )
    assert narrow == []
    smallest = browser.run(
        """return Math.min(...[...document.querySelectorAll('svg.chart')].map(
             svg => Math.min(...[...svg.querySelectorAll('text')].map(text => parseFloat(getComputedStyle(text).fontSize)))
               * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    )
    assert smallest >= 8, f"text in figures is {smallest:.1f} pixels high"


@pytest.mark.parametrize("width", WIDTHS)
def test_panels_of_a_workload_are_one_row(browser, page, width):
    """On a telephone, where none could be read beside another, one below the other."""
    browser.show(page, width)
    rows = browser.run(
        """return [...document.querySelectorAll('.panels.row')].map(row => [row.children.length,
             new Set([...row.children].map(panel => Math.round(panel.getBoundingClientRect().top))).size])"""
    )
    assert rows and all(tops == (count if width < 600 else 1) for count, tops in rows), rows


def test_charts_keep_their_text_inside(browser, page):
    """No label of a figure is cut off at its edge."""
    browser.show(page, 1440)
    outside = browser.run(
        """return [...document.querySelectorAll('svg.chart')].flatMap(svg => {
             const frame = svg.getBoundingClientRect();
             return [...svg.querySelectorAll('text')].filter(text => {
               const box = text.getBoundingClientRect();
               return box.left < frame.left - 1 || box.right > frame.right + 1
                 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
             }).map(text => `${svg.querySelector('title').textContent}: ${text.textContent}`)})"""
    )
    assert outside == []


def test_names_end_where_their_bars_begin(browser, page):
    """A name beside a bar is wide in some fonts and wider where it is strong."""
    browser.show(page, 1440)
    named, covered = browser.run(
        """const found = [...document.querySelectorAll('svg.chart')].flatMap(svg => {
             const bars = [...svg.querySelectorAll('.bar path, .heat path')].map(bar => bar.getBoundingClientRect());
             return [...svg.querySelectorAll('.name text')].map(text => {
               const box = text.getBoundingClientRect(), middle = (box.top + box.bottom) / 2;
               const beside = bars.filter(bar => bar.top < middle && middle < bar.bottom);
               return [text.textContent, beside.some(bar => bar.left < box.right), beside.length];
             })});
           return [found.filter(one => one[2]).length, found.filter(one => one[1])]"""
    )
    assert named > 0 and covered == []


def test_no_table_scrolls_for_a_few_pixels(browser, page):
    """A table is wider than its frame by a column or not at all; the arrows of its headings do not make it so."""
    browser.show(page, 1440)
    over = browser.run(
        "return [...document.querySelectorAll('.scroll')].map(frame => frame.scrollWidth - frame.clientWidth)"
    )
    assert [pixels for pixels in over if 0 < pixels < 40] == []


def test_the_advice_fits_a_telephone(browser, pages):
    browser.show(pages["report"], 390)
    over = browser.run(
        """return [...document.querySelectorAll('.scroll:has([id^=advice-table])')].map(
             frame => frame.scrollWidth - frame.clientWidth)"""
    )
    assert over and set(over) == {0}, "a column is cut"


# (page, table, heading): text, numbers, and numbers with a unit of each cell's own.
SORTED = [
    ("report", "runs-table", "Run"),
    ("report", "runs-table", "Training"),
    ("report", "parity-table", "Verdict"),
    ("report", "parity-table", "Loss difference, nats"),
    ("report", "rouge-table", "ROUGE-1"),
    ("report", "loaders-shapes", "At random, images/s"),
    ("report", "conversions-table", "Time"),
    ("report", "table-communication", "Size"),
    ("report", "published-table", "Published"),
    ("report", "provenance-table", "Code digest"),
    ("job", "operators-table", "Operator"),
    ("job", "operators-table", "Calls"),
    ("job", "operators-table", "Own time on the CPU"),
    ("job", "table-attempts", "Duration"),
    ("job", "table-heat", "GPU power"),
]
CLICK = """const [name, heading] = arguments, table = document.getElementById(name), heads = [...table.tHead.rows[0].cells];
const column = heads.findIndex(cell => cell.textContent === heading), rows = [...table.tBodies[0].rows];
heads[column].querySelector('button').click();
return [heads.map(cell => cell.getAttribute('aria-sort')).filter(Boolean),
        [...table.tBodies[0].rows].map(row => [row.cells[column].dataset.value ?? null, row.cells[column].textContent.trim()])]"""


@pytest.mark.parametrize("name", ["report", "job"])
def test_tables_sort_by_a_click_and_keep_unknown_cells_last(browser, pages, name):
    browser.show(pages[name], 1440)
    unknown = 0
    for table, heading in (entry[1:] for entry in SORTED if entry[0] == name):
        for expected in ("ascending", "descending"):
            directions, cells = browser.run(CLICK, table, heading)
            assert directions == [expected]
            known = [_key(*cell) for cell in cells if cell != [None, ""]]
            assert len(set(known)) > 1, f"{table}, {heading}: any order would do"
            assert known == sorted(known, reverse=expected == "descending"), (table, heading)
            assert cells[len(known) :] == [[None, ""]] * (len(cells) - len(known))
            unknown += len(cells) - len(known)
    assert unknown > 0 or name == "job"


def _key(value, text):
    """What a cell is sorted by: its exact value, where it has one that is a number, else its words."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return (value or text).lower()


def test_the_page_is_readable_without_javascript(browser, page):
    """Everything is in the HTML: scripts are switched off before it is opened."""
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.show(page, 1440)
        text = browser.command("DOM.getDocument", {"depth": -1})
        assert json.dumps(text).count('"nodeName": "svg"') >= 8
        assert "Core-hours" in json.dumps(text)
        assert '"nodeName": "BUTTON"' not in json.dumps(text), "scripts ran all the same"
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", {"value": False})


# Colours depend on the theme and the rest on the width: the other two pairs take minutes and hardly tell more.
@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(390, True, id="390-dark"),
        pytest.param(1024, False, id="1024-light"),
        pytest.param(1440, False, id="1440-light"),
        pytest.param(390, False, id="390-light", marks=pytest.mark.slow),
        pytest.param(1440, True, id="1440-dark", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing(browser, page, width, dark):
    """axe-core's rules, tables of figures opened."""
    browser.show(page, width, dark)
    assert violations(browser) == []


@pytest.mark.slow
def test_axe_finds_nothing_on_a_page_of_many_runs(browser, many):
    browser.show(many, 1440)
    assert violations(browser) == []


def violations(browser):
    """What axe-core finds on the page that is shown."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None:
        pytest.skip("axe-core is not installed (package axe-core-python)")
    axe = Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true })")
    browser.run(f"{axe}; window.axe = axe;")
    return browser.run(
        """return (await window.axe.run({resultTypes: ['violations']})).violations.map(
             found => [found.impact, found.id, found.nodes.slice(0, 3).map(node => node.html)])"""
    )


def test_rows_can_be_chosen_by_workload_strategy_and_status(browser, pages):
    """In all tables at once; what is chosen is said, and all rows come back."""
    browser.show(pages["report"], 1440)
    choose = """const [name, value] = arguments, choice = document.querySelector(`.filter select[name=${name}]`);
        choice.value = value; choice.dispatchEvent(new Event("change", {bubbles: true}));
        const shown = (table) => [...document.querySelectorAll(`#${table} tbody tr`)].filter(row => row.offsetHeight).length;
        return [shown("runs-table"), shown("parity-table"), document.querySelector(".filter output").textContent]"""
    every, checked, _ = browser.run(choose, "status", "")
    rows, judged, said = browser.run(choose, "status", "failed")
    assert rows < 3 and judged == 0 and re.fullmatch(r"1 of \d+ runs in the tables", said), (rows, said)
    assert browser.run(choose, "status", "")[:2] == [every, checked]
    images, parities, _ = browser.run(choose, "workload", "images-small")
    assert (images, parities) == (2, 1) and every > 15
    assert browser.run(choose, "strategy", "ddp")[0] == 1


def test_the_report_leads_to_the_page_of_a_job(browser, pages):
    browser.show(pages["report"], 1440)
    there = browser.run("return document.querySelector('#runs-table a').href")
    assert there == pages["job"].as_uri()


def test_a_sample_of_a_page_leads_to_nothing_that_it_lacks(browser, pages, tmp_path):
    """README's sample is the printed page without the tables and pages beside it."""
    browser.show(pages["report"], 1440)
    assert browser.run("return document.querySelectorAll('a:not([href^=\"#\"])').length")
    browser.paper(tmp_path / "sample.pdf")
    printed = (tmp_path / "sample.pdf").read_bytes()
    assert printed.startswith(b"%PDF-") and b"/URI" not in printed


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_two_themes_differ_and_print_is_light(browser, page, dark):
    """The page follows the reader's theme, and paper stays white."""
    browser.show(page, 1440, dark)
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)"
    )
    browser.show(page, 1440, dark, media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize(
    ("table", "last"), [("runs-table", "Core‑hours"), ("plan-table", "Core-hours"), ("parity-table", "Loss")]
)
def test_what_matters_of_a_table_is_on_a_telephone(browser, pages, table, last):
    """Names, verdicts, times and costs without scrolling sideways; the columns left out are named, and names stay while it scrolls."""
    browser.show(pages["report"], 390)
    shown = browser.run(
        """const heads = [...document.querySelectorAll(`#${arguments[0]} thead th`)].filter(head => head.offsetWidth);
           return heads.filter(head => head.getBoundingClientRect().right <= 390).map(head => head.textContent)""",
        table,
    )
    assert shown[0] == "Run" and any(title.startswith(last) for title in shown), shown
    frame = f"document.getElementById('{table}').parentElement"
    assert "Not shown on so narrow a page, but in the files named below: " in browser.run(
        f"return {frame}.nextElementSibling.innerText"
    )
    left = f"document.querySelector('#{table} tbody th').getBoundingClientRect().left"
    before = browser.run(f"return {left}")
    browser.run(f"{frame}.scrollLeft = 60")
    assert abs(browser.run(f"return {left}") - before) < 2
