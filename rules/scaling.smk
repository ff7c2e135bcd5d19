# Needs: prepared data. Makes: short runs of the rows that studies name, on different numbers of GPUs, and from them the tables, the
# figure and the text for a proposal for compute time, results/scaling/. Other targets do not request them.


use rule train as train_point with:
    wildcard_constraints:
        run=pattern(PROJECT.points),


rule study:
    input:
        lambda wildcards: [
            PATHS.run(run.run) / "summary.json"
            for point in PROJECT.studies[wildcards.study].points
            for run in point.runs
        ],
    output:
        points=report(
            PATHS.study("{study}") / "points.csv",
            caption="captions/study.rst",
            category="Scaling",
            labels={"study": "{study}"},
        ),
        figure=report(
            PATHS.study("{study}") / "scaling.svg",
            caption="captions/study.rst",
            category="Scaling",
            labels={"study": "{study}"},
        ),
        pdf=PATHS.study("{study}") / "scaling.pdf",
        texts=[PATHS.study("{study}") / "study.md", PATHS.study("{study}") / "study.tex"],
    log:
        LOGS / "scaling/{study}.log",
    wildcard_constraints:
        study=pattern(PROJECT.studies),
    localrule: True
    resources:
        nodes=0,
    params:
        settings=lambda wildcards: as_json(of_group(PROJECT.config.studies[wildcards.study])),
        code=code_of("report"),
    shell:
        "parascale scaling {wildcards.study:q} > {log:q} 2>&1"


# Also requests the points, because after a failure there may be a study of unfinished runs.
rule scaling:
    input:
        stage("scaling", [PATHS.study(name) / "points.csv" for name in PROJECT.studies]),
        results_of(PROJECT.points),
