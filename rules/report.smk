# Needs: finished runs, their parity verdicts, and measured formats. Makes: the comparison report, results/report/.


localrules:
    report,


rule report:
    input:
        results_of(PROJECT.runs),
        rules.parity.input,
        rules.summaries.input,
        proofs_shown(),
        rules.loaders.input,
    output:
        page=report(
            REPORT,
            caption="captions/page.rst",
            category="Comparison",
        ),
        table=report(
            PATHS.report / "summary.csv",
            caption="captions/summary.rst",
            category="Comparison",
        ),
        conversions=report(
            PATHS.report / "checkpoints.csv",
            caption="captions/checkpoints.rst",
            category="Comparison",
        ),
        figures=directory(PATHS.report / "figures"),
    log:
        LOGS / "report.log",
    resources:
        nodes=0,
    params:
        results=PATHS.results,
        work=PATHS.root / "work",
        title=PROJECT.config.title,
        runs=list(PROJECT.runs),
        datasets=CONVERTED,
        code=provenance.code_digest(["scripts/report.py"]),
    shell:
        "python scripts/report.py --results {params.results:q} --work {params.work:q} --title {params.title:q}"
        " --runs {params.runs:q} --datasets {params.datasets:q} --output $(dirname {output.page:q}) > {log:q} 2>&1"
