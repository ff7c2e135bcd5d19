"""A Job as plain values, as tests hand it to the processes that they start."""

import dataclasses
from pathlib import Path

from parascale.settings import Site, run_from_dict, strict
from parascale.settings.config import Monitor
from parascale.train.job import Job

PLACES = ("data", "work", "output", "results", "store", "start")


def plain(job):
    """A Job as plain values. What is known of its data is found anew where it trains."""
    values = dataclasses.asdict(job) | {"known": None}
    return values | {name: str(values[name]) for name in PLACES if values[name] is not None}


def job_from_settings(values):
    """The Job that `plain` took apart."""
    places = {name: Path(values[name]) for name in PLACES if values.get(name) is not None}
    settings = {"run": run_from_dict(values["run"]), "site": strict.load(Site, values["site"], "site")}
    if values.get("monitor") is not None:
        settings["monitor"] = strict.load(Monitor, values["monitor"], "monitor")
    return Job(**{**values, **places, **settings})
