"""`parascale.prove` of scripts under autocast in bf16 and in fp16, whose loss is scaled: faults are found, and right ways are not accused."""

import re
from collections import defaultdict

import pytest

from parascale import proof

from .proof_scripts import BUCKETS, WAYS, Case
from .test_prove import HEAD, LOSS, SAMPLES, Scripts, found

UP, CLIP, SGD = r"blocks\.1\.up", {"clip": 0.1}, {"optimizer": "sgd"}
# fault, options of its script, pass, module: of updates, starts, losses, activations and gradients
OF_ALL = [
    ("not decayed", {}, "weights", "embedding"),
    ("vectors decayed too", {}, "weights", r"blocks\.0\.norm1"),
    ("Adam for AdamW", {}, "weights", "embedding"),
    ("another second decay rate", {}, "weights", "embedding"),
    ("learning rate a twentieth more", {}, "weights", "embedding"),
    ("a start a percent larger", {}, "start", UP),
    ("a term added to the loss", {}, "forward", LOSS),
]
FAULTS = {
    "ddp": [
        *OF_ALL,
        ("an element altered on a rank", {}, "backward", "norm"),
        ("decayed by a tenth", {}, "weights", "embedding"),
        ("another epsilon", {}, "weights", "embedding"),
        ("less momentum", SGD, "weights", "embedding"),
        ("learning rate a hundredth less", SGD, "weights", "embedding"),
        ("a block without optimizer", {}, "weights", r"blocks\.1\."),
        ("mean of means", {}, "forward", LOSS),
        ("mean of means", {"micro": 2}, "forward", LOSS),
        ("same samples on all ranks", {}, "samples", SAMPLES),
        ("labels shifted on a rank", {}, "forward", LOSS),
        ("causal mask lost", {}, "forward", r"blocks\.1\.attention"),
        ("attention scaled otherwise", {}, "forward", r"blocks\.1\.attention"),
        ("never synchronised", {}, "backward", HEAD),
        ("a weight ignored by DDP", {}, "backward", UP),
        ("accumulated gradients lost", {"micro": 2}, "backward", HEAD),
        ("another clip", CLIP, "backward", HEAD),
        ("a gradient zeroed on a rank", {}, "backward", UP),
        ("stale weights", {}, "forward", HEAD),
    ],
    "fsdp": [
        *OF_ALL,
        ("a start rounded to bf16", {}, "start", UP),
        ("the embedding is not decayed", {}, "weights", "embedding"),
        ("another first decay rate", {}, "weights", "embedding"),
        ("optimizer before sharding", {}, "weights", "embedding"),
        ("shards loaded in another order", {}, "start", UP),
        ("gradients not averaged", {}, "backward", HEAD),
        ("a weight left out of FSDP", {}, "backward", UP),
        ("clipped by the local norm", CLIP, "backward", HEAD),
        ("another epsilon of a norm", {}, "forward", r"blocks\.1\.norm2"),
        ("a gradient scaled by 0.9", {}, "backward", UP),
        ("gradients reduced in bf16", {}, "backward", HEAD),
    ],
    "tp": [
        *OF_ALL,
        ("an element altered on a rank", {}, "backward", "norm"),
        ("a bias starts from 0", {}, "start", UP),
        ("NAdam for AdamW", {}, "weights", "embedding"),
        ("Nesterov's momentum", SGD, "weights", "embedding"),
        ("row-parallel output not summed", {}, "forward", r"blocks\.1\.down"),
        ("bias added by each rank", {}, "forward", r"blocks\.1\.down"),
        ("tensor ranks read other samples", {}, "samples", SAMPLES),
        ("norms' gradients not summed", {"seed": 1}, "backward", r"blocks\.2\.norm2"),
        ("a residual scaled", {}, "forward", r"blocks\.1\.down"),
        ("positions shifted", {}, "forward", "positions"),
        ("a block's gradients zeroed", {}, "backward", r"blocks\.1\."),
    ],
}
ROWS = [(layout, *row) for layout, rows in FAULTS.items() for row in rows]


def harmless(half):
    """Right ways: kinds of optimizers and buckets, accumulation, parts of the batch, orders of the reduction, clips, models."""
    cases = []
    for seed in range(3):
        common = {"half": half, "seed": seed}
        cases += [Case("ddp", way=way, **common) for way in (*WAYS, *BUCKETS)]
        cases += [Case("ddp", micro=micro, **common) for micro in (1, 2, 4)]
        cases += [Case("ddp", optimizer="sgd", **common), Case("ddp", clip=0.1, way="torch's clip", **common)]
        cases += [Case("by hand", **common), Case("fsdp", clip=0.1, **common), Case("fsdp", optimizer="sgd", **common)]
        cases += [Case("fsdp", way=way, **common) for way in ("", *WAYS)]
        cases += [Case("tp", **common), Case("tp", optimizer="sgd", **common), Case("tp", clip=0.1, **common)]
    return cases


def rows_of(single, parallel):
    """{(step, pass, tensor): difference}: of all passes, also after the first that differs."""
    rows, step = {}, None
    for number, ((one,), parts) in enumerate(zip(proof.recording(single), proof.recording(parallel), strict=True)):
        step = proof.StepComparison(one, parts, step)
        for name, judged in step.passes():
            for row in filter(None, judged):
                rows[number, name, row["module"], row["tensor"]] = row["difference"]
    return rows


@pytest.fixture
def scripts(tmp_path):
    return Scripts(tmp_path)


def planted(half, rows=ROWS):
    """Faults of scripts in a precision: torch's scaler refuses, or leaves scaled, what the optimizer lacks."""
    lacking = ("optimizer before sharding", "a block without optimizer")
    return [row for row in rows if half == "bfloat16" or row[1] not in lacking]


# Found in every run; of all faults nineteen in twenty are.
SURE = ("not decayed", "a start a percent larger", "mean of means", "an element altered on a rank", "a residual scaled")


def test_some_faults_under_autocast_are_found_and_the_same_scripts_without_them_are_the_same(scripts):
    rows = [row for row in ROWS if row[1] in SURE]
    right = [Case(layout, half="bfloat16") for layout in FAULTS]
    cards = scripts.cards([*(Case(*row[:2], half="bfloat16", **row[2]) for row in rows), *right])
    assert [row[:2] for row, card in zip(rows, cards, strict=False) if not found(row, card)] == []
    assert [(card["verdict"], card["not_judged"]) for card in cards[len(rows) :]] == [("same", [])] * len(right)


@pytest.mark.slow
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_what_is_thrice_the_spread_of_right_ways_is_found_at_its_place(half, scripts):
    """Of the tensors where a fault is. `pytest -s` prints those below resolution."""
    right, rows = harmless(half), planted(half)
    cases = [*right, *(Case(*row[:2], half=half, **row[2]) for row in rows)]
    cards = scripts.cards(cases)
    assert [(case, card["first"]) for case, card in zip(right, cards, strict=False) if card["verdict"] != "same"] == []
    assert all(not card["not_judged"] for card in cards[: len(right)])
    spread, effects = defaultdict(float), []
    for number, case in enumerate(cases):
        differences = rows_of(scripts.single(case), scripts.folder / "ranks-2" / str(number))
        if number < len(right):
            spread |= {key[1:]: max(spread[key[1:]], off) for key, off in differences.items()}
            continue
        *_, stage, module = rows[number - len(right)]
        placed = {key: off for key, off in differences.items() if key[1] == stage and re.match(module, key[2])}
        effects.append(max((off / (spread[key[1:]] or 1e-30) for key, off in placed.items()), default=0.0))
    told = [found(row, card) for row, card in zip(rows, cards[len(right) :], strict=True)]
    counted = [fine for fine, effect in zip(told, effects, strict=True) if effect >= 3]
    for row, fine, effect in zip(rows, told, effects, strict=True):
        if effect < 3 or not fine:
            word = "found" if fine else "below resolution" if effect < 3 else "missed"
            print(f"{half}, {row[0]}, {row[1]}: {effect:.2g} times the spread, {word}")
    print(f"{half}: {sum(counted)} of {len(counted)} faults named where they are, {len(right)} right ways the same")
    assert len(right) >= 60 and len(rows) >= 40 and sum(counted) >= 0.95 * len(counted) >= 0.95 * 40
