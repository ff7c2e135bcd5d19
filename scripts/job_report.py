"""Write the report of one job: what it was, what it used, what stands out, as a page and as PDF.

    python scripts/job_report.py --run ddp --results results --work work --output results/report/jobs

Works for finished runs and for those under way or failed, whose records lie in `work`. Writes <run>.html (one file, no
network) and <run>.pdf below the output folder.
"""

import argparse
from pathlib import Path

from parascale.cli import run_main
from parascale.files import write_text
from parascale.report.job import load_job, render_job


def main():
    arguments = _parse()
    from parascale.report.pdf import write_pdf  # after --help, because matplotlib loads slowly

    job = load_job(arguments.results, arguments.work, arguments.run)
    page = Path(arguments.output) / f"{arguments.run}.html"
    write_pdf(job, page.with_suffix(".pdf"))
    write_text(page, render_job(job))
    print(f"{page}: {job.record.status}", flush=True)


def _parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--results", default="results", help="folder that holds runs/ and parity/ (default: results)")
    parser.add_argument("--work", default="work", help="folder that holds unfinished runs (default: work)")
    parser.add_argument("--output", default="results/report/jobs", help="folder to write (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
