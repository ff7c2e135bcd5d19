# Needs: finished runs. Makes: their checkpoints as files that any library opens, and the proof that these are the same
# models, below results/checkpoints/.


rule convert_checkpoint:
    # A run appears as a whole, and summary.json last.
    input:
        PATHS.run("{run}") / "summary.json",
    # The form of the weights' files depends on their size, so the one that is written last stands for all.
    output:
        PATHS.checkpoint("{run}") / "checkpoint.json",
    log:
        LOGS / "convert_checkpoint/{run}.log",
    threads: PROJECT.config.checkpoints.threads
    resources:
        **one_node(60),
    params:
        source=checkpoint_of,
        settings=form_settings(),
        code=provenance.code_digest(["scripts/convert_checkpoint.py"]),
    shell:
        "python scripts/convert_checkpoint.py {params.source:q} $(dirname {output:q}) --settings {params.settings:q}"
        " > {log:q} 2>&1"


rule verify_checkpoint:
    input:
        data=data_of,
        pretrained=pretrained_files(weights=False),
        converted=PATHS.checkpoint("{run}") / "checkpoint.json",
    output:
        PATHS.checkpoint("{run}") / "verify.json",
    log:
        LOGS / "verify_checkpoint/{run}.log",
    # The model is evaluated in one process, with all cores of its node.
    threads: PROJECT.site.cores_per_node
    resources:
        **one_node(60),
    params:
        source=checkpoint_of,
        code=provenance.code_digest(["scripts/verify_checkpoint.py"]),
    shell:
        "python scripts/verify_checkpoint.py --source {params.source:q} --converted $(dirname {input.converted:q})"
        " --data $(dirname {input.data:q}) --output {output:q} > {log:q} 2>&1"


rule checkpoints:
    input:
        [PATHS.checkpoint(name) / "verify.json" for name in PROJECT.runs],
