# Needs: finished runs, their parity verdicts, and measured formats. Makes: the comparison report and a report of each job,
# results/report/.


COLOURS = series_of(PROJECT.runs)

# What the report needs to know about runs without results.
TABLE = as_json({key: getattr(PROJECT.config, key) for key in ("site", "runs", "workloads", "sites")})


rule job_report:
    input:
        PATHS.run("{run}") / "summary.json",
        PATHS.run("{run}") / "device.csv",
        shared(verdict_of, PROJECT.runs),
    output:
        page=report(
            PATHS.report / "jobs/{run}.html",
            caption="captions/job.rst",
            category="Jobs",
            labels={"run": "{run}"},
        ),
    log:
        LOGS / "job_report/{run}.log",
    localrule: True
    resources:
        nodes=0,
    params:
        code=code_of("report"),
        # A new row in the run table may change the colours of rows below it.
        colour=lambda wildcards: COLOURS.get(wildcards.run),
    shell:
        "parascale report --run {wildcards.run:q} > {log:q} 2>&1"


rule comparison_report:
    input:
        results_of(PROJECT.runs),
        rules.parity.input,
        SUMMARIES,
        proofs_shown(),
        expand(rules.job_report.output.page, run=PROJECT.runs),
        rules.loaders.input,
        expand(rules.measure_communication.output, run=MEASURED),
    output:
        **{
            name: report(PATHS.report / f"figures/{name}.svg", caption=f"captions/{name}.rst", category="Figures")
            for name in FIGURES
        },
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
        advice=report(
            PATHS.report / "advice.csv",
            caption="captions/advice.rst",
            category="Comparison",
        ),
        conversions=report(
            PATHS.report / "checkpoints.csv",
            caption="captions/checkpoints.rst",
            category="Comparison",
        ),
        plan=report(
            PATHS.report / "plan-against-actual.csv",
            caption="captions/plan.rst",
            category="Comparison",
        ),
    log:
        LOGS / "report.log",
    localrule: True
    resources:
        nodes=0,
    params:
        # Functions, because Snakemake would take braces in a text for wildcards.
        title=lambda wildcards: PROJECT.config.title,
        runs=list(PROJECT.runs),
        datasets=CONVERTED,
        measured=MEASURED,
        table=lambda wildcards: TABLE,
        code=code_of("report", "comparison"),
    shell:
        "parascale report > {log:q} 2>&1"


# Also requests the report's inputs, because after a failure there may be a page of unfinished runs.
rule report:
    input:
        REPORT,
        rules.comparison_report.input,
