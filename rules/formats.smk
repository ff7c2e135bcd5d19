# Needs: an index of images, or flat tokens. Makes: the same data in every format, the proof that it is the same, and this machine's
# reading speeds, below results/data/ and results/loaders/.


rule convert_shard:
    input:
        PATHS.data("{dataset}", "index") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "{shard}/record.json",
    log:
        LOGS / "convert/{dataset}-{format}-{shard}.log",
    benchmark:
        PATHS.results / "benchmarks/convert/{dataset}-{format}-{shard}.tsv"
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
        format=pattern(IMAGE_FORMATS),
        shard=pattern(SHARDS),
    # Settings that do not change a finished shard are resources, because a changed parameter would make all shards again. Bad samples fail
    # gather_shards instead of the shard, because Snakemake would delete the shard's record.
    resources:
        **data_node("convert"),
        reading_threads=PROJECT.config.formats.threads,
    params:
        number=lambda wildcards: SHARDS.index(wildcards.shard),
        settings=conversion_settings,
    shell:
        "parascale data convert --dataset {wildcards.dataset:q} --format {wildcards.format:q}"
        " --shard {params.number} --threads {resources.reading_threads} > {log:q} 2>&1"


rule gather_shards:
    input:
        index=PATHS.data("{dataset}", "index") / "manifest.json",
        records=[PATHS.data("{dataset}", "{format}") / shard / "record.json" for shard in SHARDS],
    output:
        PATHS.data("{dataset}", "{format}") / "manifest.json",
    log:
        LOGS / "convert/{dataset}-{format}.log",
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
        format=pattern(IMAGE_FORMATS),
    localrule: True
    resources:
        nodes=0,
    params:
        settings=conversion_settings,
        bad_samples=PROJECT.config.formats.bad_samples,
    shell:
        "parascale data convert --dataset {wildcards.dataset:q} --format {wildcards.format:q} --gather"
        " > {log:q} 2>&1"


rule convert_tokens:
    input:
        PATHS.data("{dataset}", "flat") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "manifest.json",
    log:
        LOGS / "convert/{dataset}-{format}.log",
    benchmark:
        PATHS.results / "benchmarks/convert/{dataset}-{format}.tsv"
    wildcard_constraints:
        dataset=pattern(TEXT_DATA),
        format=pattern(TOKEN_FORMATS),
    resources:
        **data_node("convert"),
    shell:
        "parascale data convert --dataset {wildcards.dataset:q} --format {wildcards.format:q} > {log:q} 2>&1"


rule verify_format:
    input:
        source=lambda wildcards: source_of(wildcards.dataset),
        converted=PATHS.data("{dataset}", "{format}") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "verify.json",
    log:
        LOGS / "verify/{dataset}-{format}.log",
    benchmark:
        PATHS.results / "benchmarks/verify/{dataset}-{format}.tsv"
    wildcard_constraints:
        format=pattern({*IMAGE_FORMATS, *TOKEN_FORMATS}),
    resources:
        **data_node("verify"),
    shell:
        "parascale data verify --dataset {wildcards.dataset:q} --format {wildcards.format:q} > {log:q} 2>&1"


rule benchmark_loaders:
    input:
        readable_of,
    output:
        table=report(
            PATHS.results / "loaders/{dataset}.csv",
            caption="captions/loaders.rst",
            category="Data formats",
        ),
        facts=PATHS.results / "loaders/{dataset}.json",
    log:
        LOGS / "loaders/{dataset}.log",
    benchmark:
        PATHS.results / "benchmarks/loaders/{dataset}.tsv"
    # All cores, so that no other job disturbs the measurement.
    threads: PROJECT.site.cores_per_node
    resources:
        **data_node("loaders"),
    params:
        settings=reading_settings,
        sample=sample_of,
        code=code_of("loaders"),
    shell:
        "parascale data benchmark --dataset {wildcards.dataset:q} > {log:q} 2>&1"


rule formats:
    input:
        [path for name in CONVERTED for path in verified_of(name)],


rule loaders:
    input:
        [PATHS.results / f"loaders/{name}.csv" for name in CONVERTED],
