# Needs: a source; for `hub` and `url` a node with internet. Makes: raw data, then token arrays or an index of images, below
# results/data/.


rule download:
    input:
        own_files,
    output:
        PATHS.raw("{dataset}") / "manifest.json",
    log:
        LOGS / "download/{dataset}.log",
    wildcard_constraints:
        dataset=pattern([*TEXT_DATA, *PAIR_DATA]),
    localrule: True
    resources:
        nodes=0,
    params:
        settings=data_settings("source"),
    shell:
        "parascale data download --dataset {wildcards.dataset:q} > {log:q} 2>&1"


rule download_images:
    output:
        PATHS.raw("{dataset}") / "manifest.json",
    log:
        LOGS / "download/{dataset}.log",
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
    localrule: True
    resources:
        nodes=0,
    params:
        settings=data_settings("source", "images"),
    shell:
        "parascale data download --dataset {wildcards.dataset:q} > {log:q} 2>&1"


rule encode_shard:
    input:
        raw=PATHS.raw("{dataset}") / "manifest.json",
        pretrained=pretrained_files(weights=False),
    output:
        temp(directory(PATHS.data("{dataset}", "encoded") / "{shard}")),
    log:
        LOGS / "prepare/{dataset}-{shard}.log",
    benchmark:
        PATHS.results / "benchmarks/encode/{dataset}-{shard}.tsv"
    resources:
        **data_node("encode"),
    params:
        number=lambda wildcards: int(wildcards.shard.split("-")[0]),
        settings=data_settings("text"),
    shell:
        "parascale data prepare --dataset {wildcards.dataset:q} --shard {params.number} > {log:q} 2>&1"


rule prepare:
    input:
        raw=PATHS.raw("{dataset}") / "manifest.json",
        pretrained=pretrained_files(weights=False),
        shards=shards_of,
    output:
        PATHS.data("{dataset}", "{prepared}") / "manifest.json",
    log:
        LOGS / "prepare/{dataset}-{prepared}.log",
    benchmark:
        PATHS.results / "benchmarks/prepare/{dataset}-{prepared}.tsv"
    wildcard_constraints:
        dataset=pattern([*TEXT_DATA, *PAIR_DATA]),
        prepared="flat|pairs",
    resources:
        **data_node("prepare"),
    params:
        # `data.expected` is checked when data is made; a change does not make the data again.
        settings=data_settings("text"),
    shell:
        "parascale data prepare --dataset {wildcards.dataset:q} > {log:q} 2>&1"


rule index_images:
    input:
        PATHS.raw("{dataset}") / "manifest.json",
        own_folders,
    output:
        PATHS.data("{dataset}", "index") / "manifest.json",
    log:
        LOGS / "index/{dataset}.log",
    benchmark:
        PATHS.results / "benchmarks/index/{dataset}.tsv"
    wildcard_constraints:
        dataset=pattern(IMAGE_DATA),
    resources:
        **data_node("index"),
    params:
        settings=data_settings("images"),
        columns=lambda wildcards: as_json(IMAGE_DATA[wildcards.dataset].source.columns),
    shell:
        "parascale data index --dataset {wildcards.dataset:q} > {log:q} 2>&1"


rule data:
    input:
        [source_of(name) for name in PROJECT.datasets],
