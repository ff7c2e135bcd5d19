"""Small models and their data for the scripts that are proven: nothing of the package."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WORDS, PLACES, SAMPLES, IGNORED = 36, 12, 8, -100


def batch(seed, step):
    """(tokens, labels), samples × places. Each sample has another number of labels that count."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    tokens = torch.randint(0, WORDS, (SAMPLES, PLACES + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    for row in range(SAMPLES):
        labels[row, PLACES - row :] = IGNORED
    return tokens[:, :-1], labels


class Dropout(nn.Module):
    """Dropout whose masks follow from step and sample. samples: of this process in this step, of which each call takes the next."""

    def __init__(self, number):
        super().__init__()
        self.number, self.samples, self.step = number, [], 0

    def forward(self, x):
        samples, self.samples = self.samples[: len(x)], self.samples[len(x) :]
        seeds = [7919 * self.step + 101 * sample + self.number for sample in samples]
        draws = [torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return x * (torch.stack(draws) > 0.2) / 0.8


class Gathered(torch.autograd.Function):
    """The parts of all ranks along a dimension."""

    @staticmethod
    def forward(context, x, dim):
        context.dim, parts = (
            dim,
            [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())],
        )
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), context.dim)[dist.get_rank()], None


class Attention(nn.Module):
    """Causal attention. exchange: gathers keys and values of all parts of the sequence; begin: where this part begins."""

    def __init__(self, dim, head):
        super().__init__()
        self.head, self.causal, self.exchange, self.begin, self.scale = head, True, None, 0, None
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.exchange:
            k, v = self.exchange(k), self.exchange(v)
        places = torch.arange(q.shape[2]) + self.begin
        mask = torch.arange(k.shape[2])[None] <= places[:, None] if self.causal else None
        return self.o(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    def __init__(self, dim, number, dropout):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(dim), Attention(dim, dim // 4), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.dropout = Dropout(number) if dropout else nn.Identity()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Language(nn.Module):
    """A decoder. begin: the place in the sequence of its first token."""

    def __init__(self, dim=16, blocks=3, tied=False, dropout=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.begin = 0
        self.embedding, self.positions = nn.Embedding(WORDS, dim), nn.Embedding(PLACES, dim)
        self.blocks = nn.ModuleDict({str(number): Block(dim, number, dropout) for number in range(blocks)})
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        if self.embedding:
            places = torch.arange(x.shape[1]) + self.begin
            x = self.embedding(x) + self.positions(places)
        for block in self.blocks.values():
            x = block(x)
        x = self.norm(x) if self.norm else x
        return self.head(x) if self.head else x


class Batched(nn.Module):
    """A network with batch norm, on the tokens as numbers."""

    def __init__(self, dim=16, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.begin = nn.Linear(PLACES, dim)
        self.norm, self.hidden, self.head = nn.BatchNorm1d(dim), nn.Linear(dim, dim), nn.Linear(dim, WORDS * PLACES)

    def forward(self, x):
        x = F.relu(self.norm(self.begin(x.float() / WORDS)))
        return self.head(F.relu(self.hidden(x))).unflatten(1, (PLACES, WORDS))


def summed(logits, labels):
    """The sum of the losses of all labels that count."""
    logits = logits.float() if logits.element_size() == 2 else logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def counted(labels):
    return (labels != IGNORED).sum().item()


def optimizer_of(parameters, name, lr=1e-2, **options):
    """AdamW, which does not decay vectors; or SGD with momentum."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if name == "sgd":
        return torch.optim.SGD(parameters, **{"lr": lr, "momentum": 0.9} | options)
    kind, decay = options.pop("kind", torch.optim.AdamW), options.pop("weight_decay", (0.1, 0.0))
    matrices, vectors = ([p for p in parameters if (p.dim() > 1) == whether] for whether in (True, False))
    groups = [{"params": held, "weight_decay": each} for held, each in zip((matrices, vectors), decay, strict=True)]
    return kind([group for group in groups if group["params"]], lr=lr, **options)
