# Needs: prepared data. Makes: for each run a short, exact run in its layout, and the verdict on whether it computes the same
# training as its baseline, below results/parity/.


use rule train as parity_run with:
    input:
        data_of,
        pretrained=pretrained_files(weights=True),
    output:
        record=PATHS.parity("{run}") / "run.json",
        steps=PATHS.parity("{run}") / "steps.jsonl",
        devices=PATHS.parity("{run}") / "device.csv",
        summary=PATHS.parity("{run}") / "summary.json",
        checkpoint=directory(PATHS.parity("{run}") / "checkpoint"),
    log:
        LOGS / "parity/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/parity/{run}.tsv"
    wildcard_constraints:
        run=TRAINED,
    # Parity runs are not timed, so several may share a machine.
    threads: shared(lambda run: cores_of(run.layout, PROJECT.site))
    resources:
        **resources_of("parity"),
    params:
        kind="parity",
        key=key_of("parity"),


rule parity_verdict:
    input:
        shared(compared, PROJECT.runs),
    output:
        PATHS.parity("{run}") / "verdict.json",
    log:
        LOGS / "parity_verdict/{run}.log",
    localrule: True
    resources:
        nodes=0,
    params:
        baseline=shared(lambda run: run.baseline, PROJECT.runs),
        incomparable=shared(lambda run: PROJECT.incomparable.get(run.run), PROJECT.runs),
        code=code_of("parity"),
    shell:
        "parascale parity compare --run {wildcards.run:q} > {log:q} 2>&1"


rule parity:
    input:
        [PATHS.parity(name) / "verdict.json" for name in PROJECT.trained],
