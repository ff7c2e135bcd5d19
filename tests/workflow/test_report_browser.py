"""The report in a real browser, opened from a file: no error, no request, readable at both widths, accessible.

Skipped where chromium, chromedriver or axe-core are missing, saying which.
"""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest

from parascale.files import write_json, write_text
from parascale.report import build_report as compared
from parascale.report import load_records, render_page
from parascale.report.job import load_job, render_job
from parascale.report.sections import SECTIONS
from tests.unit.fake_devices import START, gpu_lines, write_devices
from tests.unit.fake_everything import (
    CLASSIFIER,
    SUMMARISER,
    TEXT,
    build_report,
    finished,
    unfinished,
    write_everything,
)
from tests.unit.fake_results import fake, matrix, write_results
from tests.workflow.browser import Browser, find_programs

WIDTHS = (390, 1024, 1440)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser for the tests of this file."""
    programs = find_programs()
    if None in programs:
        pytest.skip("chromium and chromedriver are not installed")
    opened = Browser(*programs, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The report with every kind of row (finished, failed, running, missing, different, weak, repeated seeds) and every
    section, as its command builds it, and the page of a job with every kind of section."""
    root, fakes = tmp_path_factory.mktemp("report"), [*finished(), *unfinished()]
    results, work = write_everything(root, fakes)
    job = results / "report/jobs/ddp.html"
    write_text(job, render_job(_job(results, work)))
    runs = [*(entry.run.run for entry in fakes[:-1]), "not-started"]  # the last one is left out, which is said
    only = [word for run in runs for word in ("--only", run)]
    report = build_report(root, "--set", "title=A report with everything", *only)
    return {"report": report / "index.html", "job": job}


def _job(results, work):
    """A job on GPUs with idle ones, several attempts, a time limit and a profile."""
    folder = results / "runs/ddp"
    write_devices(folder, gpu_lines(4, 2, nodes=2, throttled={0: "power_cap"}))
    times = {"started": START, "seconds": 3550.0, "submitted": START - 900, "allocated": START, "limit_seconds": 3600.0}
    first = {
        "start": "2026-01-02T03:04:05+00:00",
        "outcome": "stopped",
        "job_id": "1",
        "first_step": 1,
        "last_step": 30,
    }
    last = {**first, "start": "2026-01-02T04:34:05+00:00", "outcome": "finished", "job_id": "2"}
    described = json.loads((folder / "run.json").read_text())
    described["attempts"] = [{**first, **times}, {**last, "seconds": 700.0}]
    write_json(folder / "run.json", described)
    return load_job(results, work, "ddp")


@pytest.fixture(scope="module", params=["report", "job"])
def page(request, pages):
    """Each of the pages in turn."""
    return pages[request.param]


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


def test_tables_on_paper_have_headings_on_every_page(browser, page):
    """Browsers print a button of a repeated heading once, on the first page: on paper, headings are plain text."""
    browser.show(page, 1032, media="print")
    shown = browser.run(
        """return [...document.querySelectorAll('thead th')].map(head => [
             getComputedStyle(head.querySelector('button')).display,
             getComputedStyle(head, '::before').content.slice(1, -1) === head.querySelector('button').textContent])"""
    )
    assert shown and all(each == ["none", True] for each in shown)


def test_words_of_verdicts_on_paper_cover_no_number(browser, page):
    """The number below a verdict's word was overprinted by the frame around the word."""
    browser.show(page, 1032, media="print")
    frames = browser.run(
        "return [...document.querySelectorAll('.tag')].map(word => getComputedStyle(word).borderTopWidth)"
    )
    assert frames and set(frames) == {"0px"}


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
        pytest.param(1440, False, id="1440-light"),
        pytest.param(390, False, id="390-light", marks=pytest.mark.slow),
        pytest.param(1440, True, id="1440-dark", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing(browser, page, width, dark):
    """axe-core's rules, tables of figures opened."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None:
        pytest.skip("axe-core is not installed (package axe-core-python)")
    axe = Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    browser.show(page, width, dark)
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true })")
    browser.run(f"{axe}; window.axe = axe;")
    violations = browser.run(
        """return (await window.axe.run({resultTypes: ['violations']})).violations.map(
             found => [found.impact, found.id, found.nodes.slice(0, 3).map(node => node.html)])"""
    )
    assert violations == []


def test_a_report_of_ten_runs_is_printed_on_at_most_twelve_pages(browser, tmp_path):
    """Three workloads on A4, as paper has it: tables of figures are printed too, but not samples of curves."""
    sums, images = (
        {"train": train, "baseline": f"{name}-single"} for name, train in (("sum", SUMMARISER), ("img", CLASSIFIER))
    )
    fakes = [entry for entry in matrix(TEXT) if entry.run.run not in ("naive", "waste", "local-sgd")]
    for name, options in (("sum", sums), ("img", images)):
        fakes += [
            fake(f"{name}-single", verdict="baseline", **options),
            fake(f"{name}-ddp", dp=2, gpus_per_node=2, **options),
        ]
    page = tmp_path / "index.html"
    write_text(page, render_page(compared(load_records(*write_results(tmp_path, fakes)), "Ten runs")))
    browser.show(page, 1032)
    printed = browser.command("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert 1 < len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 12


def test_many_runs_are_legible_on_paper(browser, tmp_path):
    """Names of runs in one line, and in figures letters of a height, however many bars there are."""
    shape = {"pp": 2, "gpus_per_node": 2, "train": TEXT}
    fakes = [fake("single", verdict="baseline", train=TEXT)]
    fakes += [fake(f"a-pipeline-of-{number}", micro_batches=number, **shape) for number in range(2, 33)]
    page = tmp_path / "index.html"
    write_text(page, render_page(compared(load_records(*write_results(tmp_path, fakes)), "Many runs")))
    browser.show(page, 1032, media="print")
    names = browser.run(
        """return [...document.querySelectorAll('tr[data-run] > th')].map(cell => {
             const range = document.createRange();
             range.selectNodeContents(cell.firstChild);
             return [cell.firstChild.textContent.trim(), range.getClientRects().length]})"""
    )
    assert len(names) > 5 * len(fakes) and [name for name, lines in names if lines > 1 and len(name) <= 24] == []
    heights = browser.run(
        """return [...document.querySelectorAll('svg.chart')].map(svg => {
             const frame = svg.getBoundingClientRect(), box = svg.viewBox.baseVal;
             return 13 * Math.min(frame.width / box.width, frame.height / box.height)})"""
    )
    assert len(heights) > 6 and min(heights) > 6
    assert browser.run("return document.documentElement.scrollWidth") <= 1032


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


@pytest.mark.parametrize("width", [1032, 794], ids=["landscape", "portrait"])
def test_print_fits_the_page_and_names_what_it_leaves_out(browser, page, width):
    """273 mm between the margins of A4 are 1,032 CSS pixels, its whole short side 794; what is wider would be cut off."""
    browser.show(page, width, media="print")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelector('details table').getBoundingClientRect().height") > 0
    folded = browser.run(
        """return [...document.querySelectorAll('details.screen')].map(item => [
             item.querySelector('summary').offsetHeight > 0, getComputedStyle(item.querySelector('summary'), '::after').content,
             item.querySelector('table')?.checkVisibility() ?? false])"""
    )
    assert all(each == [True, '": on the page, not on paper"', False] for each in folded)


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
