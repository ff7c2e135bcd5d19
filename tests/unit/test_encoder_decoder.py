"""The encoder-decoder: what each place may see, and that it computes what others' encoder-decoders compute."""

import pytest
import torch

from parascale.families.build import build_model, initialise
from parascale.parallel.tying import tied_names
from parascale.settings import Model, make

from .test_models import assert_covered

VOCABULARY, PLACES, SUMMARY = 23, 9, 6
SETTINGS = {
    "pre-norm": {},
    "post-norm": {"pre_norm": False, "position": "sinusoidal", "activation": "relu"},
    "llama": {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2},
    "tied": {"tied": True},
}


def made(**more):
    """A model with weights large enough that every path matters."""
    model_settings = make(Model, kind="encoder_decoder", **{"dim": 16, "heads": 4, "layers": 2, **more})

    def build():
        return build_model(model_settings, VOCABULARY, PLACES, SUMMARY)

    model = build()
    initialise(model, build, 1, tied_names(model))
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def batch(length=PLACES, seed=0):
    """A document of `length` tokens, its mask, and a whole summary."""
    generator = torch.Generator().manual_seed(seed)
    documents = torch.randint(0, VOCABULARY, (1, PLACES), generator=generator)
    summaries = torch.randint(0, VOCABULARY, (1, SUMMARY), generator=generator)
    return documents, torch.arange(PLACES)[None] < length, summaries


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_is_seen_by_nobody_and_every_token_by_all(name):
    model = made(**SETTINGS[name])
    documents, mask, summaries = batch(length=5)
    logits = model(documents, mask, summaries)
    for place in range(PLACES):
        changed = documents.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCABULARY
        other = model(changed, mask, summaries)
        assert torch.equal(other, logits) == (place >= 5), place
        if place < 5:
            assert (other != logits).any(-1).all(), "a place of the summary that does not see the document"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_matrix_has_its_place_in_the_tensor_plan(name):
    assert_covered(made(**SETTINGS[name]))


# Our name → theirs, for a block's parts in `transformers`' encoder-decoders of BART's family.
BLENDERBOT = {"feed_forward_norm": "final_layer_norm", "feed_forward.up": "fc1", "feed_forward.down": "fc2"}
for mine, theirs in (("attention", "self_attn"), ("cross_attention", "encoder_attn")):
    BLENDERBOT |= {f"{mine}.{part}": f"{theirs}.{part}_proj" for part in "qkv"}
    BLENDERBOT |= {f"{mine}.o": f"{theirs}.out_proj", f"{mine}_norm": f"{theirs}_layer_norm"}


def test_given_the_weights_of_a_transformers_model_the_logits_are_the_same():
    """Blenderbot is the one of that family with a norm before each sublayer and none after the embedding, as here."""
    from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration

    torch.manual_seed(0)
    config = BlenderbotConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=PLACES,
        activation_function="gelu", dropout=0.0, init_std=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    theirs = BlenderbotForConditionalGeneration(config).eval()
    model = make(Model, kind="encoder_decoder", dim=16, heads=4, layers=2, hidden=64, tied=True)
    ours = build_model(model, VOCABULARY, PLACES, PLACES).eval()
    weights = theirs.state_dict()

    def their_name(name):
        half, rest = name.split(".", 1)
        if rest.startswith("embedding.positions"):
            return f"model.{half}.embed_positions.weight"
        if rest.startswith("norm."):
            return f"model.{half}.layer_norm.{rest.removeprefix('norm.')}"
        _, number, part = rest.split(".", 2)
        part, _, kind = part.rpartition(".")
        return f"model.{half}.layers.{number}.{BLENDERBOT[part]}.{kind}"

    for name, parameter in ours.named_parameters():  # a shared matrix comes once, under its first name
        key = "model.shared.weight" if "tokens" in name else their_name(name)
        parameter.data.copy_(weights[key])
    documents, mask, summaries = batch(length=6)
    with torch.no_grad():
        expected = theirs(input_ids=documents, attention_mask=mask.long(), decoder_input_ids=summaries).logits
        torch.testing.assert_close(ours(documents, mask, summaries), expected, atol=2e-5, rtol=0)


def test_with_norms_after_the_sublayers_it_is_the_original_transformer():
    """Against torch.nn.Transformer, blocks alone: its embeddings are the caller's."""
    ours = made(pre_norm=False, position="sinusoidal", activation="relu", hidden=32)
    theirs = torch.nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True, norm_first=False)
    theirs.encoder.norm, theirs.decoder.norm = None, None
    for half, stack in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        for block, layer in zip(stack.blocks.values(), getattr(theirs, half).layers, strict=True):
            attentions = [(block.attention, layer.self_attn)]
            norms = [(block.attention_norm, layer.norm1)]
            if half == "decoder":
                attentions.append((block.cross_attention, layer.multihead_attn))
                norms.append((block.cross_attention_norm, layer.norm2))
            norms.append((block.feed_forward_norm, layer.norm3 if half == "decoder" else layer.norm2))
            for mine, other in attentions:
                other.in_proj_weight.data = torch.cat([mine.q.weight, mine.k.weight, mine.v.weight]).data
                other.in_proj_bias.data = torch.cat([mine.q.bias, torch.zeros(16), mine.v.bias]).data
                other.out_proj.load_state_dict(mine.o.state_dict())
            for mine, other in [
                *norms, (block.feed_forward.up, layer.linear1), (block.feed_forward.down, layer.linear2)
            ]:  # fmt: skip
                other.load_state_dict(mine.state_dict())
    documents, mask, summaries = batch(length=6)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(SUMMARY)
    hidden = theirs.train()(  # its fast path for inference is other code
        ours.encoder.embedding(documents), ours.decoder.embedding(summaries), tgt_mask=causal,
        src_key_padding_mask=~mask, memory_key_padding_mask=~mask,
    )  # fmt: skip
    torch.testing.assert_close(ours(documents, mask, summaries), ours.head(hidden), atol=2e-5, rtol=1e-5)
