"""A small project on nodes of four GPUs."""

SITE = """
device: cuda
cores_per_node: 128
gpus_per_node: 4
gpu_memory_gb: 42.9
peak_tflops: {fp32: 19.5, bf16: 312}
memory_gigabytes_per_second: 1555
partitions: [{name: dc-gpu, max_hours: 24, max_nodes: 24}, {name: dc-gpu-devel, max_hours: 2, max_nodes: 4}]
"""
WORKLOAD = """
data: {{source: {{kind: builtin, name: documentation}}, expected: {{vocabulary: 5000{tokens}}}}}
model: {{dim: {dim}, heads: 4, layers: 4}}
training: {{steps: {steps}}}
"""
RUNS = "run\tworkload\tnodes\tgpus_per_node\tdp\nsingle\tw\t1\t1\t1\nwide\tw\t8\t4\t32\n"


def write(folder, dim=128, steps=1000, config="", tokens=""):
    """Write the project with these settings into a folder."""
    for place, text in (
        ("config/sites/here.yaml", SITE),
        ("config/workloads/w.yaml", WORKLOAD.format(dim=dim, steps=steps, tokens=tokens)),
        ("config/runs.tsv", RUNS),
        ("config/config.yaml", f"site: here\n{config}"),
        ("Snakefile", ""),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
