"""Which layout for so many GPUs? Ranked, with memory and the reason in words.

Example: python scripts/advise.py --workload lm-small --site jureca --gpus 8
"""

import argparse
import dataclasses
import json

from parascale.cli import run_main
from parascale.plan import calibrate
from parascale.plan.advise import advise, rule_of_thumb
from parascale.plan.predict import data_facts
from parascale.settings import load_project_file, load_site, load_workload
from parascale.settings.run import PRECISIONS, Run


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True, help="name of a workload")
    parser.add_argument("--site", help="name of a site (default: the configuration's)")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs in all (processes, on a site without GPUs)")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="precision (default: %(default)s)")
    parser.add_argument("--by", choices=("time", "core_hours"), default="time", help="rank by (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, help="entries of the vocabulary, where the data is not prepared")
    parser.add_argument("--top", type=int, default=10, help="layouts that are shown (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all of them as JSON")
    parser.add_argument("--config", default="config/config.yaml", help="the configuration (default: %(default)s)")
    return parser.parse_args()


def main():
    """Print the advice."""
    arguments = parse()
    project = load_project_file(arguments.config)
    site = load_site(project.config, arguments.site) if arguments.site else project.site
    workload = load_workload(project.config.workloads, arguments.workload)
    facts = data_facts(Run(run="advice", workload=workload), project.paths)
    if arguments.vocabulary:
        facts = dataclasses.replace(facts, vocabulary=arguments.vocabulary)
    known = calibrate.known(project.paths, site.name)
    ranked = advise(workload, site, arguments.gpus, arguments.precision, known, facts, arguments.by)
    if arguments.json:
        print(json.dumps([as_dict(advice) for advice in ranked], indent=2))
        return
    thumb = rule_of_thumb(workload, site, arguments.gpus, arguments.precision, facts.vocabulary)
    if thumb:
        print(thumb)
    if ranked[0].prediction.unknown:
        print(f"unknown: {ranked[0].prediction.unknown}")
    print(
        f"{len(ranked)} layouts for {arguments.gpus} GPUs of {site.name}, by {arguments.by}; rests on {ranked[0].prediction.basis}\n"
    )
    for number, advice in enumerate(ranked[: arguments.top], 1):
        print(f"{number:3}. {line(advice)}\n     {advice.reason}")


def line(advice):
    """One layout and its figures."""
    layout, foretold = advice.layout, advice.prediction
    degrees = " ".join(f"{axis}={degree}" for axis, degree in layout.dimensions.items())
    if layout.pp > 1:
        degrees += f" micro_batches={layout.micro_batches}"
    memory = (
        "memory unknown"
        if foretold.memory_bytes is None
        else f"{foretold.memory_bytes / 1e9:.1f} GB a GPU: {foretold.fits}"
    )
    step = "" if foretold.step_seconds is None else f", {1000 * foretold.step_seconds:.1f} ms a step"
    cost = (
        ""
        if foretold.core_hours is None
        else f", {foretold.wall_seconds / 3600:.2f} h, {foretold.core_hours:.1f} core-h"
    )
    return f"{layout.strategy()} ({degrees or 'one GPU'}): {memory}{step}{cost}"


def as_dict(advice):
    """Plain values of a RankedLayout."""
    return {
        "strategy": advice.layout.strategy(),
        "layout": dataclasses.asdict(advice.layout),
        "reason": advice.reason,
        "prediction": advice.prediction.as_dict(),
    }


if __name__ == "__main__":
    run_main(main)
