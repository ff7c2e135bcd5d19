"""The report on paper, as a browser prints it: few pages, nothing cut off, and no heading apart from what it heads."""

import base64
import re

import pytest

from parascale.files import write_text
from parascale.report import build_report as compared
from parascale.report import load_records, render_page
from tests.unit.fake_everything import CLASSIFIER, SUMMARISER, TEXT
from tests.unit.fake_results import fake, matrix, write_results


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


FOLLOWED = """const after = {H2: 'p, tbody th, figcaption, .panel-title', H3: 'p, tbody th, figcaption, .panel-title', FIGCAPTION: '.panel-title'};
const shown = (element) => element.checkVisibility() && element.textContent.trim();
const linked = [...document.querySelectorAll('h2, h3, figcaption')].filter(shown).map(heading => [heading,
    [...heading.closest('section').querySelectorAll(after[heading.tagName])].find(other => shown(other)
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


def test_paper_has_every_column(browser, page):
    """Pages ask for A4 across; media queries have the width of the printer's own paper, which is no reason to leave columns out."""
    browser.show(page, 794, media="print")
    assert (
        browser.run(
            "return [...document.querySelectorAll('thead th')].filter(head => getComputedStyle(head).display === 'none').length"
        )
        == 0
    )
    assert not browser.run("return [...document.querySelectorAll('.narrow')].some(said => said.offsetHeight)")


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


@pytest.mark.parametrize("width", [1032, 794], ids=["landscape", "portrait"])
def test_print_fits_the_page_and_names_what_is_folded(browser, page, width):
    """273 mm between the margins of A4 are 1,032 CSS pixels, its whole short side 794; what is wider would be cut off."""
    browser.show(page, width, media="print")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelector('details table').getBoundingClientRect().height") > 0
    folded = browser.run(
        """return [...document.querySelectorAll('details.screen')].map(item => [
             item.querySelector('summary').offsetHeight > 0, getComputedStyle(item.querySelector('summary'), '::after').content,
             item.querySelector('table')?.checkVisibility() ?? false])"""
    )
    assert all(each == [True, '": on screen only"', False] for each in folded)
