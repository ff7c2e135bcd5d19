# Needs: finished runs. Makes: their checkpoints as files that any library opens, and the proof that they are the same
# models, below results/checkpoints/; on request, a comparison of two checkpoints, below results/comparisons/.


rule convert_checkpoint:
    # summary.json is a run's last file.
    input:
        PATHS.run("{run}") / "summary.json",
        data=data_of if "transformers" in PROJECT.config.checkpoints.forms else [],  # for the tokenizer
    # The last file that is written; the number of weight files depends on their size.
    output:
        PATHS.checkpoint("{run}") / "checkpoint.json",
    log:
        LOGS / "convert_checkpoint/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/convert_checkpoint/{run}.tsv"
    wildcard_constraints:
        run=TRAINED,
    threads: PROJECT.config.checkpoints.threads
    resources:
        **data_node("convert_checkpoint"),
    params:
        source=checkpoint_of,
        settings=form_settings(),
        code=code_of("checkpoints"),
    shell:
        "parascale checkpoint convert --run {wildcards.run:q} > {log:q} 2>&1"


rule verify_checkpoint:
    input:
        data=data_of,
        pretrained=pretrained_files(weights=False),
        converted=PATHS.checkpoint("{run}") / "checkpoint.json",
    output:
        PATHS.checkpoint("{run}") / "verify.json",
    log:
        LOGS / "verify_checkpoint/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/verify_checkpoint/{run}.tsv"
    wildcard_constraints:
        run=TRAINED,
    # One process evaluates the model, with all cores of its node.
    threads: PROJECT.site.cores_per_node
    resources:
        **data_node("verify_checkpoint"),
    params:
        source=checkpoint_of,
        code=code_of("checkpoints"),
    shell:
        "parascale checkpoint verify --run {wildcards.run:q} > {log:q} 2>&1"


rule checkpoints:
    input:
        [PATHS.checkpoint(name) / "verify.json" for name in PROJECT.trained],


# On request, for two runs: `ddp-vs-single.txt` and so on. The largest differences come first.
rule compare_checkpoints:
    input:
        first=PATHS.run("{first}") / "summary.json",
        second=PATHS.run("{second}") / "summary.json",
    output:
        table=PATHS.results / "comparisons/{first}-vs-{second}.txt",
        figures=PATHS.results / "comparisons/{first}-vs-{second}.json",
    log:
        LOGS / "compare_checkpoints/{first}-vs-{second}.log",
    benchmark:
        PATHS.results / "benchmarks/compare_checkpoints/{first}-vs-{second}.tsv"
    wildcard_constraints:
        first=TRAINED,
        second=TRAINED,
    threads: PROJECT.config.checkpoints.threads
    resources:
        **data_node("compare_checkpoints"),
    params:
        which=PROJECT.config.checkpoints.which,
        code=code_of("checkpoints"),
    shell:
        "parascale checkpoint compare --run {wildcards.first:q} --run {wildcards.second:q}"
        " --json {output.figures:q} > {output.table:q} 2> {log:q}"
