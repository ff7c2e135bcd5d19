"""Converted checkpoints in the report: every number of every proof, on the page and in `checkpoints.csv`."""

import csv
import json
import subprocess
import sys

import pytest

from parascale.checkpoint.matrix import conversions
from parascale.errors import CheckpointError
from parascale.files import write_json, write_text
from parascale.report import build_report, load_records, render_page
from parascale.report.conversions import COLUMNS, conversions_table
from tests.command import parascale
from tests.unit.fake_results import fake, write_results

FORM = {"bytes": 3_000_000, "seconds": 0.5, "peak_memory_bytes": 12 << 20, "identical": True, "optimizer": False}


def proof(run, **forms):
    """What verifying leaves. forms: name → what differs from FORM."""
    found = {name: {**FORM, "test_loss": 4.25, "tensors": 9, **changed} for name, changed in forms.items()}
    return {"schema_version": 1, "run": run, "strategy": run, "dtype": None, "forms": found}


@pytest.fixture
def folder(tmp_path):
    """Three runs, of which two were converted, and the proof of one that is not in the report."""
    write_results(
        tmp_path, [fake("single", verdict="baseline"), *(fake(n, gpus_per_node=2, **{n: 2}) for n in ("fsdp", "tp"))]
    )
    proofs = (
        proof("fsdp", safetensors={}, pt={"seconds": 0.25}),
        proof("tp", pt={"identical": False, "test_loss": None}),
    )
    for values in (*proofs, proof("old", pt={})):
        write_json(tmp_path / "results/checkpoints" / values["run"] / "verify.json", values)
    only = [word for name in ("single", "fsdp", "tp") for word in ("--only", name)]
    parascale("report", "--root", tmp_path, "--output", tmp_path / "report", *only, check=True)
    return tmp_path


def test_every_number_of_the_proofs_is_in_the_csv(folder):
    with (folder / "report/checkpoints.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["run"], row["layout"], row["form"]) for row in rows] == [
        ("fsdp", "fsdp", "safetensors"),
        ("fsdp", "fsdp", "pt"),
        ("tp", "tp", "pt"),
    ]
    assert list(rows[0]) == [column.name for column in COLUMNS]
    first, second, third = rows
    assert (float(first["gb_per_second"]), float(second["gb_per_second"])) == (0.006, 0.012)
    assert (first["bytes"], first["peak_memory_bytes"], first["identical"], first["test_loss"]) == (
        "3000000",
        str(12 << 20),
        "True",
        "4.25",
    )
    assert (third["identical"], third["test_loss"]) == ("False", "")


def test_the_page_shows_the_matrix_and_what_is_not_the_same(folder):
    section = (folder / "report/index.html").read_text().split('<section id="checkpoints"')[1].split("</section>")[0]
    assert section.count("<tr") == 1 + 3
    assert section.count('class="tag same">identical') == 2 and section.count('class="tag different">differ') == 1
    assert 'data-figure="pt_seconds" data-value="0.25"' in section
    assert "old" not in section


def test_of_a_form_that_another_library_computes_the_difference_of_logits_is_told(tmp_path):
    """It is no copy to the bit, and its loss is its own: the page says how far apart the logits are."""
    write_results(tmp_path, [fake("single", verdict="baseline")])
    forms = {"pt": {}, "transformers": {"test_loss": 4.250001, "logits_difference": 3.1e-6}}
    write_json(tmp_path / "results/checkpoints/single/verify.json", proof("single", **forms))
    rows = tuple(conversions(tmp_path / "results"))
    assert [row["logits_difference"] for row in rows] == [None, 3.1e-6]
    report = build_report(load_records(tmp_path / "results", tmp_path / "work"), "Title", conversions=rows)
    section = render_page(report).split('<section id="checkpoints"')[1].split("</section>")[0]
    assert section.count('class="tag same">identical') == 1 and section.count('class="tag same">same logits') == 1
    assert 'data-figure="transformers_logits_difference" data-value="3.1e-06">to 3.1 × 10⁻⁶' in section
    assert conversions_table(report).csv.splitlines()[2].split(",")[9] == "3.1e-06"


def test_without_conversions_there_is_no_section(tmp_path):
    report = build_report(load_records(*write_results(tmp_path, [fake("single")])), "Title")
    assert 'id="checkpoints"' not in render_page(report)


@pytest.mark.parametrize("text", ["{", '{"run": "a"}', json.dumps(proof("a", pt={"seconds": "long"}))])
def test_a_damaged_proof_is_named(text, tmp_path):
    path = tmp_path / "checkpoints/a/verify.json"
    write_text(path, text)
    with pytest.raises(CheckpointError, match=r"checkpoints/a/verify\.json is damaged"):
        conversions(tmp_path)


def test_the_command_needs_no_torch():
    """A login node builds the report."""
    code = "import sys; sys.modules['torch'] = None; import parascale.commands.report"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
