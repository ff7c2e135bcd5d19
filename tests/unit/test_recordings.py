"""What `parascale.prove` records on one process, and what two recordings say of each other."""

import json
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from parascale import cli, proof, prove
from parascale.diagnosis import looks_like, match, rms
from parascale.errors import DataError


def test_what_records_may_be_copied():
    """It runs where nothing but torch and safetensors is."""
    imports = re.findall(r"^ *(?:from|import) (\w+)", Path(prove.__file__).read_text(), re.MULTILINE)
    assert set(imports) - sys.stdlib_module_names == {"torch", "safetensors"}


def step_of(model, folder, loss=None, steps=1):
    """Record steps of a small model on one process, as of rank 0 of 1."""
    for _ in range(steps):
        with prove.recording(model, folder) as record:
            model(torch.ones(2, 3)).sum().backward()
            if loss is not None:
                record.loss(torch.tensor(loss))


def test_recordings_that_are_no_pair_are_refused_with_the_remedy(tmp_path):
    folder = tmp_path / "whole"
    step_of(torch.nn.Linear(3, 2), folder)
    with pytest.raises(DataError, match="no recording"):
        proof.compare(folder, tmp_path / "nothing")
    (other,) = folder.glob("*.safetensors")
    shutil.copy(other, other.with_name("step-00000-rank-00001.safetensors"))
    with pytest.raises(DataError, match="record again"):
        proof.compare(folder, folder)
    other.write_bytes(b"cut short")
    with pytest.raises(DataError, match="damaged"):
        proof.compare(folder, folder)


def test_recordings_of_other_numbers_of_steps_are_refused(tmp_path):
    model = torch.nn.Linear(3, 2)
    step_of(model, tmp_path / "one", steps=2)
    step_of(model, tmp_path / "other", steps=1)
    with pytest.raises(DataError, match=r"one has 2 steps, but .*other 1"):
        proof.compare(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("losses", [(1.0, math.nan), (math.nan, 1.0), (1.0, math.inf), (math.inf, math.inf)])
def test_a_loss_that_is_no_number_is_different(losses, tmp_path):
    model = torch.nn.Linear(3, 2)
    for name, loss in zip("ab", losses, strict=True):
        step_of(model, tmp_path / name, loss)
        model.zero_grad()
    proof.write_card(tmp_path / "a", tmp_path / "b")
    card = json.loads((tmp_path / "b/proof.json").read_text())
    assert (card["verdict"], card["first"]["module"]) == ("different", "the loss")


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ((0.0, 2.0), "0 and 2 times what it should be: scaled differently on each process"),
        ((-1.0, -1.0), "-1 times what it should be: opposite sign"),
        ((0.5, 0.5), "0.5 times what it should be: divided once too often by 2"),
    ],
)
def test_what_is_a_multiple_is_called_so(factors, text):
    whole = torch.arange(1.0, 9.0)
    halves = [torch.arange(4), torch.arange(4, 8)]
    parts = [([rank], factor * whole[own], own) for rank, (factor, own) in enumerate(zip(factors, halves, strict=True))]
    assert looks_like(whole, whole.shape, parts, parts, 1e-6).startswith(text)


@pytest.mark.parametrize(("shares", "verdict"), [(((0, 2), (1, 3)), "same"), (((0, 2), (1, 2)), "different")])
def test_equal_samples_on_two_ranks_are_both_there(shares, verdict, tmp_path, monkeypatch):
    model, batch = torch.nn.Linear(3, 2), torch.tensor([[1.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3])
    with prove.recording(model, tmp_path / "single"):
        model(batch).sum().backward()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank, share in enumerate(shares):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        vars(model).pop(prove.COUNTER)
        with prove.recording(model, tmp_path / "ranks"):  # its gradients are the single process's: reduced
            model(batch[list(share)])
    card = proof.compare(tmp_path / "single", tmp_path / "ranks")
    assert card["verdict"] == verdict and (verdict == "same" or card["first"]["pass"] == "samples")


class Whole(torch.nn.Module):
    """The second of its two stages begins with a table, of no samples."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.table = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2), torch.nn.Embedding(1, 2)

    def forward(self, batch, stages=(0, 1)):
        hidden = self.first(batch) if 0 in stages else batch
        return self.last(self.table(torch.zeros(1, dtype=torch.long)) + hidden) if 1 in stages else hidden


@pytest.mark.parametrize(("shares", "verdict"), [(((0, 1), (2, 3)), "same"), (((0, 1), (0, 3)), "different")])
def test_samples_of_a_stage_that_begins_with_a_table_are_found(shares, verdict, tmp_path, monkeypatch):
    model, batch = Whole(), torch.randn(4, 3)
    with prove.recording(model, tmp_path / "single"):
        model(batch).sum().backward()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        vars(model).pop(prove.COUNTER)
        inputs = batch[list(shares[rank % 2])]
        with prove.recording(model, tmp_path / "ranks"):
            model(inputs if rank < 2 else model.first.forward(inputs), stages=(rank // 2,))
    single, parts = proof.recording(tmp_path / "single")[0][0], proof.recording(tmp_path / "ranks")[0]
    [found] = proof.StepComparison(single, parts, None).find_samples()
    assert (found["difference"] == 0.0) == (verdict == "same")
    if verdict == "same":
        assert [part.rows for part in parts] == [[0, 1], [2, 3]] * 2


@pytest.mark.parametrize("named", [True, False])
def test_gradients_that_an_optimizer_computes_itself_are_recorded(named, tmp_path):
    """By a closure, as Lightning hands it over: they are there only when it has been called."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    model.bias.grad = torch.full((2,), 7.0)  # of a step before
    with prove.recording(model, tmp_path):
        optimizer.step(closure=closure) if named else optimizer.step(closure)
        optimizer.zero_grad()
    ((part,),) = proof.recording(tmp_path)
    found = {name: part.value(f"gradient|{name}").unique().tolist() for name in part.names("gradient")}
    assert found == {"weight": [2.0], "bias": [2.0]}


@pytest.mark.parametrize(
    ("module", "allowed", "rounded"),
    [*((torch.nn.Conv1d(3, 3, 1), on, on) for on in (True, False)), (torch.nn.Linear(3, 2), True, False)],
)
def test_convolutions_in_tf32_widen_the_tolerance(module, allowed, rounded, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    with prove.recording(module, tmp_path):
        module(torch.ones(2, 3, 3)).sum().backward()
    ((part,),) = proof.recording(tmp_path)
    assert (part.about["products"] == "tf32") is rounded
    assert (proof.StepComparison(part, [part], None).unit == proof.ROUNDOFF["tf32"]) is rounded


@pytest.mark.parametrize(
    ("columns", "every", "said"), [(4, 2, None), (3, 2, "does not divide"), (4, (2, 1), "one column of 1, 2")]
)
def test_shards_keep_the_columns_that_the_whole_keeps_or_are_refused(columns, every, said, tmp_path, monkeypatch):
    """Plain shards of columns: where `every` does not divide them, which ones a process holds is not known."""
    every = every if isinstance(every, tuple) else (every, every)
    whole = torch.nn.Linear(2 * columns, 3, bias=False)
    with prove.recording(whole, tmp_path / "single", every=every[0]):
        pass
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        shard = torch.nn.Linear(columns, 3, bias=False)
        shard.weight.data = whole.weight.data.chunk(2, 1)[rank]
        with prove.recording(shard, tmp_path / "ranks", every=every[1]):
            pass
    if said:
        with pytest.raises(DataError, match=said):
            proof.compare(tmp_path / "single", tmp_path / "ranks")
        return
    assert proof.compare(tmp_path / "single", tmp_path / "ranks")["verdict"] == "same"
    ((part, _),) = proof.recording(tmp_path / "ranks")
    assert part.value("start|weight").tolist() == whole.weight[:, 0:columns:2].double().tolist()


def test_numbers_of_rows_may_be_any_that_can_be_counted(tmp_path):
    model = torch.nn.Linear(3, 2)
    with prove.recording(model, tmp_path, rows=range(2), positions=torch.arange(3)):
        model(torch.ones(2, 3)).sum().backward()
    ((part,),) = proof.recording(tmp_path)
    assert (part.rows, part.columns) == ([0, 1], [0, 1, 2])


def train(folder, steps=2, wrong=None, kind="AdamW", half=None, clip=None, average=0.9, factor=1.0, **options):
    """Record steps of a small model from the same start, on one process. wrong: called with model and optimizer before each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 1e-3} | options)
    averages = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step in range(steps):
        batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        with prove.recording(model, folder) as record:
            for name, tensor in averages.items() if average else ():
                record.also(f"average.{name}", tensor)
            with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                loss = model(batch).square().mean() * factor
            record.loss(loss)
            loss.backward()
            if wrong:
                wrong(model, optimizer)
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            for name, weight in model.named_parameters():
                averages[name].lerp_(weight.detach(), 1 - average) if average else None
        optimizer.zero_grad()
    return folder


OPTIMIZERS = [
    ("AdamW", {"weight_decay": 0.1}, {"weight_decay": 0.09}),
    ("Adam", {"amsgrad": True}, {"betas": (0.9, 0.99)}),
    ("SGD", {"momentum": 0.9, "nesterov": True}, {"nesterov": False}),
    ("Adagrad", {}, {"lr": 1.01e-3}),
    ("RMSprop", {"centered": True}, {"centered": False}),
    ("NAdam", {}, {"momentum_decay": 1e-2}),
    ("RAdam", {}, {"weight_decay": 0.1}),
    ("Adamax", {}, {"lr": 0.99e-3}),
    ("Adadelta", {"lr": 1.0}, {"rho": 0.91}),
    ("Rprop", {}, {"etas": (0.4, 1.2)}),
    ("ASGD", {}, {"lambd": 1e-2}),
]


@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize(("kind", "options", "other"), OPTIMIZERS, ids=[kind for kind, *_ in OPTIMIZERS])
def test_a_step_of_each_optimizer_is_done_again_and_another_setting_is_named(kind, options, other, half, tmp_path):
    for name, settings in {"a": options, "b": options | {"foreach": True}, "c": options | other}.items():
        train(tmp_path / name, kind=kind, half=half, steps=3, **settings)
    right, wrong = (proof.compare(tmp_path / "a", tmp_path / name) for name in "bc")
    assert (right["verdict"], right["not_judged"]) == ("same", [])
    assert (wrong["first"] or {}).get("pass") == "weights"
    assert f"{next(iter(other))} is " in wrong["first"]["looks_like"]


def test_state_of_an_optimizer_that_has_stepped_before_is_recorded(tmp_path):
    """As of a script that is recorded later than from its first step."""
    for name, later in (("a", {}), ("b", {}), ("c", {"lr": 1.001e-3})):
        train(tmp_path / name, steps=3, half=torch.bfloat16)
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(4):
            optimizer.param_groups[0] |= later if step == 2 else {}
            with prove.recording(model, tmp_path / (f"later-{name}" if step > 1 else "no")):
                model(torch.randn(8, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()
                optimizer.step()
            optimizer.zero_grad()
    cards = [proof.compare(tmp_path / "later-a", tmp_path / f"later-{name}") for name in "bc"]
    assert [card["verdict"] for card in cards] == ["same", "different"] and not cards[0]["not_judged"]


def test_an_optimizer_of_ones_own_is_not_judged_in_halves_and_the_card_says_so(tmp_path, monkeypatch, capsys):
    class Own(torch.optim.SGD):
        pass

    monkeypatch.setattr(torch.optim, "Own", Own, raising=False)
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        train(tmp_path / name, kind="Own", half=torch.bfloat16, lr=rate, average=0)
    assert proof.write_card(tmp_path / "a", tmp_path / "b") == 0
    assert "not judged: changes of 0.weight" in capsys.readouterr().out.splitlines()[-1]
    train(tmp_path / "a", kind="Own", average=0), train(tmp_path / "b", kind="Own", lr=2e-3, average=0)
    assert proof.compare(tmp_path / "a", tmp_path / "b")["first"]["pass"] == "weights"


@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_an_average_of_weights_is_judged_if_it_is_added(half, tmp_path):
    for name, decay in (("a", 0.9), ("b", 0.9), ("c", 0.91), ("d", 0)):
        train(tmp_path / name, half=half, average=decay)
    same, other = (proof.compare(tmp_path / "a", tmp_path / name) for name in "bc")
    assert same["verdict"] == "same" and other["first"]["tensor"].startswith("average.")
    assert "record.also" in proof.as_text(proof.compare(tmp_path / "d", tmp_path / "d")).splitlines()[-1]


@pytest.mark.parametrize("clips", [(0.01, 0.01), (0.01, None), (None, 0.01)])
def test_a_factor_is_found_before_a_clip_or_a_clip_is_named(clips, tmp_path):
    for name, clip, factor in (("a", clips[0], 1.0), ("b", clips[1], 2.0)):
        train(tmp_path / name, clip=clip, wrong=lambda model, _, f=factor: [p.grad.mul_(f) for p in model.parameters()])
    first = proof.compare(tmp_path / "a", tmp_path / "b")["first"]
    assert first["pass"] == "backward"
    assert ("2 times what it should be" if clips[0] == clips[1] else "a clip") in first["looks_like"]


def medium(run):
    torch.set_float32_matmul_precision("medium")
    try:
        run()
    finally:
        torch.set_float32_matmul_precision("highest")


PRECISIONS = {
    "fp32, bf16 autocast": lambda folder: train(folder, half=torch.bfloat16),
    "fp32, fp16 autocast": lambda folder: train(folder, half=torch.float16),
    "fp32, products in bf16": lambda folder: medium(lambda: train(folder)),
}


@pytest.mark.parametrize("words", PRECISIONS)
def test_two_precisions_are_not_comparable_unless_asked_for(words, tmp_path):
    train(tmp_path / "a"), PRECISIONS[words](tmp_path / "b"), PRECISIONS[words](tmp_path / "c")
    ask = ["prove", str(tmp_path / "a"), str(tmp_path / "b")]
    result = CliRunner().invoke(cli.parascale, ask)
    assert result.exit_code == 3
    assert result.output.splitlines()[-1].startswith(f"not comparable: fp32 against {words} (")
    result = CliRunner().invoke(cli.parascale, [*ask, "--across-precisions"])
    assert result.exit_code == 0 and f"fp32 against {words}" in result.output.splitlines()[-1]
    assert proof.compare(tmp_path / "b", tmp_path / "c")["parallel"]["precision"] == words


def test_a_recording_of_before_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "FORMAT", 1)
    train(tmp_path)
    with pytest.raises(DataError, match="recorded by another version"):
        proof.compare(tmp_path, tmp_path)


def overflow(model, optimizer):
    """What the scaler of a loss does where a gradient is not finite."""
    model[0].weight.grad[0, 0] = math.inf
    optimizer.step = lambda: None


@pytest.mark.parametrize(("wrong", "verdict"), [(overflow, "same"), (None, "different")])
def test_a_step_that_the_scaler_skips_is_no_error(wrong, verdict, tmp_path):
    train(tmp_path / "a", wrong=overflow), train(tmp_path / "b", wrong=wrong)
    card = proof.compare(tmp_path / "a", tmp_path / "b")
    assert card["verdict"] == verdict and (verdict == "same" or card["first"]["tensor"] == "step")


def scaled(model, optimizer):
    """What a scaler hands to a fused optimizer, which divides by the scale itself."""
    for parameter in model.parameters():
        parameter.grad.mul_(1024.0)
    optimizer.grad_scale = torch.tensor(1024.0)


def test_what_a_fused_optimizer_gets_is_recorded_without_its_scale(tmp_path):
    train(tmp_path / "a", fused=True), train(tmp_path / "b", fused=True, wrong=scaled)
    assert proof.compare(tmp_path / "a", tmp_path / "b")["verdict"] == "same"


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [([1, 2], [*range(6)], None), ([*range(4)], [1, 4], None), ([0, 3], [2, 3, 4], None), ([1, 2], [0, 5], [0, 5])],
)
def test_inputs_are_found_by_their_values(rows, columns, told):
    whole = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert match(whole[rows][:, columns], whole, told) == (rows, None if len(columns) == 6 else columns)


def test_a_shard_without_elements_is_off_by_nothing():
    assert rms(torch.zeros(0)) == 0.0


@pytest.mark.parametrize(("before", "times"), [(None, 1), ("a step", proof.MARGIN)])
def test_a_loss_of_halves_may_be_off_by_as_much_as_outputs_are_or_more_once_weights_part(before, times):
    side = SimpleNamespace(about={"losses": [1.0]})
    known = {"single": side, "parts": [side], "place": {}, "columns": 1, "units": [2**-8], "tolerance": lambda *_: 0.0}
    step = SimpleNamespace(**known, before=before)
    assert proof.StepComparison.loss(step, [None, {"difference": 0.25}])["tolerance"] == times * 0.25
