"""The page: it needs nothing but itself, is the same when it is built again, and is right about what is not there."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from parascale.report import build_report, load_records, render_page, write_report
from parascale.report.drawing import BOX, PATTERNS, POINTER, Entry, Figure, Panel, standalone
from parascale.report.figures import FIGURES
from parascale.report.readings import Readings
from tests.command import call
from tests.pace import processor_seconds, within
from tests.unit.fake_results import BASE, CLUSTER, ddp, fake, matrix, report_of, workload, write_results
from tests.unit.page_cells import Cells

SVG = "{http://www.w3.org/2000/svg}"


def test_rebuilding_gives_the_same_bytes(matrix_report):
    before = {path: path.read_bytes() for path in (matrix_report / "report").rglob("*") if path.is_file()}
    names = [*(entry.run.run for entry in matrix()), "zero-bubble"]
    words = ["--root", matrix_report, "--output", matrix_report / "report", "--config", "title=A title & more"]
    call("report", *words, *(word for name in names for word in ("--only", name)))
    assert len(before) == 5 + len(FIGURES)
    assert {path: path.read_bytes() for path in before} == before


def test_the_page_is_one_file_that_asks_for_nothing(matrix_page):
    for word in ("http://", "https://", '<link rel="stylesheet', "@import", "url(", "src="):
        assert word not in matrix_page.replace("http://www.w3.org/2000/svg", ""), word


def test_every_figure_has_a_text_alternative_and_a_table(matrix_page):
    charts = matrix_page.split('<svg class="chart"')[1:]
    assert len(charts) >= 6
    for chart in charts:
        text = chart.split("</desc>")[0]
        identities = text.split('aria-labelledby="')[1].split('"')[0].split()
        assert all(f'id="{identity}"' in text for identity in identities) and len(text.split("<desc")[1]) > 60
    assert matrix_page.count("<figure ") == matrix_page.count("The numbers of this figure")
    assert matrix_page.count('id="') == len({part.split('"')[0] for part in matrix_page.split('id="')[1:]}), (
        "ids are unique"
    )


def test_figures_have_colours_of_the_theme_alone_and_values_where_the_pointer_rests(matrix_page):
    charts = [chart.split("</svg>")[0] for chart in matrix_page.split('<svg class="chart"')[1:]]
    assert not [found for chart in charts for found in re.findall("#[0-9a-f]{6}", chart)]
    drawn = "".join(charts)
    assert "var(--c0)" in drawn and "font-family" not in drawn, "text has the page's font"
    for note in (r"ddp: backward [\d.]+ ms \(\d+ %\)", r"ddp on 2 processes: [\d.]+ ×"):
        assert re.search(f"<title>{note}</title>", drawn), note


def test_a_name_is_no_formula(tmp_path):
    """What stands between dollars would be one for matplotlib."""
    page = render_page(report_of(tmp_path, fake("a$_b$<c>", baseline="a$_b$<c>", verdict="baseline")))
    assert ">a$_b$&lt;c&gt;</text>" in page


def test_a_pipelines_bubble_is_one_number_in_figure_and_tables(tmp_path):
    """The mean of all ranks, although phases are those of rank 0, which waits more here: bar, table of phases and table of bubbles."""
    waited = 0.31
    report = report_of(tmp_path, *matrix(), summaries={"pp": {"bubble_measured": waited}})
    (spent,) = (record.summary.phases for record in report.records if record.name == "pp")
    rank, page = spent["bubble"] / sum(spent.values()), render_page(report)
    found = {key[::2]: float(value) for key, value in Cells(page).found.items() if key[1] == "pp" and value}
    phases = {figure: value for (table, figure), value in found.items() if table == "table-phases"}
    parts = [value for figure, value in phases.items() if figure.endswith("_seconds_per_step")]
    (bar,) = re.findall(r"<title>pp: bubble [^<(]* \((\d+) %\)</title>", page)
    assert round(100 * waited) != round(100 * rank)
    assert found["bubbles-table", "bubble_measured"] == waited and int(bar) == round(100 * waited)
    assert phases["bubble_seconds_per_step"] / sum(parts) == pytest.approx(waited)


def test_what_went_wrong_is_a_warning_at_the_very_top_and_the_first_row(tmp_path, matrix_page):
    """And it stands beside the name in every table; its cost is in no comparison."""
    wrong = fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=1e-2)
    page = render_page(
        report_of(tmp_path, fake("single", **BASE), ddp(), wrong, ddp("stuck", status="failed", steps=3))
    )
    warning = page.partition('role="alert"')[2].partition("</div>")[0]
    assert page.index('role="alert"') < page.index('id="verdict"') and "first at step 10" in warning
    assert re.findall(r"<code>(\w+)</code> does not compute", warning) == ["wrong"]
    rows = re.findall(r'<tr data-run="(.*?)"', page.split('id="runs-table"')[1].split("</table>")[0])
    assert rows == ["stuck", "wrong", "ddp", "single"]
    named = re.findall(r'<tr data-run="(.*?)".*?</th>', page, re.DOTALL)
    tagged = re.findall(r'<tr data-run="(\w+)"[^>]*>\s*<th[^>]*>[^/]*tag different', page)
    assert set(tagged) == {"wrong"} and len(tagged) == named.count("wrong") > 5
    assert 'role="alert"' not in matrix_page


def test_a_terminal_gets_a_table_with_the_fastest_first_and_what_is_not_ranked_last(matrix_report):
    head, *lines = (matrix_report / "report/verdict.txt").read_text().splitlines()
    titles = ["Training", "Times as fast", "Core-hours, whole job", "Memory of a process", "Result", "Best"]
    assert re.split("  +", head) == ["lm-small, 122,880 tokens", *titles]
    cells = [re.split("  +", line.strip()) for line in lines]
    assert cells[1] == ["ddp", "2 processes", "2.83 s", "1.74 (1.71 to 1.77)", "0.0185", "340 MiB", "same"]
    assert [row[0] for row in cells] == ["hybrid", "ddp", "fsdp", "pp", "tp", "single", "waste", "naive"]


@pytest.mark.parametrize("names", [None, ["single", "ddp"]])
def test_a_report_of_nothing_says_how_to_get_something(tmp_path, names):
    report = build_report(load_records(tmp_path / "results", tmp_path / "work", names), "Title")
    write_report(report, tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "make run" in page and "<svg" not in page
    assert len((tmp_path / "report/summary.csv").read_text().splitlines()) == 1 + len(names or ())
    for name in FIGURES:
        assert "Nothing to draw yet" in (tmp_path / f"report/figures/{name}.svg").read_text()


@pytest.mark.parametrize(("codes", "said"), [("aab", False), ("abb", True)])
def test_different_code_is_said_of_runs_that_are_compared_alone(codes, said, tmp_path):
    """Another workload has another reader or model, so its code differs without anybody having changed it."""
    images = fake("images", verdict="baseline", baseline="images", train=workload("images-small"))
    names = ("single", "ddp", "images")
    digests = {name: {"code_digest": code} for name, code in zip(names, codes, strict=True)}
    page = render_page(report_of(tmp_path, fake("single", **BASE), ddp(), images, runs=digests))
    assert re.findall(r"Runs of <code>(.*?)</code> were made by different versions", page) == ["lm-small"] * said


def test_runs_that_are_not_in_the_table_are_named(tmp_path):
    write_results(tmp_path, [fake("single"), fake("old")])
    call("report", "--root", tmp_path, "--output", tmp_path, "--only", "single")
    page = (tmp_path / "index.html").read_text()
    assert "are left out: <code>old</code>" in page and "old" not in (tmp_path / "summary.csv").read_text()


def test_figures_stand_alone(matrix_report):
    for name in FIGURES:
        root = ElementTree.parse(matrix_report / f"report/figures/{name}.svg").getroot()
        assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title").text and len(root.find(f"{SVG}desc").text) > 40
        assert "--paper" in root.find(f"{SVG}style").text


def test_legends_have_the_marks_of_matplotlib_on_page_and_in_files_and_keep_inside():
    entries = [Entry(f"a line of a run with a long name {number}", "c1", PATTERNS[1]) for number in range(5)]
    entries += [Entry("bar", "c2", marker=BOX), Entry("prediction", "ink", marker=POINTER)]
    panel = Panel("Title", "words", 60, lambda axes: axes.plot((0, 1), (0, 1)))
    file = standalone(Figure("name", "Title", "Caption.", (panel,), tuple(entries)))
    for entry in entries:
        (mark,) = re.findall("<path.*?/>", entry.swatch)
        look = mark[mark.index(' d="' if entry.marker else ' style="') :]  # all but the place
        assert look in file and bool(entry.marker) != ("stroke-dasharray" in look), entry.label
        assert f">{entry.label}</text>" in file and "var(--" in mark and "#" not in mark
    width = float(re.search(r'viewBox="0 0 (\d+)', file)[1])
    texts = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="[\d.]+" style[^>]*>a line', file)]
    assert len(texts) == 5 and max(texts) + 8 * 32 < width


def test_captions_exist_for_every_figure():
    captions = Path(__file__).parents[2] / "rules/captions"
    for name in (*FIGURES, "report", "page", "summary", "plan", "advice", "checkpoints"):
        assert len((captions / f"{name}.rst").read_text().split()) > 8


def test_names_and_titles_cannot_break_the_page(tmp_path):
    train = workload('<script>alert("x")</script>')
    fakes = fake("single", verdict="baseline", train=train), ddp(train=train)
    readings = Readings("shapes", note='<script>alert("x")</script>')
    records = report_of(tmp_path, *fakes).records
    write_report(build_report(records, "<script>", readings=(readings,)), tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "<script>alert" not in page and "<title>&lt;script&gt;</title>" in page and "&lt;script&gt;alert" in page
    for name in FIGURES:
        ElementTree.parse(tmp_path / f"report/figures/{name}.svg")


# Calls the command and prints its peak memory. What a parent learns of its child begins with the parent's own, taken over at
# the fork.
WITH_PEAK = """
from pathlib import Path
from parascale.cli import main
try:
    main()
finally:
    print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


def test_many_long_runs_are_quick_and_small(tmp_path):
    """Fifty runs of 2,000 steps: under 30 s of processor time, 1 GB and 5 MB, in a process of its own."""
    runs, train = 50, workload(steps=2000, evaluate_every=100)
    fakes = [fake("run-0", baseline="run-0", verdict="baseline", train=train, site=CLUSTER)]
    for number in range(1, runs):
        kind = ("dp", "fsdp", "tp", "pp")[number % 4]
        fakes.append(
            fake(
                f"run-{number}",
                baseline="run-0",
                gpus_per_node=4,
                train=train,
                site=CLUSTER,
                seed=number // 4,
                **{kind: 4},
            )
        )
    write_results(tmp_path, fakes)
    command = [
        sys.executable,
        "-c",
        WITH_PEAK,
        "report",
        "--everything",
        "--root",
        tmp_path,
        "--output",
        tmp_path / "report",
    ]
    seconds, done = processor_seconds(command, check=True)
    assert within(seconds, 30) and int(done.stdout.split()[-2]) * 1024 < 1e9
    assert (tmp_path / "report/index.html").stat().st_size < 5e6
