"""The matrix of conversions for reports: from which layout, into which form, at what cost. Needs no torch."""

from pathlib import Path

from parascale.files import read_json

COLUMNS = ("run", "layout", "form", "bytes", "seconds", "gb_per_second", "peak_memory_bytes", "identical", "optimizer")


def conversions(results):
    """Rows of COLUMNS (plain values), one for each converted and verified form below the folder `results`, sorted by run.

    layout is the strategy's name; gb_per_second counts bytes written, in GB (10⁹ bytes); an unknown figure is None.
    """
    rows = []
    for path in sorted(Path(results, "checkpoints").glob("*/verify.json")):
        proof = read_json(path)
        for form, found in proof["forms"].items():
            values = {key: found[key] for key in ("bytes", "seconds", "peak_memory_bytes", "identical", "optimizer")}
            rate = found["bytes"] / found["seconds"] / 1e9
            row = {"run": proof["run"], "layout": proof["strategy"], "form": form, "gb_per_second": rate, **values}
            rows.append({name: row[name] for name in COLUMNS})
    return rows
