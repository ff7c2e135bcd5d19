# Needs: only the machine. Makes: the speed of collective operations for each shape (nodes × processes) in the run table, and along
# each dimension of a mesh with several, below results/communication/. It also tests the machine: it fails and names the rank or link
# that does not work.


# One run for each shape and mesh; the job gets its resources.
SHAPES = list(shapes(PROJECT).values())
# The report shows existing measurements and does not request others.
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
