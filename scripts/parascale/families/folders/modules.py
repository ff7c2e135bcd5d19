"""A causal language model of `transformers`, built from its folder, with plans derived from those that the library declares.

FSDP shards, and recomputation repeats, its repeated layers. Tensor parallelism follows `base_model_tp_plan`, pipelines follow
`base_model_pp_plan`; `refusals` says why a plan cannot be derived. Dimensions: B batch, T time, D width, V vocabulary.
"""

import functools
from unittest import mock

import torch
from torch import nn

from parascale.errors import DataError
from parascale.families.folders.context_modules import context_plan, take_parts
from parascale.families.folders.settings import NO_EQUAL, NO_PLAN, ROLES, refuse_parts
from parascale.families.foreign import Passed, StoredWeights, repeated, taken, theirs_of
from parascale.families.kind import PipelinePlan, matches
from parascale.pretrained import CONFIG, Pretrained

NETWORK = "network."


class FolderModel(nn.Module):
    """Tokens (B, T) → logits (B, T, V), V being the vocabulary of the folder's model. A stage takes and returns hidden states (B, T, D).

    settings: a config Model of kind `transformers`. The constructor reads no weights. Raises DataError if the folder is incomplete or has
    another kind of model, ConfigError if windows are longer than its positions, RequirementError without `transformers`.
    """

    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self._pretrained = Pretrained(settings.folder, "model.folder")
        self._make = functools.partial(_network, self._pretrained, window)
        self.network = self._make()
        entries = self.network.config.vocab_size
        if vocabulary > entries:
            raise DataError(
                f"{self._pretrained.folder}: the data has {vocabulary:,} different tokens, but the model {entries:,}; make the data "
                "with its tokenizer (`data.text.pretrained`), or give the folder's config.json a larger `vocab_size`"
            )
        self._stored = StoredWeights(self._pretrained, self.network)
        self.check_weights = self._stored.check
        if settings.weights:
            self.initialise_parameter = self._fill
        self.shard_units = repeated(self)
        self.part = self.parts = None  # which part of the positions it gets, and of how many, under context parallelism
        self.refusals = {}
        if reason := refuse_parts(self._pretrained.config):
            self.refusals["cp"] = reason
        else:
            self.context_plan = {"": "positions"} | context_plan(self.network, NETWORK)
        for axis, attribute, derive in (("tp", "tensor_plan", tensor_plan), ("pp", "pipeline_plan", pipeline_plan)):
            try:
                setattr(self, attribute, derive(self.network))
            except Underivable as reason:
                self.refusals[axis] = str(reason)

    def forward(self, inputs):
        plan, given = getattr(self, "pipeline_plan", None), {"input_ids": inputs}
        if plan is not None and isinstance(self.get_submodule(plan.first[0]), Passed):
            # The first stage has already done what the library does between embedding and layers, so its result here is discarded.
            given = {"inputs_embeds": inputs}
            next(self.get_submodule(plan.blocks).children()).received = inputs
        if self.parts:
            take_parts(self.network, self.parts)
            places = torch.arange(inputs.shape[1], device=inputs.device) + self.part * inputs.shape[1]
            given["position_ids"] = places[None]
        # We treat each window as one text. The library would search each batch for packed sequences, and the host would wait for that.
        with mock.patch("transformers.masking_utils.find_packed_sequence_indices", return_value=None):
            if plan is not None and isinstance(self.get_submodule(plan.last[-1]), Passed):
                return self.network.base_model(**given, use_cache=False).last_hidden_state
            return self.network(**given, use_cache=False).logits

    def _fill(self, name, shard):
        """Fill this rank's part of a parameter from the folder. A buffer that is not stored gets its value from the constructor."""
        name = name.removeprefix(NETWORK)
        if name in self._buffers_made:
            stored = self._stored.tensor(name) if name in self._stored.held else None
            shard.copy_(self._buffers_made[name] if stored is None else stored)
        else:
            self._stored.fill(name, shard, self._stored.tensor(name))

    @functools.cached_property
    def _buffers_made(self):
        """Buffers by name, from a whole module on the CPU. Its parameters are never touched, so they take no memory."""
        from transformers.initialization import no_init_weights

        with no_init_weights(), torch.device("cpu"):
            return dict(self._make().named_buffers())


class Underivable(Exception):
    """A plan cannot be derived from what `transformers` declares."""


def _network(pretrained, window):
    """Build a folder's model in fp32, without dropout, with random weights."""
    place = pretrained.folder / CONFIG
    if pretrained.config.get("quantization_config"):
        raise DataError(f"{place}: its weights are quantized; use the folder of the model before quantization")
    theirs = theirs_of(pretrained, window)
    from transformers import AutoModelForCausalLM  # slow to import, and only this kind needs it
    from transformers.models.auto import MODEL_FOR_CAUSAL_LM_MAPPING

    # Models of images and text are in the mapping too, but keep `vocab_size` in a sub-config.
    causal = type(theirs) in MODEL_FOR_CAUSAL_LM_MAPPING and hasattr(theirs, "vocab_size")
    if not causal or theirs.is_encoder_decoder:
        raise DataError(
            f"{place}: {theirs.model_type} is no causal language model. For T5 and BART: model.kind = `pretrained`"
        )
    # Windows have no padding. With a padding token, its row would not be trained and each batch would be searched for it.
    theirs.pad_token_id = None
    network = taken(pretrained, "build", AutoModelForCausalLM.from_config, theirs, dtype=torch.float32)
    for module in network.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            raise DataError(
                f"{place}: {theirs.model_type} numbers positions relative to padding, but windows have no padding here"
            )
        # `dynamic` would search each pass for positions beyond its frequencies' range; no window has any.
        if getattr(module, "rope_type", None) == "dynamic":
            module.rope_type = "default"
    return network


def tensor_plan(network):
    """Submodule pattern → role. Modules that the library does not split compute the same on all ranks."""
    if not network.config.base_model_tp_plan:
        raise Underivable(NO_PLAN.format("tp", network.config.model_type))
    declared = network.tp_plan
    if unknown := sorted(set(declared.values()) - ROLES.keys()):
        raise Underivable(NO_EQUAL.format(unknown[0]))
    _refuse_unsaid(network, declared)
    config, plan = network.config, {NETWORK + name: ROLES[way] for name, way in declared.items()}
    if getattr(config, "tie_word_embeddings", False):  # one matrix, split in one way
        embedding = network.get_input_embeddings()
        plan[NETWORK + next(name for name, module in network.named_modules() if module is embedding)] = "vocabulary"
    return plan


def _refuse_unsaid(network, declared):
    """Raise Underivable for parameters outside the plan that may act on split heads: each rank would get only part of their gradient."""
    named = {
        name: [way for pattern, way in declared.items() if matches(name, pattern)]
        for name, _ in network.named_modules()
    }
    split = {name.rpartition(".")[0] for name, ways in named.items() if "colwise" in ways}
    for name, module in network.named_modules():
        own = any(each is not None for each in module._parameters.values())
        inside = name.rpartition(".")[0] in split or any(True for _ in module.children())
        if own and inside and not named[name]:
            raise Underivable(f"`base_model_tp_plan` does not say how to split `{name}`")


def pipeline_plan(network):
    """Where stages may be cut: before, between and after the layers."""
    if not network.config.base_model_pp_plan:
        raise Underivable(NO_PLAN.format("pp", network.config.model_type))
    declared = network.pp_plan
    base = [name for name in declared if name.startswith(f"{network.base_model_prefix}.")]
    names = [NETWORK + name for name in (*base, *(name for name in declared if name not in base))]
    units = repeated(network)
    blocks = [name for name in names if f"{name.removeprefix(NETWORK)}.*" in units]
    if len(blocks) != 1:
        raise Underivable(f"`base_model_pp_plan` needs one list of repeated layers, not {', '.join(blocks) or 'none'}")
    for name, _ in network.named_parameters():
        if not any(f"{NETWORK}{name}".startswith(f"{place}.") for place in names):
            raise Underivable(f"`base_model_pp_plan` has no place for `{name}`")
    cut = names.index(blocks[0])
    if cut in (0, len(names) - 1):
        raise Underivable(f"`base_model_pp_plan` names nothing {'after' if cut else 'before'} the repeated layers")
    return PipelinePlan(tuple(names[:cut]), blocks[0], tuple(names[cut + 1 :]), leaves_places=True)
