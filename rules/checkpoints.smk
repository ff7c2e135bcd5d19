# Needs: finished runs. Makes: their checkpoints as files that any library opens, and the proof that these are the same
# models, below results/checkpoints/.

CHECKPOINT_FOLDER = {"best": "best", "last": "checkpoint"}[PROJECT.config.checkpoints.which]


rule convert_checkpoint:
    input:
        checkpoint=PATHS.run("{run}") / CHECKPOINT_FOLDER,
        record=PATHS.run("{run}") / "run.json",
    # The form of the weights' files depends on their size, so the one that is written last stands for all.
    output:
        PATHS.checkpoint("{run}") / "checkpoint.json",
    log:
        LOGS / "convert_checkpoint/{run}.log",
    threads: PROJECT.config.checkpoints.threads
    params:
        settings=lambda wildcards: as_json(asdict(PROJECT.config.checkpoints)),
    shell:
        "python scripts/convert_checkpoint.py {input.checkpoint:q} $(dirname {output:q}) --settings {params.settings:q}"
        " > {log:q} 2>&1"


rule verify_checkpoint:
    input:
        data=data_of,
        source=PATHS.run("{run}") / CHECKPOINT_FOLDER,
        converted=PATHS.checkpoint("{run}") / "checkpoint.json",
    output:
        PATHS.checkpoint("{run}") / "verify.json",
    log:
        LOGS / "verify_checkpoint/{run}.log",
    shell:
        "python scripts/verify_checkpoint.py --source {input.source:q} --converted $(dirname {input.converted:q})"
        " --data $(dirname {input.data:q}) --output {output:q} > {log:q} 2>&1"


rule checkpoints:
    input:
        [PATHS.checkpoint(name) / "verify.json" for name in PROJECT.runs],
