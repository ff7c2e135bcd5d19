"""What `scontrol --oneliner` prints on clusters of other shapes than JURECA's, read from `recorded/clusters.txt`.

SHARED, AMD and SMALL are composed: (nodes, partitions, configuration), whose lines have the fields of Slurm 22.05 to 24.05 in their order,
with long ones left out, and made-up names. RECORDED has what real clusters printed: where it is published → (nodes, partitions), a line
each, empty where only nodes are; some fields that a survey does not read are left out. PARTITIONS: partitions alone, of two more clusters.
"""

from pathlib import Path

from tests import golden

BLOCKS = {
    name: "".join(f"{line}\n" for line in text.split("\n") if not line.startswith("# "))
    for name, text in golden.read(Path(__file__).with_name("recorded") / "clusters.txt").items()
}
SHARED, AMD, SMALL = (
    tuple(BLOCKS[f"{name}, {part}"] for part in ("nodes", "partitions", "configuration"))
    for name in ("shared", "amd", "small")
)
PLACES = [name.removesuffix("; nodes") for name in BLOCKS if name.endswith("; nodes")]
RECORDED = {
    place.removeprefix("recorded: "): (BLOCKS[f"{place}; nodes"], BLOCKS.get(f"{place}; partitions", ""))
    for place in PLACES
}
PARTITIONS = {name: BLOCKS[f"partitions of {name}"] for name in ("seawulf", "aris")}
