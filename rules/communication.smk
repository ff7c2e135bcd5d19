# Needs: nothing but the machine. Makes: the speed of collective operations for each shape (nodes × processes) in the run
# table, and along the dimensions of each mesh that has several, below results/communication/. It is also the preflight: it
# fails and names the rank or link that does not work.


# One run of each shape and mesh stands for it, and gives the job its resources.
SHAPES = list(shapes(PROJECT).values())
# The report shows the measurements that exist, and does not wait for others.
MEASURED = [name for name in SHAPES if (PATHS.results / f"communication/{name}.csv").exists()]


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
        run=pattern(SHAPES),
    # A timed job gets the whole node.
    threads: PROJECT.site.cores_per_node
    resources:
        **resources_of(),
    params:
        site=[PROJECT.site.name, PROJECT.site.device],
        processes=processes_of,
        mesh=lambda wildcards: as_json(mesh_of(RUNS[wildcards.run])),
        code=code_of("communication"),
    shell:
        "parascale launch --run {wildcards.run:q} --kind communication > {log:q} 2>&1"


rule communication:
    input:
        stage("communication", [PATHS.results / "communication" / f"{name}.csv" for name in SHAPES]),
