"""`parascale.prove`: faults that are easily made in plain scripts are found at their place, and correct layouts are not accused."""

import dataclasses
import json
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist
from click.testing import CliRunner

from parascale import cli, proof

from .harness import run_on_ranks
from .proof_scripts import Case, data_parallel, single
from .proof_sharded import pipelined, sequence_parallel, tensor_parallel

SCRIPTS = {
    **dict.fromkeys(("ddp", "by hand", "fsdp"), data_parallel),
    **dict.fromkeys(("tp", "tp by hand", "fsdp x tp"), tensor_parallel),
    **dict.fromkeys(("pp", "dp x pp"), pipelined),
    "cp": sequence_parallel,
}
DROPOUT, TIED, BATCHED = {"dropout": True}, {"tied": True}, {"batched": True}
HEAD, LOSS, SAMPLES = r"head", r"the loss|head", r"the samples"
# layout, fault, options of its script → pass, module
FAULTS = [
    ("by hand", "no all-reduce", {}, "backward", HEAD),
    ("by hand", "a block not reduced", {}, "backward", r"blocks\.1\."),
    ("by hand", "sum instead of mean", {}, "backward", HEAD),
    ("by hand", "averaged twice", {}, "backward", r"norm"),
    ("by hand", "reduced twice", {}, "backward", r"blocks\.1\."),
    ("by hand", "a rank's gradient lost", {}, "backward", HEAD),
    ("by hand", "clipped before the reduction", {}, "backward", HEAD),
    ("by hand", "ranks start differently", {}, "start", r"embedding"),
    ("by hand", "loss not scaled", {}, "backward", HEAD),
    ("ddp", "mean of means", {}, "forward", LOSS),
    ("ddp", "mean of means", {"micro": 2}, "forward", LOSS),
    ("ddp", "same samples on all ranks", {}, "samples", SAMPLES),
    ("ddp", "samples shifted", {}, "samples", SAMPLES),
    ("ddp", "sampler without epoch", {}, "samples", SAMPLES),
    ("ddp", "labels shifted on a rank", {}, "forward", LOSS),
    ("ddp", "loss mask ignored", {}, "forward", LOSS),
    ("ddp", "causal mask lost", {}, "forward", r"blocks\.1\.attention"),
    ("ddp", "masks by local row", {"model": DROPOUT, "seed": 1}, "forward", r"blocks\.0\.dropout"),
    ("ddp", "a rank evaluates", {"model": DROPOUT}, "forward", r"blocks\.0(\.dropout)?"),
    ("ddp", "batch norm not synced", {"model": BATCHED}, "forward", r"norm"),
    ("ddp", "never synchronised", {}, "backward", HEAD),
    ("ddp", "a weight ignored by DDP", {}, "backward", r"blocks\.1\.up"),
    ("ddp", "gradients sent in fp16", {}, "backward", HEAD),
    ("ddp", "accumulation not divided", {"micro": 2}, "forward", LOSS),
    ("ddp", "accumulated gradients lost", {"micro": 2}, "backward", HEAD),
    ("ddp", "stale weights", {}, "forward", HEAD),
    ("ddp", "norms decayed", {}, "weights", r"blocks\.0\.norm1"),
    ("ddp", "a block without optimizer", {}, "weights", r"blocks\.1\."),
    ("ddp", "learning rate times ranks", {}, "weights", r"embedding"),
    ("fsdp", "mean of means", {}, "forward", LOSS),
    ("fsdp", "never synchronised", {}, "backward", HEAD),
    ("fsdp", "gradients not averaged", {}, "backward", HEAD),
    ("fsdp", "a weight left out of FSDP", {}, "backward", r"blocks\.1\.up"),
    ("fsdp", "gradients reduced in bf16", {}, "backward", HEAD),
    ("fsdp", "shards loaded in another order", {}, "start", r"blocks\.1\.up"),
    ("fsdp", "clipped by the local norm", {"clip": 0.1}, "backward", HEAD),
    ("fsdp", "optimizer before sharding", {}, "weights", r"embedding"),
    ("fsdp", "same samples on all ranks", {}, "samples", SAMPLES),
    ("tp", "row-parallel output not summed", {}, "forward", r"blocks\.1\.down"),
    ("tp", "bias added by each rank", {}, "forward", r"blocks\.1\.down"),
    ("tp", "norms' gradients not summed", {"seed": 1}, "backward", r"blocks\.2\.norm2"),
    ("tp", "tensor ranks read other samples", {}, "samples", SAMPLES),
    ("tp", "masks differ between tensor ranks", {"model": DROPOUT}, "forward", r"blocks\.0\.dropout"),
    ("tp", "clipped by the local norm", {"clip": 0.1}, "backward", HEAD),
    ("tp by hand", "another rank's shard", {}, "start", r"blocks\.1\.up"),
    ("tp by hand", "bias added before the sum", {}, "forward", r"blocks\.1\.down"),
    ("tp by hand", "other ranks' words not masked", {}, "forward", r"embedding"),
    ("tp by hand", "input's gradient not summed", {}, "backward", r"blocks\.1\.(norm2|up)"),
    ("tp by hand", "norms' gradients summed though whole", {}, "backward", r"blocks\.2\.norm2"),
    ("pp", "divided by micro-batches too", {"micro": 4}, "backward", HEAD),
    ("pp", "loss not normalised", {"micro": 4}, "backward", HEAD),
    ("pp", "mean of means", {"micro": 4}, "forward", LOSS),
    ("pp", "labels of other micro-batches", {"micro": 4}, "forward", LOSS),
    ("pp", "tied weights not summed", {"micro": 2, "model": TIED}, "backward", r"head|embedding"),
    ("pp", "clipped by the local norm", {"micro": 2, "clip": 0.1}, "backward", HEAD),
    ("pp", "a block left out", {"micro": 2}, "start", r"blocks\.1\."),
    ("pp", "masks by place in the micro-batch", {"micro": 2, "model": DROPOUT}, "forward", r"blocks\.0\.dropout"),
    ("pp", "a stage starts from another seed", {"micro": 2}, "start", r"blocks\.[12]\."),
    ("pp", "a stage's optimizer never steps", {"micro": 2}, "weights", r"embedding"),
    ("pp", "a stage's gradients never cleared", {"micro": 2}, "backward", r"blocks\.0\."),
    ("cp", "positions restarted", {}, "forward", r"positions"),
    ("cp", "causal mask of the part alone", {}, "forward", r"blocks\.0\.attention"),
    ("cp", "parts attend to themselves alone", {}, "forward", r"blocks\.0\.attention"),
    ("cp", "labels lost between parts", {}, "forward", LOSS),
    ("cp", "mean of means", {}, "forward", LOSS),
    ("cp", "gradients not summed", {}, "backward", HEAD),
    ("cp", "scaled by the degree", {}, "backward", HEAD),
]


def correct(seeds=range(4)):
    """Correct scripts: on two processes, and on four."""
    models = [{}, DROPOUT, TIED, {"dim": 32, "blocks": 2}]
    two, four = [], []
    for seed in seeds:
        common = {"seed": seed, "steps": 3, "optimizer": ("adamw", "sgd")[seed // 2 % 2]}
        for number, model in enumerate(models):
            clip = 0.1 * ((seed + number) % 2) if model != TIED else 0.0  # both copies of a tied weight would count
            for layout, micro in (
                ("ddp", 1 + seed % 2),
                ("by hand", 1),
                ("fsdp", 1 + number % 2),
                ("pp", 2 + 2 * (seed % 2)),
            ):
                two.append(Case(layout, micro=micro, model=model, clip=clip, **common))
            if model != TIED and not (seed % 2 and model == DROPOUT):
                two += [
                    Case(layout, model=model, clip=clip if layout == "tp" else 0.0, **common)
                    for layout in ("tp", "tp by hand")
                ]
            if model != DROPOUT:
                two.append(Case("cp", model=model, clip=clip, **common))
        two += [Case(layout, model=BATCHED, **common) for layout in ("ddp", "by hand")]
        two += [
            Case(layout, dtype=dtype, micro=2, **common)
            for layout in ("fsdp", "pp")
            for dtype in ("float64", "bfloat16")
        ]
        four += [
            Case(layout, micro=2 if layout == "dp x pp" else 1, **common)
            for layout in ("fsdp x tp", "dp x pp", "ddp", "fsdp")
        ]
    return two, four


def on_ranks(cases):
    """Run the scripts of cases, (settings of a Case, folder), one after the other."""
    dist.init_process_group("gloo")
    for options, folder in cases:
        case = Case(**options)
        SCRIPTS[case.layout](case, folder, dist.get_rank(), dist.get_world_size())
    dist.barrier()


class Scripts:
    """Runs cases, and the single process's script of each once."""

    def __init__(self, folder):
        self.folder, self.singles = folder, {}

    def single(self, case):
        whole = dataclasses.replace(case, layout="single", fault="", micro=1)
        if repr(whole) not in self.singles:
            self.singles[repr(whole)] = self.folder / f"single-{len(self.singles)}"
            single(whole, self.singles[repr(whole)])
        return self.singles[repr(whole)]

    def cards(self, cases, ranks=2):
        """The card of each case, all of them run by the same processes."""
        folder = self.folder / f"ranks-{ranks}"
        places = [(dataclasses.asdict(case), str(folder / str(number))) for number, case in enumerate(cases)]
        run_on_ranks(on_ranks, ranks, folder, places)
        return [proof.compare(self.single(case), place) for case, (_, place) in zip(cases, places, strict=True)]


@pytest.fixture
def scripts(tmp_path):
    return Scripts(tmp_path)


def found(row, card):
    """Whether a card names the fault's pass and module."""
    *_, stage, module = row
    first = card["first"] or {"pass": "none", "module": ""}
    return first["pass"] == stage and re.match(module, first["module"]) is not None


def case_of(row):
    layout, fault, options, *_ = row
    return Case(layout, fault, **options)


QUICK = (
    "a block not reduced",
    "sampler without epoch",
    "shards loaded in another order",
    "row-parallel output not summed",
    "divided by micro-batches too",
    "positions restarted",
)


def test_some_faults_are_found_at_their_place_and_the_same_layouts_without_them_are_not_accused(scripts):
    rows = [row for row in FAULTS if row[1] in QUICK]
    right = [dataclasses.replace(case_of(row), fault="") for row in rows]
    cards = scripts.cards([*map(case_of, rows), *right])
    assert [row[:2] for row, card in zip(rows, cards, strict=False) if not found(row, card)] == []
    assert [card["first"] for card in cards[len(rows) :]] == [None] * len(right)


def tell(word, layouts, well):
    """Print how many cases of each layout went well (`pytest -s`)."""
    every, good = Counter(layouts), Counter(layout for layout, fine in zip(layouts, well, strict=True) if fine)
    print(*(f"{layout}: {good[layout]} of {count} {word}" for layout, count in every.items()), sep="\n")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 4])
def test_every_planted_fault_is_found_at_its_place(scripts, every):
    """Also where a fourth of the columns is recorded alone."""
    cards = scripts.cards([dataclasses.replace(case_of(row), every=every) for row in FAULTS])
    well = [found(row, card) for row, card in zip(FAULTS, cards, strict=True)]
    tell("faults named where they are", [row[0] for row in FAULTS], well)
    missed = [(*row[:2], card["first"]) for row, card, fine in zip(FAULTS, cards, well, strict=True) if not fine]
    assert len(FAULTS) >= 40 and missed == []


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "every"), [(2, 1), (4, 1), (2, 4)])
def test_no_correct_layout_is_accused(scripts, ranks, every):
    cases = [dataclasses.replace(case, every=every) for case in correct(range(4 if every == 1 else 2))[ranks == 4]]
    cards = scripts.cards(cases, ranks)
    tell("right ones called the same", [case.layout for case in cases], [card["first"] is None for card in cards])
    assert [(case, card["first"]) for case, card in zip(cases, cards, strict=True) if card["first"]] == []


def test_right_scripts_are_tried_in_a_hundred_ways():
    two, four = correct()
    assert len(two) + len(four) >= 100


LOOKS = {
    "no all-reduce": "their mean is right: never reduced",
    "sum instead of mean": "2 times .* multiplied",
    "averaged twice": "0.5 times .* divided",
    "same samples on all ranks": "samples 1, 3, 5, 7 are missing",
    "masks by local row": "different mask",
    "another rank's shard": "permuted",
    "stale weights": "cosine",
    "gradients sent in fp16": "fewer digits",
}


@pytest.mark.slow
def test_a_fault_is_described(scripts):
    rows = list({row[1]: row for row in FAULTS if row[1] in LOOKS}.values())
    cards = scripts.cards([case_of(row) for row in rows])
    for row, card in zip(rows, cards, strict=True):
        assert re.search(LOOKS[row[1]], card["first"]["looks_like"]), (row, card["first"])


def run_document(code, folder):
    """Run the script of the document as a process of a launcher, or alone."""
    sys.argv = ["train.py", folder]
    exec(compile(code, "train.py", "exec"), {})


def test_the_documented_script_parts_where_the_document_says(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/proof.md").read_text(encoding="utf-8")
    code, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "console"))
    monkeypatch.setattr(sys, "argv", [])
    run_document(code, str(tmp_path / "single"))
    run_on_ranks(run_document, 2, tmp_path / "ranks", code, str(tmp_path / "ddp"))
    command = shown.splitlines()[2].split()[2:]
    assert command == ["prove", "proof/single", "proof/ddp"]
    result = CliRunner().invoke(cli.parascale, ["prove", str(tmp_path / "single"), str(tmp_path / "ddp")])
    numbers = re.compile(r"\d[\d.]*(?:e[-+]\d+)?(?:\+\w+)?")
    assert result.exit_code == 1
    assert numbers.sub("#", result.output).splitlines() == numbers.sub("#", shown).splitlines()[3:]
    assert json.loads((tmp_path / "ddp/proof.json").read_text())["verdict"] == "different"
    right = code.replace("ignore_index=0)", 'ignore_index=0, reduction="sum") * world / (tokens[:, 1:] != 0).sum()')
    run_document(right, str(tmp_path / "single"))
    run_on_ranks(run_document, 2, tmp_path / "ranks", right, str(tmp_path / "ddp"))
    assert CliRunner().invoke(cli.parascale, ["prove", str(tmp_path / "single"), str(tmp_path / "ddp")]).exit_code == 0


def test_the_two_lines_of_the_readme_find_what_it_shows(tmp_path, monkeypatch):
    """In the script of the document, which is told of no loss."""
    root = Path(__file__).parents[2]
    page = (root / "docs/proof.md").read_text(encoding="utf-8")
    lines = r"(?m)^    (from parascale import prove)\n    (with .*\):)  #.*\n    \$ (.*)\n((?:    .*\n)+)"
    shown = re.search(lines, (root / "README.md").read_text())
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("        record.loss(loss)\n", "")
    code, added = re.subn(r"with prove\.recording.*", shown[2].replace('"proof/ddp"', "sys.argv[1]"), code)
    assert added == 1 and shown[1] in code
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    run_document(code, "proof/single")
    run_on_ranks(run_document, 2, tmp_path / "ranks", code, str(tmp_path / "proof/ddp"))
    printed = CliRunner().invoke(cli.parascale, shown[3].split()[1:]).output
    assert printed.splitlines()[-2:] == textwrap.dedent(shown[4]).splitlines()
