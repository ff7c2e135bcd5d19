# Needs: a source, on a node with internet for `hub` and `url`. Makes: raw data, then token arrays, below results/data/.


localrules:
    download,


rule download:
    output:
        PATHS.raw("{dataset}") / "manifest.json",
    log:
        LOGS / "download/{dataset}.log",
    resources:
        nodes=0,
    params:
        settings=data_settings("source"),
    shell:
        "python scripts/download.py --settings {params.settings:q}" " --output $(dirname {output:q}) > {log:q} 2>&1"


rule prepare:
    input:
        PATHS.raw("{dataset}") / "manifest.json",
    output:
        PATHS.data("{dataset}", "flat") / "manifest.json",
    log:
        LOGS / "prepare/{dataset}.log",
    resources:
        runtime=30,
    params:
        settings=data_settings("text", "expected"),
    shell:
        "python scripts/prepare.py --raw $(dirname {input:q}) --settings {params.settings:q}"
        " --output $(dirname {output:q}) > {log:q} 2>&1"


rule data:
    input:
        [PATHS.data(name, "flat") / "manifest.json" for name in PROJECT.datasets],
