configfile: "config.yaml"


from parascale.settings import load_project
from parascale.plan.planner import Planner
from snakemake_logger_plugin_parascale import follow, start

PROJECT = load_project(config)
PLANNER = Planner(PROJECT)
RESULTS = PROJECT.paths.results
follow(workflow, PLANNER)


localrules:
    download,
    report,


onstart:
    start(workflow, PLANNER)


def layout(key):
    return lambda wildcards: getattr(PROJECT.runs[wildcards.run].layout, key)


rule all:
    input:
        RESULTS / "report.txt",


rule download:
    output:
        RESULTS / "raw.txt",
    shell:
        "echo download >> executed.txt; touch {output:q}"


rule prepare:
    input:
        RESULTS / "raw.txt",
    output:
        RESULTS / "data.txt",
    resources:
        runtime=30,
    shell:
        "echo prepare >> executed.txt; touch {output:q}"


rule train_any:
    input:
        RESULTS / "data.txt",
    output:
        RESULTS / "train_any" / "{run}.txt",
    resources:
        nodes=layout("nodes"),
        gres=lambda wildcards: f"gpu:{PROJECT.runs[wildcards.run].layout.gpus_per_node}",
        runtime=lambda wildcards, attempt: PLANNER.runtime_minutes(wildcards.run, attempt),
    params:
        kind="run",
    shell:
        "echo train_any >> executed.txt; touch {output:q}"


rule parity_any:
    input:
        RESULTS / "data.txt",
    output:
        RESULTS / "parity_any" / "{run}.txt",
    resources:
        nodes=layout("nodes"),
        runtime=lambda wildcards, attempt: PLANNER.runtime_minutes(wildcards.run, attempt, "parity"),
    params:
        kind="parity",
    shell:
        "echo parity_any >> executed.txt; touch {output:q}"


rule report:
    input:
        expand(RESULTS / "{kind}/{run}.txt", kind=["train_any", "parity_any"], run=PROJECT.runs),
    output:
        RESULTS / "report.txt",
    shell:
        "echo report >> executed.txt; touch {output:q}"
