"""The report in a real browser, opened from a file, and as it is printed: no error, no request, readable, accessible.

Skipped where chromium, chromedriver or axe-core are missing, saying which.
"""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest

from parascale.files import write_text
from parascale.report import render_page
from parascale.report.parts import PARTS
from tests.made_up.everything import CLASSIFIER, SUMMARISER, TEXT
from tests.made_up.results import ddp, fake, matrix, report_of

SCREENS, PAPERS = (390, 1024, 1440), (1032, 794)  # of A4: 273 mm between margins in CSS pixels, and its short side
# What must not be seen: (widths where it is looked for, script that returns how many were looked at and which are wrong).
# `width` is that of the page; `all(selector)` and `box(element)` are what they say.
WRONG = {
    "the page scrolls sideways": (
        (*SCREENS, *PAPERS),
        "const wide = document.documentElement.scrollWidth; return [1, wide > width ? [wide] : []]",
    ),
    "a row is higher than a few lines": (SCREENS, "return among(all('tr'), row => box(row).height > 250)"),
    "tiny text in a figure": (
        SCREENS,
        """return among(all('svg.chart text'), text => { const svg = text.closest('svg'), scale = box(svg).width / svg.viewBox.baseVal.width;
             return scale && parseFloat(getComputedStyle(text).fontSize) * scale < 8})""",
    ),
    "a label of a figure is cut off at its edge": (
        (1440,),
        """return among(all('svg.chart text'), text => { const frame = box(text.closest('svg')), own = box(text);
             return own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1
               || own.bottom > frame.bottom + 1})""",
    ),
    # Browsers print a button of a repeated heading once, on the first page: on paper, headings are plain text.
    "headings are not repeated on every page": (
        PAPERS,
        """return among(all('thead th'), head => { const button = head.querySelector('button');
             return getComputedStyle(button).display !== 'none'
               || getComputedStyle(head, '::before').content.slice(1, -1) !== button.textContent})""",
    ),
    "a part or a workload is not printed": (
        PAPERS,
        "return among(all('.part section, .workload'), part => !part.checkVisibility() || !box(part).height)",
    ),
}
HELPERS = """const width = arguments[0], all = (selector) => [...document.querySelectorAll(selector)];
const box = (element) => element.getBoundingClientRect();
const among = (elements, wrong) => [elements.length, elements.filter(wrong).map(element => element.textContent.trim().slice(0, 60))];
"""


@pytest.mark.parametrize(
    "width", [pytest.param(width, marks=[pytest.mark.slow] * (width in (1024, 794))) for width in (*SCREENS, *PAPERS)]
)
def test_a_page_is_readable_at_every_width_and_on_paper(browser, page, width):
    browser.show(page, width, media="print" if width in PAPERS else "")
    for what, (widths, script) in WRONG.items():
        if width in widths:
            count, found = browser.run(HELPERS + script, width)
            assert found == [], what
            assert count, f"nothing was looked at: {what}"


def test_every_part_is_there_to_be_looked_at(pages):
    """Who adds a part adds made-up results for it: the other tests see no more than is there."""
    assert len(re.findall('<details class="part">', pages["report"].read_text())) == len(PARTS)
    assert all(f'id="{name}"' in pages["report"].read_text() for name in ("next", "cost", "figure-cost"))


def test_the_page_asks_for_nothing_and_says_nothing_on_the_console(browser, page):
    browser.show(page, 390)  # the browser's own first page asks for things until it is left
    browser.log("browser"), browser.log("performance")
    browser.show(page, 1440)
    events = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked, "the browser's own record of requests is empty, so it proves nothing"
    assert [url for url in asked if url != page.as_uri() and not url.startswith("data:")] == []
    assert browser.log("browser") == []


# (page, table, heading): text, numbers, and numbers with a unit of each cell's own.
SORTED = [("report", "runs-lm-small", "Layout"), ("report", "runs-lm-small", "Training")]
SORTED += [("report", "parity-table", "Verdict"), ("report", "parity-table", "Loss difference, nats")]
SORTED += [("report", "quality-table-2", "ROUGE-1"), ("report", "checkpoints-table", "Time")]
SORTED += [("job", "operators-table", "Calls"), ("job", "usage-table", "Metric")]
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
        browser.show(page, 1440, folded=True)
        text = browser.command("DOM.getDocument", {"depth": -1})
        assert json.dumps(text).count('"nodeName": "svg"') >= 4
        assert '"nodeName": "BUTTON"' not in json.dumps(text), "scripts ran all the same"
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", {"value": False})


# Colours depend on the theme and the rest on the width. Each takes about eight seconds.
@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (390, True),
        *(pytest.param(*view, marks=pytest.mark.slow) for view in ((390, False), (1024, False), (1440, True))),
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


def test_a_tab_shows_its_workload_and_paper_all(browser, pages):
    browser.show(pages["report"], 1440)
    shown = "return [...document.querySelectorAll('.workload')].map(part => part.checkVisibility())"
    first = browser.run(shown)
    browser.run("document.getElementById('tab-2').click()")
    assert first == [True, False, False, False, False] and browser.run(shown) == [False, True, False, False, False]
    browser.show(pages["report"], 1032, media="print")
    assert all(browser.run(shown))


def test_the_report_leads_to_the_page_of_a_job(browser, pages):
    browser.show(pages["report"], 1440)
    there = browser.run("return document.querySelector('#runs-lm-small a').href")
    assert there == pages["job"].as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_two_themes_differ_and_print_is_light(browser, page, dark):
    """The page follows the reader's theme, and paper stays white."""
    browser.show(page, 1440, dark)
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(colour) == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")
    browser.show(page, 1440, dark, media="print")
    assert browser.run(colour) == "rgb(255, 255, 255)"


def test_names_stay_while_a_table_scrolls_on_a_telephone(browser, pages):
    browser.show(pages["report"], 390)
    moved = browser.run(
        """const table = document.getElementById('runs-lm-small'), frame = table.parentElement;
           const left = () => table.querySelector('tbody th').getBoundingClientRect().left, before = left();
           frame.scrollLeft = 60;
           return left() - before"""
    )
    assert abs(moved) < 2


def test_results_and_reasons_are_seen_on_a_telephone(browser, pages):
    """Without scrolling sideways."""
    browser.show(pages["report"], 390)
    count, cut, names = browser.run(
        """const table = document.getElementById('runs-lm-small'), edge = table.parentElement.getBoundingClientRect().right;
           const tags = [...table.querySelectorAll('td:nth-child(4) .tag')], names = [...table.querySelectorAll('tbody th')];
           const beyond = (elements) => elements.filter(each => each.getBoundingClientRect().right > edge).map(each => each.textContent);
           return [tags.length, beyond([...tags, ...names]), names.map(each => each.textContent)]"""
    )
    assert count > 8 and cut == []
    assert len([name for name in names if "not compared: local SGD is another method" in name]) == 1


def test_a_report_of_ten_runs_opens_on_few_screens_and_is_printed_on_at_most_nine_pages(browser, tmp_path):
    """Three workloads on A4, as paper has it."""
    fakes = [entry for entry in matrix(TEXT) if entry.run.run not in ("naive", "waste", "local-sgd")]
    for name, train in (("sum", SUMMARISER), ("img", CLASSIFIER)):
        options = {"train": train, "baseline": f"{name}-single"}
        fakes += [fake(f"{name}-single", verdict="baseline", **options), ddp(f"{name}-ddp", **options)]
    page = tmp_path / "index.html"
    write_text(page, render_page(report_of(tmp_path, *fakes)))
    browser.show(page, 1440, folded=True)
    assert browser.run("return document.documentElement.scrollHeight") <= 2600
    browser.show(page, 1032)
    printed = browser.command("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert 1 < len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 9


def test_many_runs_are_legible_on_paper(browser, many):
    """However many bars there are, letters of a figure have a height."""
    browser.show(many, 1032, media="print")
    heights = browser.run(
        """return [...document.querySelectorAll('svg.chart')].map(svg => {
             const frame = svg.getBoundingClientRect(), box = svg.viewBox.baseVal;
             return 12 * Math.min(frame.width / box.width, frame.height / box.height)})"""
    )
    assert len(heights) >= 5 and min(heights) > 6
    assert browser.run("return document.documentElement.scrollWidth") <= 1032
