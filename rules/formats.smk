# Needs: an index of images, or flat tokens. Makes: the same data in every format, proof that it is the same, and how fast
# each is read here, below results/data/ and results/loaders/.


localrules:
    gather_shards,


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
    # What is no part of a finished shard is a resource: a changed parameter would have all shards made again. For the same
    # reason bad samples fail no shard, whose record Snakemake would remove, but gather_shards.
    resources:
        **one_node(60),
        reading_threads=PROJECT.config.formats.threads,
    params:
        number=lambda wildcards: SHARDS.index(wildcards.shard),
        settings=conversion_settings,
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format} --shard {params.number}"
        " --input $(dirname {input:q}) --settings {params.settings:q} --threads {resources.reading_threads}"
        " --output $(dirname $(dirname {output:q})) > {log:q} 2>&1"


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
    resources:
        nodes=0,
    params:
        settings=conversion_settings,
        bad_samples=PROJECT.config.formats.bad_samples,
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format} --gather"
        " --input $(dirname {input.index:q}) --settings {params.settings:q} --bad-samples {params.bad_samples}"
        " --output $(dirname {output:q}) > {log:q} 2>&1"


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
        **one_node(15),
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format}"
        " --input $(dirname {input:q}) --output $(dirname {output:q}) > {log:q} 2>&1"


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
        **one_node(60),
    shell:
        "python scripts/verify_formats.py --dataset {wildcards.dataset} --input $(dirname {input.source:q})"
        " --folder $(dirname {input.converted:q}) > {log:q} 2>&1"


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
    # All of them: what runs beside a measurement spoils it.
    threads: PROJECT.site.cores_per_node
    resources:
        **one_node(30),
    params:
        settings=reading_settings,
        window=window_of,
        folders=lambda wildcards, input: [Path(path).parent for path in input],
        code=READING_CODE,
    shell:
        "python scripts/benchmark_loaders.py --dataset {wildcards.dataset} --settings {params.settings:q}"
        " --window {params.window} --output {output.table:q} {params.folders:q} > {log:q} 2>&1"


rule formats:
    input:
        [path for name in CONVERTED for path in verified_of(name)],


rule loaders:
    input:
        [PATHS.results / f"loaders/{name}.csv" for name in CONVERTED],
