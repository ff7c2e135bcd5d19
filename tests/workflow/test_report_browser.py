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
from parascale.report.sections import SECTIONS
from tests.unit.fake_everything import CLASSIFIER, SUMMARISER, TEXT
from tests.unit.fake_results import ddp, fake, matrix, report_of

SCREENS, PAPERS = (
    (390, 1024, 1440),
    (1032, 794),
)  # of A4, 273 mm between margins are 1,032 CSS pixels, its short side 794
# What must not be seen: (widths where it is looked for, script that returns how many were looked at and which are wrong).
# `width` is that of the page; `all(selector)` and `box(element)` are what they say.
WRONG = {
    "the page scrolls sideways": (
        (*SCREENS, *PAPERS),
        "const wide = document.documentElement.scrollWidth; return [1, wide > width ? [wide] : []]",
    ),
    "a figure must be scrolled to": (SCREENS, "return among(all('.panel'), panel => box(panel).right > width)"),
    "a row is higher than a few lines": (SCREENS, "return among(all('tr'), row => box(row).height > 250)"),
    "a column of single words": (
        SCREENS,
        "return among(all('td.words, td.sentences'), cell => cell.offsetWidth && cell.offsetWidth < 120)",
    ),
    "tiny text in a figure": (
        SCREENS,
        """return among(all('svg.chart text'), text => { const svg = text.closest('svg');
             return parseFloat(getComputedStyle(text).fontSize) * box(svg).width / svg.viewBox.baseVal.width < 8})""",
    ),
    "panels of a workload are no row, or on a telephone no column": (
        SCREENS,
        """return among(all('.panels.row'), row => new Set([...row.children].map(panel => Math.round(box(panel).top))).size
             !== (width < 600 ? row.children.length : 1))""",
    ),
    "a column of advice is cut on a telephone": (
        (390,),
        "return among(all('.scroll:has([id^=advice-table])'), frame => frame.scrollWidth > frame.clientWidth)",
    ),
    "a label of a figure is cut off at its edge": (
        (1440,),
        """return among(all('svg.chart text'), text => { const frame = box(text.closest('svg')), own = box(text);
             return own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1
               || own.bottom > frame.bottom + 1})""",
    ),
    "a name covers its bar": (
        (1440,),
        """return among(all('svg.chart .name text'), text => { const own = box(text), middle = (own.top + own.bottom) / 2;
             return [...text.closest('svg').querySelectorAll('.bar path, .heat path')].map(box).some(
               bar => bar.top < middle && middle < bar.bottom && bar.left < own.right)})""",
    ),
    "a table scrolls for a few pixels": (
        (1440,),
        """return among(all('.scroll'), frame => { const over = frame.scrollWidth - frame.clientWidth;
             return 0 < over && over < 40})""",
    ),
    # Browsers print a button of a repeated heading once, on the first page: on paper, headings are plain text.
    "headings are not repeated on every page": (
        PAPERS,
        """return among(all('thead th'), head => { const button = head.querySelector('button');
             return getComputedStyle(button).display !== 'none'
               || getComputedStyle(head, '::before').content.slice(1, -1) !== button.textContent})""",
    ),
    "a column is left out of paper": (
        PAPERS,
        "return among(all('thead th'), head => getComputedStyle(head).display === 'none')",
    ),
    "paper says what is left out": (
        PAPERS,
        "return among(all('body'), body => body.querySelector('.narrow')?.offsetHeight)",
    ),
    "a frame around a verdict covers the number below it": (
        PAPERS,
        "return among(all('.tag'), word => getComputedStyle(word).borderTopWidth !== '0px')",
    ),
    "tables of figures are not printed": (
        PAPERS,
        "return among(all('details:not(.screen) table').slice(0, 1), table => !box(table).height)",
    ),
    "what is folded is printed, or not named": (
        PAPERS,
        """return among(all('body'), body => [...body.querySelectorAll('details.screen')].some(item =>
             !item.querySelector('summary').offsetHeight || item.querySelector('table')?.checkVisibility()
             || getComputedStyle(item.querySelector('summary'), '::after').content !== '": on screen only"'))""",
    ),
}
HELPERS = """const width = arguments[0], all = (selector) => [...document.querySelectorAll(selector)];
const box = (element) => element.getBoundingClientRect();
const among = (elements, wrong) => [elements.length, elements.filter(wrong).map(element => element.textContent.trim().slice(0, 60))];
"""


@pytest.mark.parametrize("width", (*SCREENS, *PAPERS))
def test_a_page_is_readable_at_every_width_and_on_paper(browser, page, width):
    browser.show(page, width, media="print" if width in PAPERS else "")
    for what, (widths, script) in WRONG.items():
        if width in widths:
            count, found = browser.run(HELPERS + script, width)
            assert found == [], what
            assert count or page.parent.name == "jobs", f"nothing was looked at: {what}"


def test_every_section_is_there_to_be_looked_at(pages):
    """Who adds a section adds made-up results for it: the other tests see no more than is there."""
    shown = {name: re.findall('<section id="(.*?)"', page.read_text()) for name, page in pages.items()}
    assert len(shown["report"]) == len(SECTIONS), shown["report"]
    written = "findings job attempts usage phases loss operators parity plan provenance"
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
        browser.show(page, 1440, folded=True)
        text = browser.command("DOM.getDocument", {"depth": -1})
        assert json.dumps(text).count('"nodeName": "svg"') >= 8
        assert "Core-hours" in json.dumps(text)
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
    """Names, verdicts, times and costs without scrolling sideways; other columns are named, and names stay while it scrolls."""
    browser.show(pages["report"], 390)
    shown, said, moved = browser.run(
        """const table = document.getElementById(arguments[0]), frame = table.parentElement;
           const heads = [...table.tHead.querySelectorAll('th')].filter(head => head.offsetWidth);
           const shown = heads.filter(head => head.getBoundingClientRect().right <= 390).map(head => head.textContent);
           const left = () => table.querySelector('tbody th').getBoundingClientRect().left, before = left();
           frame.scrollLeft = 60;
           return [shown, frame.nextElementSibling.innerText, left() - before]""",
        table,
    )
    assert shown[0] == "Run" and any(title.startswith(last) for title in shown), shown
    assert "Not shown on so narrow a page" in said and abs(moved) < 2


def test_a_report_of_ten_runs_opens_on_few_screens_and_is_printed_on_at_most_twelve_pages(browser, tmp_path):
    """Three workloads on A4, as paper has it: tables of figures are printed too, but not samples of curves."""
    sums, images = (
        {"train": train, "baseline": f"{name}-single"} for name, train in (("sum", SUMMARISER), ("img", CLASSIFIER))
    )
    fakes = [entry for entry in matrix(TEXT) if entry.run.run not in ("naive", "waste", "local-sgd")]
    for name, options in (("sum", sums), ("img", images)):
        fakes += [fake(f"{name}-single", verdict="baseline", **options), ddp(f"{name}-ddp", **options)]
    page = tmp_path / "index.html"
    write_text(page, render_page(report_of(tmp_path, *fakes)))
    browser.show(page, 1440, folded=True)
    assert browser.run("return document.documentElement.scrollHeight") <= 2600
    browser.show(page, 1032)
    printed = browser.command("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert 1 < len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 12


FOLLOWED = """const after = {H2: 'p, tbody th, figcaption, .panel-title', H3: 'p, tbody th, figcaption, .panel-title', FIGCAPTION: '.panel-title'};
const shown = (element) => element.checkVisibility() && element.textContent.trim();
const linked = [...document.querySelectorAll('h2, h3, figcaption')].filter(shown).map(heading => [heading,
    [...(heading.closest('.part') ?? heading.closest('section')).querySelectorAll(after[heading.tagName])].find(other => shown(other)
      && heading.compareDocumentPosition(other) === Node.DOCUMENT_POSITION_FOLLOWING)]);
linked.forEach((pair, number) => pair.forEach((element, second) => {
  const link = document.createElement('a');
  link.href = `https://place/${second}/${number}/`;
  link.append(...element.childNodes);
  element.append(link);
}));
return linked.map(([heading]) => heading.textContent);"""


def test_on_paper_no_heading_is_apart_from_what_it_heads(browser, page):
    """Both become links: a PDF says in plain text which links are on which of its pages."""
    browser.show(page, 1032, media="print")
    names = browser.run(FOLLOWED)
    document = base64.b64decode(browser.command("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    objects = dict(re.findall(rb"\n(\d+) 0 obj\n(.*?)\nendobj", document, re.DOTALL))
    places = {}
    for number, found in enumerate(each for each in objects.values() if re.search(rb"/Type\s*/Page\b", each)):
        for link in re.findall(rb"(\d+) 0 R", (re.findall(rb"/Annots \[(.*?)\]", found) or [b""])[0]):
            for second, which in re.findall(rb"https://place/(\d)/(\d+)/", objects[link]):  # or one of the page's own
                places.setdefault((int(second), int(which)), []).append(number)
    assert len(places) == 2 * len(names) > 20
    assert [name for number, name in enumerate(names) if max(places[0, number]) != min(places[1, number])] == []


def test_many_runs_are_legible_on_paper(browser, many):
    """Names of runs in one line, and in figures letters of a height, however many bars there are."""
    browser.show(many, 1032, media="print")
    names = browser.run(
        """return [...document.querySelectorAll('tr[data-run] > th')].map(cell => {
             const range = document.createRange();
             range.selectNodeContents(cell.firstChild);
             return [cell.firstChild.textContent.trim(), range.getClientRects().length]})"""
    )
    assert len(names) > 5 * 32 and [name for name, lines in names if lines > 1 and len(name) <= 24] == []
    heights = browser.run(
        """return [...document.querySelectorAll('svg.chart')].map(svg => {
             const frame = svg.getBoundingClientRect(), box = svg.viewBox.baseVal;
             return 13 * Math.min(frame.width / box.width, frame.height / box.height)})"""
    )
    assert len(heights) > 6 and min(heights) > 6
    assert browser.run("return document.documentElement.scrollWidth") <= 1032
