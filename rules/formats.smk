# Needs: raw images or flat tokens. Makes: the same data in every format, proof that it is the same, and how fast each is read.


localrules:
    download_images,
    gather_shards,


rule download_images:
    output:
        PATHS.raw("{dataset}") / "manifest.json",
    log:
        LOGS / "download/{dataset}.log",
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
    resources:
        nodes=0,
    params:
        source=lambda wildcards: as_json(asdict(IMAGE_DATA[wildcards.dataset].source)),
        images=lambda wildcards: as_json(asdict(IMAGE_DATA[wildcards.dataset].images)),
    shell:
        "python scripts/download_images.py --source {params.source:q} --images {params.images:q}"
        " --output $(dirname {output:q}) > {log:q} 2>&1"


rule index_images:
    input:
        PATHS.raw("{dataset}") / "manifest.json",
    output:
        PATHS.data("{dataset}", "index") / "manifest.json",
    log:
        LOGS / "index/{dataset}.log",
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
    params:
        images=lambda wildcards: as_json(asdict(IMAGE_DATA[wildcards.dataset].images)),
        columns=lambda wildcards: as_json(IMAGE_DATA[wildcards.dataset].source.columns),
    shell:
        "python scripts/index_images.py --raw $(dirname {input:q}) --images {params.images:q}"
        " --columns {params.columns:q} --output $(dirname {output:q}) > {log:q} 2>&1"


rule convert_shard:
    input:
        PATHS.data("{dataset}", "index") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "{shard}/record.json",
    log:
        LOGS / "convert/{dataset}-{format}-{shard}.log",
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
        format=pattern(IMAGE_FORMATS),
        shard="|".join(SHARDS),
    params:
        number=lambda wildcards: SHARDS.index(wildcards.shard),
        settings=conversion_settings,
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format} --shard {params.number}"
        " --input $(dirname {input:q}) --settings {params.settings:q}"
        " --output $(dirname $(dirname $(dirname {output:q}))) > {log:q} 2>&1"


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
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format} --gather"
        " --input $(dirname {input.index:q}) --settings {params.settings:q} --output $(dirname {output:q}) > {log:q} 2>&1"


rule convert_tokens:
    input:
        PATHS.data("{dataset}", "flat") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "manifest.json",
    log:
        LOGS / "convert/{dataset}-{format}.log",
    wildcard_constraints:
        dataset=pattern(TEXT_DATA),
        format=pattern(TOKEN_FORMATS),
    shell:
        "python scripts/convert.py --dataset {wildcards.dataset} --format {wildcards.format}"
        " --input $(dirname {input:q}) --output $(dirname {output:q}) > {log:q} 2>&1"


rule verify_format:
    input:
        source=source_of,
        converted=PATHS.data("{dataset}", "{format}") / "manifest.json",
    output:
        PATHS.data("{dataset}", "{format}") / "verify.json",
    log:
        LOGS / "verify/{dataset}-{format}.log",
    wildcard_constraints:
        format=pattern([*IMAGE_FORMATS, *TOKEN_FORMATS]),
    shell:
        "python scripts/verify_formats.py --dataset {wildcards.dataset} --input $(dirname {input.source:q})"
        " --folder $(dirname {input.converted:q}) > {log:q} 2>&1"


rule benchmark_loaders:
    input:
        formats_of,
    output:
        PATHS.results / "loaders/{dataset}.csv",
        PATHS.results / "loaders/{dataset}.json",
    log:
        LOGS / "loaders/{dataset}.log",
    threads: PROJECT.site.cores_per_node  # all of them: what runs beside a measurement spoils it
    params:
        settings=lambda wildcards: as_json(asdict(PROJECT.config.loaders)),
        window=window_of,
        folders=lambda wildcards, input: [str(Path(path).parent) for path in input],
    shell:
        "python scripts/benchmark_loaders.py --dataset {wildcards.dataset} --settings {params.settings:q}"
        " {params.window} --output {output[0]:q} {params.folders:q} > {log:q} 2>&1"


rule formats:
    input:
        [path.parent / "verify.json" for name in [*IMAGE_DATA, *TEXT_DATA] for path in converted_of(name)],


rule loaders:
    input:
        [PATHS.results / f"loaders/{name}.csv" for name in [*IMAGE_DATA, *TEXT_DATA]],
