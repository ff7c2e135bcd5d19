# From raw data to a verdict on how to scale a training. Each include is one stage, in the order of the data.
# config/ says what to run, profiles/ where to run it; README.md shows the three ways to use the workflow.

from snakemake.utils import min_version

min_version("9.27.1")  # the pinned and tested version


configfile: "config/config.yaml"


# Only the linter needs this line. There is no image with this workflow's pinned versions, so `--sdm` is refused: all rules run in the
# environment that runs Snakemake (envs/constraints.txt).
container: "docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"


report: "rules/captions/report.rst"


include: "rules/common.smk"
include: "rules/lookups.smk"
include: "rules/communication.smk"
include: "rules/data.smk"
include: "rules/formats.smk"
include: "rules/train.smk"
include: "rules/calibrate.smk"
include: "rules/parity.smk"
include: "rules/scaling.smk"
include: "rules/quality.smk"
include: "rules/checkpoints.smk"
include: "rules/report.smk"


onstart:
    before_the_first_job()


onerror:
    report_what_there_is()


rule all:
    default_target: True
    input:
        rules.report.input,
