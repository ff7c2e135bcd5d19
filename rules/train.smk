# Needs: prepared data. Makes: trained runs below results/runs/, with one rule per strategy, so that job tables and profiles can
# name strategies. Unfinished runs are in work/, which no rule declares, because Snakemake deletes declared outputs before
# it retries a failed job, and a training continues where it stopped.


rule train:
    input:
        data_of,
        start=starts(),
        pretrained=pretrained_files(weights=True),
    output:
        record=PATHS.run("{run}") / "run.json",
        steps=PATHS.run("{run}") / "steps.jsonl",
        devices=PATHS.run("{run}") / "device.csv",
        events=PATHS.run("{run}") / "events.out.tfevents.parascale",
        summary=PATHS.run("{run}") / "summary.json",
        # A run with evaluation also has best/. It is not listed, because summary.json is a run's last file.
        checkpoint=directory(PATHS.run("{run}") / "checkpoint"),
    log:
        LOGS / "train/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/train/{run}.tsv"
    wildcard_constraints:
        run=NONE,
    # Alternate repeats with the runs that they are compared with, so that a disturbance of the machine affects all of them.
    priority: shared(lambda run: 1 / run.repeat)
    # A timed run gets the whole node.
    threads: PROJECT.site.cores_per_node
    resources:
        **resources_of(),
    params:
        kind="run",
        key=key_of("run"),
    shell:
        "parascale launch --run {wildcards.run:q} --kind {params.kind} > {log:q} 2>&1"


use rule train as train_single with:
    wildcard_constraints:
        run=pattern(runs_of("single")),


use rule train as train_ddp with:
    wildcard_constraints:
        run=pattern(runs_of("ddp")),


use rule train as train_multi_node with:
    wildcard_constraints:
        run=pattern(runs_of("multi_node")),


use rule train as train_fsdp with:
    wildcard_constraints:
        run=pattern(runs_of("fsdp")),


use rule train as train_hsdp with:
    wildcard_constraints:
        run=pattern(runs_of("hsdp")),


use rule train as train_tp with:
    wildcard_constraints:
        run=pattern(runs_of("tp")),


use rule train as train_pp with:
    wildcard_constraints:
        run=pattern(runs_of("pp")),


use rule train as train_cp with:
    wildcard_constraints:
        run=pattern(runs_of("cp")),


use rule train as train_naive with:
    wildcard_constraints:
        run=pattern(runs_of("naive")),


use rule train as train_hybrid with:
    wildcard_constraints:
        run=pattern(runs_of("hybrid")),


use rule train as train_three_d with:
    wildcard_constraints:
        run=pattern(runs_of("three_d")),


use rule train as train_local_sgd with:
    wildcard_constraints:
        run=pattern(runs_of("local_sgd")),


use rule train as train_lightning with:
    wildcard_constraints:
        run=pattern(runs_of("single", "lightning") + runs_of("ddp", "lightning") + runs_of("multi_node", "lightning")),


rule single_gpu:
    input:
        stage("single_gpu", results_of(runs_of("single"))),


rule ddp:
    input:
        stage("ddp", results_of(runs_of("ddp"))),


rule multi_node:
    input:
        stage("multi_node", results_of(runs_of("multi_node"))),


rule fsdp:
    input:
        stage("fsdp", results_of(runs_of("fsdp") + runs_of("hsdp"))),


rule tp:
    input:
        stage("tp", results_of(runs_of("tp"))),


rule pp:
    input:
        stage("pp", results_of(runs_of("pp") + runs_of("naive"))),


rule cp:
    input:
        stage("cp", results_of(runs_of("cp"))),


rule three_d:
    input:
        stage("three_d", results_of(runs_of("three_d"))),


rule hybrid:
    input:
        stage("hybrid", results_of(runs_of("hybrid"))),


rule local_sgd:
    input:
        stage("local_sgd", results_of(runs_of("local_sgd"))),


rule lightning:
    input:
        stage("lightning", results_of([name for name, run in PROJECT.runs.items() if run.engine == "lightning"])),
