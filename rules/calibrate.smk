# Needs: prepared data. Makes: short probes of each workload on this machine, results/probes/, and from them the prices for later
# plans, results/calibration/. Finished runs refine the prices without a rule, because plans read their records.


use rule train as probe with:
    input:
        data_of,
        pretrained=pretrained_files(weights=True),
    output:
        record=PATHS.probe("{run}") / "run.json",
        steps=PATHS.probe("{run}") / "steps.jsonl",
        summary=PATHS.probe("{run}") / "summary.json",
        # Nobody needs a probe's weights.
        checkpoint=temp(directory(PATHS.probe("{run}") / "checkpoint")),
    log:
        LOGS / "probe/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/probe/{run}.tsv"
    wildcard_constraints:
        run=pattern(PLANNER.probes),
    resources:
        **resources_of("probe"),
    params:
        kind="probe",
        key=key_of("probe"),


rule calibrate:
    input:
        [PATHS.probe(name) / "summary.json" for name in PLANNER.probes],
    output:
        PATHS.calibration(PROJECT.site.name),
    log:
        LOGS / "calibrate.log",
    localrule: True
    resources:
        nodes=0,
    params:
        probes=list(PLANNER.probes),
        code=code_of("calibration"),
    shell:
        "parascale calibrate {params.probes:q} > {log:q} 2>&1"
