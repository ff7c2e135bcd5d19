"""Model families: one that is added as a folder is found, planned and trained, and nothing outside names a kind."""

import re
from pathlib import Path

import pytest
import torch

from parascale import families
from parascale.checkpoint.export import words_of
from parascale.errors import CheckpointError, ConfigError
from parascale.families.build import model_class
from parascale.families.counted import NOT_COUNTED
from parascale.families.kind import PLANS
from parascale.plan.memory import peak_memory, total
from parascale.plan.predict import DataFacts, predict
from parascale.settings import Layout, Model, Run, Site, Workload, make
from parascale.settings.workload import TASKS
from parascale.train.counting import keep_count
from tests.benchmarks.fake_steps import measure_with_data

ROOT = Path(__file__).parents[2]
KINDS = families.kinds()
AMBIGUOUS = {"pretrained", "transformers"}  # a tokenizer may be so too, and a library has that name

BIGRAM = {
    "__init__.py": """
from parascale.families.kind import Kind

KINDS = {
    "bigram": Kind(
        task="language_model", settings="settings:Bigram", model="modules:Bigram"
    )
}
""",
    "settings.py": """
from parascale.settings.options import RECIPE, option, settings
from parascale.settings.workload import Model


@settings(RECIPE)
class Bigram(Model):
    kind: str = option("a bigram model", default="bigram")
    dim: int = option("width", default=8, low=1)
    layers: int = option("matrices", default=1, low=1)
""",
    "modules.py": """
from torch import nn


class Bigram(nn.Module):
    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.dim)
        self.blocks = nn.Sequential(*(nn.Linear(settings.dim, settings.dim) for _ in range(settings.layers)))
        self.head = nn.Linear(settings.dim, vocabulary)

    def forward(self, tokens_BT):
        return self.head(self.blocks(self.embedding(tokens_BT)))
""",
}


@pytest.fixture
def bigram(tmp_path, monkeypatch):
    """A Run of a family that lies in a folder of its own."""
    for name, text in BIGRAM.items():
        (tmp_path / "bigrams").mkdir(exist_ok=True)
        (tmp_path / "bigrams" / name).write_text(text)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    model = make(Model, kind="bigram", dim=64, layers=8, counts=str(tmp_path / "counts"))
    workload = make(Workload, name="test", model=model, training={"window": 32, "global_batch": 16, "steps": 2})
    return Run("test", workload, Layout(), "fp32")


def test_a_folder_is_a_family_and_goes_with_it(bigram):
    assert families.kinds()["bigram"].task == "language_model"
    assert families.family_of("bigram").__name__ == "parascale.families.bigrams"
    assert KINDS.keys() == families.kinds().keys() - {"bigram"}


def test_a_new_family_is_planned_and_trains(bigram):
    """Steps of the real training on one process hold what was counted, to 5 %."""
    site = Site("here", peak_tflops={"fp32": 1.0}, memory_gigabytes_per_second=100.0, device="cpu", cores_per_node=2)
    assert NOT_COUNTED in predict(bigram, site, facts=DataFacts(500, 10_000)).unknown
    keep_count(bigram.workload, 500)
    prediction = predict(bigram, site, facts=DataFacts(500, 10_000))
    assert prediction.unknown is None and prediction.seconds > 0
    assert prediction.flops_per_token == 3 * 2 * (8 * 64 * 64 + 500 * 64)
    measured, _ = measure_with_data(bigram, 500)
    assert total(peak_memory(bigram, 500, "cpu")) == pytest.approx(measured, rel=0.05)


def test_a_family_without_words_of_transformers_says_who_has_them(bigram):
    said = r"no equivalent of model\.kind = bigram\. Exported: transformers, transformer_lm"
    with pytest.raises(CheckpointError, match=said):
        words_of("bigram")


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"transformers"}))  # whose plans each folder has, or not
def test_a_kind_offers_the_degrees_that_its_class_has_plans_for(kind):
    """Layouts are refused by what the family says, without torch; the classes must agree with it."""
    assert KINDS[kind].task in TASKS
    assert tuple(axis for axis, plan in PLANS.items() if hasattr(model_class(kind), plan)) == KINDS[kind].degrees


def test_a_new_family_s_settings_are_read_as_strictly_as_all_others(bigram):
    assert bigram.workload.model.layers == 8
    with pytest.raises(ConfigError, match=r"unknown key `heads`\. Allowed: kind, options, counts, dim, layers"):
        make(Model, kind="bigram", heads=2)


def test_each_task_has_one_usual_kind():
    usual = [kind.task for kind in KINDS.values() if kind.usual]
    assert sorted(usual) == sorted(task for task, kind in TASKS.items() if not kind.is_script)


def test_an_unknown_kind_is_told_what_there_is():
    with pytest.raises(ConfigError, match=r"`transformer` is not known\. Allowed: .*transformer_lm, .*my_model"):
        model_class("transformer")


def test_a_class_by_its_path_is_of_no_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import torch\n\n\nclass Mine(torch.nn.Linear):\n    pass\n")
    assert families.family_of("mine.py:Mine") is families.part_of("mine.py:Mine", "sizes") is None
    assert issubclass(model_class("mine.py:Mine"), torch.nn.Linear)
    with pytest.raises(ConfigError, match=r"`mine\.py` has no class `Yours`"):
        model_class("mine.py:Yours")


def named_in(file):
    """Kinds that a file names; those that are a word for other things too, where they are called a kind."""
    text = file.read_text(encoding="utf-8")
    return KINDS.keys() & {*re.findall(r"\w+", text)} - AMBIGUOUS | AMBIGUOUS & {
        *re.findall(r"kind\W+(?:in\W+)?(\w+)", text)
    }


def test_only_its_family_knows_a_kind():
    files = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk"), *(ROOT / "scripts").rglob("*.py")]
    known = ROOT / "scripts/parascale/families"
    wrong = {file: named for file in files if known not in file.parents and (named := named_in(file))}
    assert not wrong
