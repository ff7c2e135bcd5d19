"""The comparison report: turns the records of runs into one page. Imports neither torch nor Snakemake."""

from parascale.report.comparing import build_report
from parascale.report.measured import load_readings
from parascale.report.page import render_page, write_report
from parascale.report.records import load_records

__all__ = ["build_report", "load_readings", "load_records", "render_page", "write_report"]
