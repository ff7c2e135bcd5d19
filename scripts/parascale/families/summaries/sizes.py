"""The encoder-decoder by formula: two stacks of Transformer blocks, of which the second attends to the first."""

from parascale.families.language.sizes import (
    TransformerSizes,
    attention_bytes,
    attention_matrices,
    attention_operations,
    mixed_width,
    norm_elements,
    products_of,
    selective_bytes,
    split_and_whole,
    sublayer_operations,
)
from parascale.families.sizes import Operations, Sizes


class EncoderDecoderSizes(Sizes):
    """A block is here one of the encoder and one of the decoder together. half: the Sizes of each."""

    half = TransformerSizes

    def __init__(self, model, vocabulary, window, summary_window):
        self.model = model
        encoder, decoder = self.halves = [
            self.half(model, vocabulary, size, causal) for size, causal in ((window, False), (summary_window, True))
        ]
        across = attention_matrices(model, key_bias=False)
        self.layers, self.tied, self.targets = model.layers, model.tied, summary_window
        self.embedding_split = vocabulary * model.dim * (1 if model.tied else 2)
        self.embedding_whole = encoder.embedding_whole + decoder.embedding_whole
        split, whole = split_and_whole(across)
        self.block_split = 2 * encoder.block_split + split
        self.block_whole = 2 * encoder.block_whole + whole + norm_elements(model)
        self.norm, self.head = 2 * encoder.norm, encoder.head
        self.unit = 1 - encoder.block / self.block
        query, key, value, result = (2 * matrix.weights for matrix in across)
        self.block_flops = encoder.block_flops + decoder.block_flops + window * (key + value)
        self.block_flops += summary_window * (query + result + 4 * window * mixed_width(model))
        self.ends_flops = decoder.ends_flops

    def block_operations(self, batch, fused):
        """Operations of both halves and of the attention across, whose keys and values come from the documents."""
        encoder, decoder = (half.block_operations(batch, fused) for half in self.halves)
        documents, summaries = (half.tokens(batch) for half in self.halves)
        query, key, value, result = attention_matrices(self.model, key_bias=False)
        across = products_of((query, result), summaries, batch.tp) + products_of((key, value), documents, batch.tp)
        layers = Operations(across, 0.0, 0, len(across) + (2 if fused else 4), batch.compute)
        attention = attention_operations(self.model, batch, summaries, self.halves[0].window, False, fused)
        sublayer = sublayer_operations(self.model, batch, self.halves[1].stream(batch), fused)
        return encoder.plus(decoder).plus(layers).plus(attention).plus(sublayer)

    def ends_operations(self, batch, fused):
        """Operations for the summaries; the documents' embedding and norm are little beside them."""
        return self.halves[1].ends_operations(batch, fused)

    def block_bytes(self, batch):
        """Bytes of both halves and of the attention across (its norm, query, keys, values and result); the memory is not included."""
        documents, summaries = (half.tokens(batch) for half in self.halves)
        dim = self.model.dim
        mixed = attention_bytes(self.model, batch, summaries, documents, self.halves[0].window, True)
        masks = self.halves[1].stream(batch) * dim if self.model.dropout else 0
        across = self.halves[1].norm_bytes(batch) + summaries * dim * batch.compute + mixed + masks
        return sum(half.block_bytes(batch) for half in self.halves) + across

    def selective_bytes(self, batch):
        """Bytes of both halves and the attention across, whose query comes from the summaries and whose values from the documents."""
        documents, summaries = (half.tokens(batch) for half in self.halves)
        query, _, value, _ = attention_matrices(self.model, key_bias=False)
        across = selective_bytes([query], self.model, batch, summaries, self.halves[1].stream(batch))
        values = documents * value.outputs // batch.tp * batch.compute
        return sum(half.selective_bytes(batch) for half in self.halves) + across + values

    def boundary_bytes(self, batch):
        """The residual streams of both halves."""
        return sum(half.boundary_bytes(batch) for half in self.halves)

    def working_bytes(self, batch):
        """Gradients in the half with the longer text."""
        return max(half.working_bytes(batch) for half in self.halves)

    def forward_bytes(self, batch):
        """Bytes of the half with the longer text; the decoder also holds the memory of the documents, with `tp` gathered too."""
        memory = self.split_bytes(batch) * (2 if batch.tp > 1 else 1)
        return max(half.forward_bytes(batch) for half in self.halves) + memory

    def ends_bytes(self, batch):
        """The last norms', the memory, and the output layer's input."""
        return sum(half.ends_bytes(batch) for half in self.halves)

    def logits_bytes(self, batch, loss_parallel):
        return self.halves[1].logits_bytes(batch, loss_parallel)

    def loss_bytes(self, batch):
        return self.halves[1].loss_bytes(batch)

    def split_bytes(self, batch):
        """The stream of the documents."""
        return self.halves[0].split_bytes(batch)

    def last_bytes(self, batch):
        """The encoder's: the backward pass ends there."""
        return self.halves[0].last_bytes(batch)
