"""A new user's own models: a folder in Hugging Face's form with its tokenizer, on nanoGPT's tokens, and a plain class of images. A YAML and
rows of the table each, and two commands; nothing in Python says how to spread them."""

import json
import random

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from parascale.cli import parascale
from parascale.families.build import build_model
from parascale.settings import Model, make
from tests.unit.folder_models import make_folder
from tests.unit.own_classes import VIT, VIT_WORKLOAD
from tests.unit.test_tokenizers import gpt2, saved

from .small_project import SmallProject

pytestmark = pytest.mark.slow
WINDOW = 16
LLAMA_WORKLOAD = """
data:
  source: {kind: files, location: ../../tokens, files: {train: train.bin, validation: "val.bin[:50%]", test: "val.bin[50%:]"}}
  text: {tokenizer: pretrained, pretrained: ../../llama}
model: {kind: transformers, folder: ../../llama}
optim: {lr: 5.0e-3}
training: {window: 16, global_batch: 8, steps: 6}
"""
RUNS = """run	workload	gpus_per_node	dp	fsdp	tp
llama-single	llama	1
llama-fsdp	llama	2	1	2
llama-tp	llama	2	1	1	2
vit-single	vit	1
vit-fsdp	vit	2	1	2
"""
CONVERTED = "results/checkpoints/llama-fsdp"
TARGETS = ("parity", f"{CONVERTED}/verify.json")


def write_tokens(folder, tokenizer):
    """As nanoGPT's `prepare.py` writes them: uint16, one text after the other with its end."""
    words, end = random.Random(0), tokenizer.token_to_id("<|endoftext|>")
    folder.mkdir()
    for split, count in (("train", 200), ("val", 40)):
        texts = [" ".join(words.choices(["the", "cat", "sat", "on", "a", "mat"], k=8)) for _ in range(count)]
        numbers = [number for each in texts for number in [*tokenizer.encode(each).ids, end]]
        np.array(numbers, np.uint16).tofile(folder / f"{split}.bin")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project with both models, of which nothing is made yet."""
    project = SmallProject(tmp_path_factory.mktemp("own"))
    tokenizer, beside, _ = gpt2()
    size, workloads = tokenizer.get_vocab_size(), project.folder / "config/workloads"
    make_folder(project.folder / "llama", "Llama", vocab_size=size, eos_token_id=tokenizer.token_to_id("<|endoftext|>"))
    saved(project.folder / "llama", tokenizer, beside)
    write_tokens(project.folder / "tokens", tokenizer)
    project.runs(RUNS, llama=LLAMA_WORKLOAD, vit=VIT_WORKLOAD.replace("epochs: 2", "steps: 6"))
    (workloads / "vit.py").write_text(VIT)
    project.edit("config/config.yaml", "parity:", "checkpoints: {forms: [safetensors, transformers]}\nparity:")
    return project


def prices(project):
    """Run and kind of training → core-hours that the latest plan expects."""
    jobs = json.loads((project.folder / "results/plan/plan.json").read_text())["jobs"]
    return {(job["run"], job["kind"]): job["hours_expected"] for job in jobs if job["kind"]}


def test_models_of_one_s_own_are_priced_proven_and_brought_back(project, monkeypatch):
    said = project.snakemake("-n", *TARGETS)
    assert "its model is not counted yet: run parascale check model config/workloads/llama.yaml" in said
    assert len(prices(project)) == 6 and set(prices(project).values()) == {None}
    project.snakemake(*TARGETS)
    for row in RUNS.splitlines()[1:]:
        run = row.split("\t")[0]
        verdict = json.loads((project.folder / f"results/parity/{run}/verdict.json").read_text())
        assert verdict["verdict"] == ("baseline" if run.endswith("single") else "same"), verdict
        predicted = json.loads((project.folder / f"results/parity/{run}/run.json").read_text())["prediction"]
        assert predicted["memory_bytes"] > 0 and predicted["wall_seconds"] > 0
    project.snakemake("-n", "--forceall", *TARGETS)
    assert None not in prices(project).values()  # counted when the data was made
    monkeypatch.chdir(project.folder)
    check_folder(project.folder)


def check_folder(folder):
    """The checkpoint in the form of the folder that it came from: its tokenizer, our logits, and what our command continues texts with."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(folder / CONVERTED / "transformers", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / CONVERTED / "transformers")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder / "llama").get_vocab()
    model = make(Model, kind="transformers", folder=str(folder / "llama"))
    ours = build_model(model, theirs.config.vocab_size, WINDOW)
    ours.load_state_dict(load_file(folder / CONVERTED / "model.safetensors"))
    tokens = torch.tensor([tokenizer("the cat sat", add_special_tokens=False).input_ids])
    with torch.no_grad():
        assert torch.equal(ours.eval()(tokens), theirs(tokens).logits)
        continued = theirs.generate(tokens, max_new_tokens=6, do_sample=False)
    words = ["generate", "--run", "llama-fsdp", "--prompt", "the cat sat", "--tokens", "6", "--temperature", "0"]
    said = CliRunner().invoke(parascale, words, catch_exceptions=False)
    assert said.output.split("\n")[0] == tokenizer.decode(continued[0], skip_special_tokens=True).split("\n")[0]
