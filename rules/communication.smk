# Needs: nothing but the machine. Makes: the speed of collective operations for each shape (nodes × processes) in the run
# table, and along the dimensions of each mesh that has several, below results/communication/. It is also the preflight: it
# fails with the name of the rank or link that does not work.


# One run of each shape and mesh stands for it, and gives the job its resources.
SHAPES = {
    (run.layout.nodes, run.layout.processes_per_node, as_json(mesh_of(run))): name
    for name, run in reversed(PROJECT.runs.items())
    if run.layout.world_size > 1
}
# What the report shows: it waits for no measurement, but has those that were made.
MEASURED = [name for name in SHAPES.values() if (PATHS.results / f"communication/{name}.csv").exists()]


rule measure_communication:
    output:
        report(
            PATHS.results / "communication/{run}.csv",
            caption="captions/communication.rst",
            category="Communication",
        ),
    log:
        LOGS / "communication/{run}.log",
    benchmark:
        PATHS.results / "benchmarks/communication/{run}.tsv"
    wildcard_constraints:
        run=pattern(SHAPES.values()),
    # A timed job has its node to itself.
    threads: PROJECT.site.cores_per_node
    resources:
        **resources_of(),
    params:
        site=SITE,
        device=PROJECT.site.device,
        launch=launch_of,
        mesh=lambda wildcards: as_json(mesh_of(RUNS[wildcards.run])),
        ranks=str(PATHS.logs("{run}-communication")),
        code=provenance.code_digest(["scripts/measure_communication.py"]),
    shell:
        "exec python scripts/launch.py {params.launch} --site {params.site:q} --logs {params.ranks:q}"
        " -- scripts/measure_communication.py --device {params.device} --mesh {params.mesh:q} --output {output:q}"
        " > {log:q} 2>&1"


rule communication:
    input:
        stage("communication", [PATHS.results / "communication" / f"{name}.csv" for name in SHAPES.values()]),
