"""What was measured between processes stands in the report: bus bandwidth drawn and in numbers, and what could not be read."""

import re

import pytest

from parascale.report import build_report, load_transfers, render_page
from tests.command import parascale

HEADER = "operation,group,nodes,ranks,bytes,seconds,algorithm_gigabytes_per_second,bus_gigabytes_per_second"
# All-reduce of 4 ranks: bus bandwidth is 1.5 times algorithm bandwidth.
ROWS = [
    ("all_reduce", "all", 2, 4, 1024, 1e-4, 0.01024, 0.01536),
    ("all_reduce", "all", 2, 4, 67108864, 0.01, 6.7108864, 10.0663296),
    ("broadcast", "all", 2, 4, 1024, 1e-4, 0.01024, 0.01024),
    ("broadcast", "all", 2, 4, 67108864, 0.01, 6.7108864, 6.7108864),
    ("all_reduce", "dp", 1, 2, 1024, 1e-5, 0.1024, 0.1024),
]


def write(folder, name, rows=ROWS):
    """A file as the measurement writes it."""
    (folder / "communication").mkdir(exist_ok=True)
    lines = [HEADER, *(",".join(map(str, row)) for row in rows)]
    (folder / f"communication/{name}.csv").write_text("\r\n".join(lines))


def section(results, names=None):
    """The section of a page that has nothing else to show."""
    page = render_page(build_report([], "Title", transfers=load_transfers(results, names)))
    _, found, rest = page.partition('<section id="communication"')
    return rest.partition("</section>")[0] if found else None


def test_each_group_is_drawn_with_its_numbers_and_the_name_of_its_file(tmp_path):
    write(tmp_path, "dp-pp")
    shown = section(tmp_path)
    assert shown.count("<svg class") == 2 and shown.count('<g class="line">') == 3
    assert "dp-pp: 4 processes, 2 nodes" in shown and "dp-pp: 2 processes along dp, 1 node" in shown
    assert "all_reduce 10.1 GB/s at 64 MiB; broadcast 6.71 GB/s at 64 MiB" in shown, "in words where it cannot be seen"
    assert 'data-figure="all_reduce_bus_gigabytes_per_second" data-value="10.0663296"' in shown
    assert shown.count("<tr") == 1 + len(ROWS)
    assert "results/communication/dp-pp.csv</code>" in shown


def test_both_axes_are_logarithmic(tmp_path):
    """A point of the middle size and rate, each a geometric mean, lies in the middle of the plot."""
    rows = [("all_reduce", "all", 1, 2, size, 1.0, rate, rate) for size, rate in ((1, 0.01), (32, 0.1), (1024, 1.0))]
    write(tmp_path, "ddp", rows)
    path = section(tmp_path).partition('<g class="line">')[2].partition(' d="')[2].partition('"')[0]
    left, bottom, *middle, right, top = (float(value) for value in re.findall(r"[\d.]+", path))
    assert middle == pytest.approx([(left + right) / 2, (bottom + top) / 2], abs=0.1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("operation,bytes\nall_reduce,4\n", "<code>group</code> is missing"),
        (
            f"{HEADER}\nall_reduce,all,1,2,x,1,1,1\n",
            "<code>bytes</code> = &#39;x&#39;: input should be a valid integer",
        ),
        (f"{HEADER}\nall_reduce,all,1,2,4,1,0,0\n", "4 bytes at 0.0 GB/s"),
    ],
)
def test_a_damaged_file_is_named_and_does_not_stop_the_report(tmp_path, content, said):
    write(tmp_path, "ddp")
    (tmp_path / "communication/broken.csv").write_text(content)
    shown = section(tmp_path)
    assert "broken.csv cannot be read" in shown and said in shown and "run the target" in shown
    assert "ddp: 4 processes" in shown


def test_without_measurements_there_is_no_section(tmp_path):
    assert section(tmp_path) is None
    write(tmp_path, "ddp")
    assert section(tmp_path, ["other"]) is None


def test_the_command_draws_the_figure_of_the_runs_that_stand_for_a_shape(tmp_path):
    """A file of a run that stands for nothing any more is not shown."""
    (tmp_path / "results").mkdir()
    write(tmp_path / "results", "ddp")
    write(tmp_path / "results", "old")
    parascale("report", "--root", tmp_path, check=True)
    drawn = (tmp_path / "results/report/figures/communication.svg").read_text()
    assert "ddp: 4 processes" in drawn and "old" not in drawn
