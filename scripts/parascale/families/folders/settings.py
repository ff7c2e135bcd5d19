"""Settings of a language model from a folder in Hugging Face's format."""

import functools
import re
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from parascale.errors import ConfigError, DataError
from parascale.families.counted import check_counted
from parascale.families.kind import PLANS
from parascale.pretrained import Pretrained, refuse_other_forms
from parascale.settings.options import RECIPE, option, settings
from parascale.settings.run import FLOAT8_MULTIPLE
from parascale.settings.workload import Model

# How `transformers` names a way to split a module → the role in our `tensor_plan`.
ROLES = {
    "colwise": "columns",
    "rowwise": "rows",
    "colwise_gather_output": "columns_gathered",
    "rowwise_split_input": "rows_of_whole",
    "embedding_rowwise": "vocabulary",
    "replicated_with_grad_allreduce": "on_heads",
}
# Why an axis is refused.
NO_PLAN = "transformers declares no `base_model_{}_plan` for {}"
UNSAID = "the plans of transformers for {1} are known once it is counted: run parascale check model with the workload"
NO_EQUAL = "transformers splits it by `{}`, which is not supported here"

CONVOLUTIONS = ("gpt2", "gpt-sw3", "openai-gpt")  # `model_type` whose matrices are `Conv1D`
# Each `model_type` whose attention, masks and positions all go through the library's interfaces. `tests/distributed/test_folder_context.py`
# compares each with a single process.
OF_PARTS = frozenset(
    """
afmoe apertus arcee aria_text axk1 beam bert bert-generation bitnet cohere cohere2 cohere2_moe ctrl cwm deepseek_v2 deepseek_v3
diffllama electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma gemma2 gemma3_text gemma4_text gemma4_unified_text
glm glm4 glm4_moe glm4_moe_lite gpt-sw3 gpt2 gpt_bigcode gpt_neox granite granitemoe granitemoeshared helium hrm_text hunyuan_v1_dense
hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna llama llama4_text mellum minicpm3 minimax_m2
minimax_m3_vl_text ministral ministral3 mistral mixtral moshi nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe
qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
""".split()  # noqa: SIM905 (a list would fill a page)
)
NO_CONTEXT = "{} is not one of the models whose attention, masks and positions were tested in parts of a window"
LONGROPE = "`longrope` chooses its rotary frequencies by the last position, which differs between ranks"


def refuse_parts(config: dict) -> str | None:
    """Why a model with this config.json cannot use context parallelism; None if it can."""
    if config["model_type"] not in OF_PARTS:
        return NO_CONTEXT.format(config["model_type"])
    return LONGROPE if {"longrope", "su"} & {*re.findall(r"\w+", str(config))} else None


@settings(RECIPE)
class Folder(Model):
    """A causal language model of `transformers`: its folder determines class and sizes. It trains without dropout."""

    kind: str = option("`transformers`", default="transformers")
    folder: str | None = option(
        "folder of the model, as written by `save_pretrained`: `config.json`, optionally weights and tokenizer",
        default=None,
        path=True,
    )
    weights: bool = option("start from the folder's weights instead of random ones", default=False)
    has_linear_blocks: ClassVar = True

    @property
    def is_own(self):
        """True: not our class, so random draws and unused parameters are checked as for a user's class."""
        return True

    @property
    def pretrained(self):
        """Folder of the initial weights, or None."""
        return self.folder if self.weights else None

    def check_sizes(self, run):
        """Raise ConfigError if the folder is missing, if its config.json rules out the layout or precision, or if the data was tokenized
        for a vocabulary other than the weights'."""
        if self.folder is None:
            raise ConfigError("model.kind = `transformers` needs model.folder, a folder with the model's config.json")
        try:
            described = Pretrained(self.folder, "model.folder").config
        except (ConfigError, DataError):  # the folder or its environment variables may be on another machine
            described = {}
        if self.weights:
            refuse_other_forms(self.folder)
        if described.get("output_router_logits"):
            raise ConfigError(
                f"the config.json in {self.folder} asks for a router loss (`output_router_logits`), which is not computed here: "
                "set it to false to train without it"
            )
        self._check_layout(run.layout, described)
        kind = described.get("model_type")
        check_counted(self, run.layout, _declared(self.folder, kind, refuse_parts(described) if kind else None))
        experts = (key for key, value in described.items() if "experts" in key and type(value) is int and value)
        mixture = next(experts, None)
        if mixture and "fp64" in (run.precision, run.workload.parity_precision):
            raise ConfigError(
                f"the model in {self.folder} is a mixture of experts (`{mixture}` = {described[mixture]}); torch has no grouped matrix "
                "product in fp64: choose fp32"
            )
        if run.precision == "float8" and (mixture or kind in CONVOLUTIONS):
            raise ConfigError(
                f"precision float8 needs blocks of nn.Linear alone, unlike `{kind}` in {self.folder}: take bf16"
            )
        for name in ("hidden_size", "intermediate_size"):
            if run.precision == "float8" and (described.get(name) or 0) % (FLOAT8_MULTIPLE * run.layout.tp):
                raise ConfigError(
                    f"precision float8 needs multiples of {FLOAT8_MULTIPLE} × tp, unlike `{name}` = {described[name]} in {self.folder}: take bf16"
                )
        tokens = run.workload.data.pretrained
        if self.weights and tokens != self.folder:
            raise ConfigError(
                "model.weights = true uses the model's own vocabulary: it needs data.text.tokenizer = `pretrained` "
                f"and the same folder, but model.folder = `{self.folder}` and data.text.pretrained = `{tokens}`"
            )

    def _check_layout(self, layout, config):
        """Raise ConfigError if the layout does not fit the config.json or torch cannot compile it."""
        if layout.compile and layout.tp > 1:
            raise ConfigError(
                "compile = true with tp: torch does not compile split modules of `transformers`; leave one out"
            )
        for name in ("num_attention_heads", "n_head", "num_heads"):
            if isinstance(size := config.get(name), int) and size // layout.tp % layout.cp:
                raise ConfigError(
                    f"cp = {layout.cp} does not divide `{name}` / tp = {size // layout.tp} of the model in {self.folder}"
                )
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            if isinstance(size := config.get(name), int) and size % layout.tp:
                raise ConfigError(f"tp = {layout.tp} does not divide `{name}` = {size} of the model in {self.folder}")
        layers = config.get("num_hidden_layers")
        if isinstance(layers, int) and layout.stages > layers:
            raise ConfigError(f"{layout.stages} pipeline stages, but the model in {self.folder} has {layers} layers")


@functools.cache
def _declared(folder: str, kind: str | None, no_parts: str | None) -> dict:
    """What the model offers, in the form of `offer_of`, parsed from the source of the library's config class: importing that would load
    torch. Refusals that only the modules know are found when they are counted."""
    found, name = find_spec("transformers"), str(kind).replace("-", "_")
    origins = [found.origin] if found and found.origin else []  # None for a plain folder of that name
    places = [Path(at).parent / "models" / each for at in origins for each in (name, name.rpartition("_")[0])]
    files = (file.read_text(encoding="utf-8") for place in places for file in place.glob("configuration_*.py"))
    classes = (each for text in files for each in re.split(r"^class ", text, flags=re.MULTILINE))
    text = next((each for each in classes if f'    model_type = "{kind}"\n' in each), "")
    ways = re.findall(r': "(\w+)"', "".join(re.findall(r"base_model_tp_plan = \{.*?\n    \}", text, re.DOTALL)))
    # For a model with sub-configs, one of those is trained, and its plans are not in this class.
    why = NO_PLAN if "(PreTrainedConfig):" in text and "\n    sub_configs" not in text else UNSAID
    declared = [axis for axis in PLANS if axis == "fsdp" or (why == NO_PLAN and f"base_model_{axis}_plan = {{" in text)]
    here = kind and found  # otherwise the folder or the library may be on another machine
    refusals: dict[str, str | None] = {axis: why.format(axis, kind) for axis in PLANS if here and axis not in declared}
    refusals["cp"] = no_parts
    if unknown := sorted(set(ways) - ROLES.keys()):
        refusals["tp"] = NO_EQUAL.format(unknown[0])
    layouts = [each for each in ("single", "ddp", *PLANS) if not refusals.get(each)]
    return {"name": f"the model in {folder}", "layouts": layouts, "refusals": refusals, "units": ["its layers"]}
