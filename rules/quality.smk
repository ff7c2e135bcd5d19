# Needs: finished runs of summarisers. Makes: summaries of their test splits and their scores, below results/summaries/.

SUMMARIES = [PATHS.summaries(name) for name in SUMMARISERS]


rule summarise:
    input:
        data=data_of,
        pretrained=pretrained_files(weights=False),
        finished=PATHS.run("{run}") / "summary.json",
    output:
        PATHS.summaries("{run}"),
    log:
        LOGS / "summarise/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/summarise/{run}.tsv"
    wildcard_constraints:
        run=pattern(SUMMARISERS),
    threads: PROJECT.site.cores_per_node
    resources:
        **one_node("summarise", gpus=PROJECT.site.gpus_per_node),  # one process per GPU
    params:
        device=PROJECT.site.device,
        settings=lambda wildcards: as_json(of_group(PROJECT.config.summaries)),
        code=code_of("summaries"),
    shell:
        "parascale summarise --run {wildcards.run:q} > {log:q} 2>&1"


rule summaries:
    input:
        stage("summaries", SUMMARIES),
