"""The single changes that `mutants.py` draws: which there are, which a seed takes, and which test files are a module's own."""

import ast
import hashlib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("scripts/parascale")
DECIDING = {
    "": "families/** parallel/** plan/** store/** checkpoint/** data/formats/** evaluation/** launch/** lease files slurm submissions provenance "
    "proof prove recording script diagnosis replay parts pretrained",
    "train": "loss optim step state parity clock averaging stage acquire_run counting exact graph flight_state record",
    "report": "verdict derived timing comparing numbers readings summary scaling job records findings",
    "settings": "identity layout run workload data site strict optim study project runtable config options",
    "data": "sampler crops ahead loader verify convert convert_tokens text tokenize tokenizer_folder pairs images image_tables jpeg advice",
}
COMPARISONS = {ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",), ast.NotEq: ("==",),
               ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",), ast.NotIn: ("in",)}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*"}
SAYING = {"print", "log", "echo", "warn", "warning", "info", "debug", "say"}  # a lost call of these loses words only


def possible(path):
    """Yields (line, first line of the statement, kind, start, end, new text) of each possible mutant of a module; offsets count bytes."""
    text = (ROOT / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node):
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def source(node):
        return text[slice(*span(node))].decode()

    def changes(node):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for new in COMPARISONS[type(node.ops[0])]:
                yield "comparison", node, f"({source(node.left)}) {new} ({source(node.comparators[0])})"
        elif (
            isinstance(node, ast.BinOp)
            and type(node.op) in ARITHMETIC
            and not (worded(node.left) or worded(node.right))
        ):
            yield "arithmetic", node, f"(({source(node.left)}) {ARITHMETIC[type(node.op)]} ({source(node.right)}))"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield "arithmetic", node, f"({source(node.operand)})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            yield "constant", node, repr(changed_constant(node.value))
        elif isinstance(node, ast.BoolOp):
            joint = " or " if isinstance(node.op, ast.And) else " and "
            yield "condition", node, "(" + joint.join(f"({source(each)})" for each in node.values) + ")"
        elif isinstance(node, ast.Return) and node.value is not None and source(node.value) != "None":
            yield "lost return", node, "return None"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) not in SAYING:
            yield "lost call", node, "pass"
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield "condition", node.test, f"(not ({source(node.test)}))"

    def visit(node, statement):
        statement = node if isinstance(node, ast.stmt) else statement
        if skipped(node):
            return
        for kind, changed, new in changes(node):
            yield changed.lineno, statement.lineno, kind, *span(changed), new
        for field, child in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for each in child if isinstance(child, list) else [child]:
                    if isinstance(each, ast.AST):
                        yield from visit(each, statement)

    yield from visit(ast.parse(text), None)


def changed_constant(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value or 1.0  # one more is nothing to 1e9


def worded(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def skipped(node):
    """What decides nothing: words of errors, of logs and of people, and what only type checkers read."""
    return (
        isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr))
        or (isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"))
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) in SAYING)
    )


def deciding():
    folders = [ROOT / PACKAGE / folder / name for folder, names in DECIDING.items() for name in names.split()]
    files = (folder.parent.rglob("*.py") if folder.name == "**" else [folder.with_suffix(".py")] for folder in folders)
    return sorted(path.relative_to(ROOT) for each in files for path in each)


def chosen(count, seed):
    """The mutants of a seed: those with the lowest hashes, so that a change elsewhere in the package leaves the rest of them as they are."""
    found = []
    for path in deciding():
        seen = Counter()
        text = (ROOT / path).read_bytes()
        lines = text.decode().splitlines()
        for line, statement, kind, start, end, new in possible(path):
            name = f"{path.relative_to(PACKAGE)} {lines[line - 1].strip()} | {text[start:end].decode()} → {new}"
            seen[name] += 1  # the same words twice in a module
            key = hashlib.sha256(f"{seed} {name} {seen[name]}".encode()).hexdigest()[:16]
            found.append({"key": key, "path": str(path), "line": line, "statement": statement, "kind": kind, "start": start, "end": end,
                          "old": text[start:end].decode(), "new": new})  # fmt: skip
    return sorted(found, key=lambda mutant: mutant["key"])[:count]


def imported(path):
    """The modules that a file imports, and the packages from which it takes names."""
    modules, packages = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            folder = ROOT / ("" if node.module.startswith("tests") else "scripts") / node.module.replace(".", "/")
            parts = {
                alias.name
                for alias in node.names
                if (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
            }
            modules |= {f"{node.module}.{part}" for part in parts} | {node.module}
            if folder.is_dir() and len(parts) < len(node.names):
                packages.add(node.module)
    return modules, packages


def own_files():
    """{module: its own test files}, as paths relative to the root.

    Modules of families are found by the name of a kind, and those without a test file of their own count as their package's: their
    files are those of any module in the package.
    """
    reach = {f"tests.unit.{path.stem}": imported(path) for path in (ROOT / "tests/unit").glob("*.py")}
    paths = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / PACKAGE).rglob("*.py")}
    names = {path: ".".join(path.parts[1:]).removesuffix(".__init__") for path in paths}
    own = {name: set() for name in names.values()}
    for test in (name for name in reach if name.startswith("tests.unit.test_")):
        near = [test, *(helper for helper in reach[test][0] if helper in reach)]
        modules, packages = (set().union(*(reach[each][which] for each in near)) for which in (0, 1))
        for name in own:
            if name in modules | packages or name.rpartition(".")[0] in packages:
                own[name].add(test.replace(".", "/") + ".py")

    def of(name):
        package = ".".join(name.split(".")[:2])
        if own[name] and package != "parascale.families":
            return own[name]
        return set().union(*(files for other, files in own.items() if other.startswith(package)))

    return {f"{path}.py": sorted(of(name)) for path, name in names.items()}
