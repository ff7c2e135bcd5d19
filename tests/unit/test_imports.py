"""Imports run one way, and what a login node needs loads without torch."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

from parascale.settings.layout import DEGREES

ROOT = Path(__file__).parents[2] / "scripts/parascale"
# Room → rooms that it may import from. Modules beside the rooms (errors, files, ...) import each other alone.
ALLOWED = {
    "settings": {"families"},  # the registry alone, and when a model is read: families build on settings
    "families": {"settings"},
    "store": {"settings", "families", "checkpoint"},
    "plan": {"settings", "families", "store"},
    "report": {"settings"},
    "launch": {"settings"},
    "data": {"settings"},
    "evaluation": {"settings", "data", "families"},
    "checkpoint": {"settings", "data", "families", "evaluation"},
    "parallel": {"settings", "families"},
    "train": {"settings", "data", "families", "evaluation", "checkpoint", "parallel", "store"},
}
ALLOWED["check"] = {"settings", "data", "families", "evaluation", "checkpoint", "parallel", "train", "plan", "launch"}
ALLOWED["commands"] = set(ALLOWED)  # the verbs, which nothing but the command loads
# Modules beside the rooms that may import from one.
BESIDE = {"cli.py": {"settings"}, "script.py": {"settings"}, "__main__.py": {"check"}}
WITHOUT_TORCH = ("settings", "families", "store", "plan", "report", "launch", "data", "commands")
# What is imported only where it is used: batches as tensors, and of families what is no settings and no sizes.
NEEDS_TORCH = re.compile(
    r"parascale\.(data\.loader|families\.(build|dropout|foreign|head|shards|\w+\.(\w*modules|export)))"
)
SLURM = ("sbatch", "srun", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo", "sshare")


FILES = sorted(ROOT.rglob("*.py"))


@functools.cache
def tree(file):
    """The syntax tree of a module."""
    return ast.parse(file.read_text(encoding="utf-8"))


def room(parts):
    """The room that a module below `parascale` lies in, or None for one beside the rooms."""
    return parts[0] if parts and (ROOT / parts[0]).is_dir() else None


def imported(file, package="parascale"):
    """(line, parts below `package`) of each import of a package, at whatever depth of the code."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: import by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name.split(".")[1:]) for name in names if name.split(".")[0] == package)


def modules_of(name):
    """The full names of the modules of a room, without those that need torch."""
    files = (file.relative_to(ROOT.parent).with_suffix("") for file in FILES if file.is_relative_to(ROOT / name))
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    return sorted(name for name in names if not NEEDS_TORCH.fullmatch(name))


def test_every_room_has_its_place_in_the_order():
    rooms = {file.relative_to(ROOT).parts[0] for file in FILES if file.parent != ROOT}
    assert rooms <= set(ALLOWED), "say in ALLOWED what a new room may import"


def test_a_module_imports_only_what_lies_below_it():
    wrong = []
    for file in FILES:
        own = room(file.relative_to(ROOT).parts)
        allowed = {own, *(ALLOWED[own] if own else BESIDE.get(file.name, ()))}
        found = ((line, room(parts)) for line, parts in imported(file))
        wrong += [f"{file}:{line} imports from {other}" for line, other in found if other and other not in allowed]
    assert wrong == []


def test_no_module_imports_one_that_imports_it():
    """At whatever depth of the code: an import that is put off hides a circle, and does not cut it."""
    files = {file.relative_to(ROOT).with_suffix("").parts: file for file in FILES}
    depends = {}
    for parts, file in files.items():
        below = (tuple(names) for _, names in imported(file))
        depends[parts] = {names if names in files else names[:-1] for names in below}
    graphlib.TopologicalSorter(depends).prepare()  # raises CycleError, which names the modules


def test_the_package_does_not_know_snakemake():
    assert [f"{file}:{line}" for file in FILES for line, _ in imported(file, "snakemake")] == []


def test_one_module_alone_knows_slurm():
    """It runs the commands (a list that begins with one) and reads the variables."""
    own = ROOT / "slurm.py"
    assert list(_words_of_slurm(own))
    scripts = [file for file in ROOT.parent.rglob("*.py") if file != own]
    assert [f"{file}:{line}" for file in scripts for line in _words_of_slurm(file)] == []


def _words_of_slurm(file):
    """Lines with the beginning of a Slurm command, or a variable of Slurm's."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        first = node.elts[0] if isinstance(node, ast.List) and node.elts else None
        if isinstance(first, ast.Constant) and first.value in SLURM:
            yield node.lineno
        if isinstance(node, ast.Constant) and re.match(r"SLURMD?_\w+$", str(node.value)):
            yield node.lineno


def test_degrees_are_listed_in_one_place():
    """Everything else reads the table of axes, but what says which plan, modules and families a degree needs."""
    listed = {str(file.relative_to(ROOT)) for file in FILES if any(_lists_degrees(file))}
    offered = {str(file.relative_to(ROOT)) for file in ROOT.glob("families/*/__init__.py")}
    assert listed - offered == {"families/kind.py", "launch/environment.py", "check/parts.py"}


def _lists_degrees(file):
    """Whether each literal lists several degrees, and each expression combines most of them."""
    for node in ast.walk(tree(file)):
        elements = getattr(node, "keys" if isinstance(node, ast.Dict) else "elts", ())
        yield len({each.value for each in elements if isinstance(each, ast.Constant)} & set(DEGREES)) > 1
        if isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp):
            yield len({each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)} & set(DEGREES)) > 2


# Prints the libraries that a package loads by itself; then torch cannot be found, and every module is loaded.
LOAD = """
import importlib, sys

import parascale.report

print([name for name in ("torch", "snakemake", "matplotlib", "numpy", "pandas") if name in sys.modules])
sys.modules["torch"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_a_login_node_needs_no_torch_and_the_report_loads_slow_libraries_only_to_draw_and_write():
    """A workflow reads the figures' names each time it starts, and once more in each job."""
    modules = [name for each in WITHOUT_TORCH for name in modules_of(each)]
    assert len(modules) > 100
    done = subprocess.run([sys.executable, "-c", LOAD, *modules], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
