"""What earlier starts of a workflow left for the next plan: how long rules took, and the plan before."""

import statistics
from collections import defaultdict
from contextlib import suppress

from parascale.files import read_json, read_json_lines

SCHEMA_VERSION = 1  # of `plan.json`


def rule_history(events, site):
    """Rule → median hours of its jobs that finished at a site (a name), in an `events.jsonl`; empty without the file."""
    if not events.is_file():
        return {}
    hours = defaultdict(list)
    for event in read_json_lines(events, readable=True):
        if event["event"] == "finished" and event.get("site") == site and event.get("seconds") is not None:
            hours[event["rule"]].append(event["seconds"] / 3600)
    return {rule: statistics.median(values) for rule, values in hours.items()}


def last_plan(path, targets):
    """The jobs in a `plan.json`, with their prices, if it planned for the same targets; None where it did not, where there is none, or
    where it is damaged or of another version: the next plan is written over it."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        values = read_json(path)
        if (values["schema_version"], values.get("targets")) == (SCHEMA_VERSION, [*targets]):
            return {_key(job["rule"], job["wildcards"]): job["core_hours_expected"] for job in values["jobs"]}
    return None


def changes(then, priced):
    """What changed since `last_plan`, in words: jobs that are gone or new, and the largest change of a price; None: nothing."""
    now = {_key(job.rule, job.wildcards): job.core_hours_expected for job in priced}
    more = {key: (now[key] or 0.0) - (then[key] or 0.0) for key in now.keys() & then.keys()}
    dearer = {key: change for key, change in more.items() if abs(change) > 0.005}
    gone = len(then.keys() - now.keys())
    said = [f"{gone:,} {'job' if gone == 1 else 'jobs'} fewer"] if gone else []
    said += [f"{len(now.keys() - then.keys()):,} more"] if now.keys() - then.keys() else []
    if dearer:
        most = max(dearer, key=lambda key: abs(dearer[key]))
        said.append(f"{len(dearer):,} with another price, most of all {' '.join(most)} ({dearer[most]:+,.2f} core-h)")
    return ", ".join(said) or None


def _key(rule, wildcards):
    return rule, *map(str, wildcards.values())
