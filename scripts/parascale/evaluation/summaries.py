"""Writes summaries with a trained encoder-decoder and scores them against references (ROUGE).

Dimensions: B batch, W beams, S positions of a document, T positions of a summary, V vocabulary.
"""

import re
import unicodedata
from functools import partial

import numpy as np
import torch
from rouge_score.rouge_scorer import RougeScorer

from parascale.data.progress import Progress
from parascale.data.tokenize import END_ID, UNKNOWN_ID

ROUGE = ("rouge1", "rouge2", "rougeL")
# Characters of scripts without spaces between words: Thai to Tibetan, Burmese, Khmer, Chinese, Japanese.
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@torch.no_grad()
def beam_search(model, documents_BS, mask_BS, length, width=1, length_penalty=1.0):
    """The best summary found for each document: a list of arrays of token numbers without begin and end tokens.

    model: an EncoderDecoder in evaluation mode. length: most tokens, including the end token. width: beams per document; 1 is
    greedy search. Of the final beams, ended or cut at `length`, the one with the highest log probability divided by
    (number of tokens)^length_penalty wins. `<unk>` is never written.
    """
    batch, device = len(documents_BS), documents_BS.device
    memory = model.encode(documents_BS, mask_BS).repeat_interleave(width, 0)
    mask = mask_BS.repeat_interleave(width, 0)
    written = torch.full((batch, width, 1), END_ID, device=device)
    # At first all beams are equal, so only the first one continues.
    scores_BW = torch.full((batch, width), -torch.inf, device=device)
    scores_BW[:, 0] = 0.0
    ended_BW = torch.zeros(batch, width, dtype=torch.bool, device=device)
    lengths_BW = torch.zeros(batch, width, dtype=torch.int64, device=device)
    for _ in range(length):
        logits = model.decode(written.flatten(0, 1), memory, mask)[:, -1].float()
        steps_BWV = logits.log_softmax(-1).unflatten(0, (batch, width))
        steps_BWV[..., UNKNOWN_ID] = -torch.inf
        # A beam that has ended continues with end tokens that cost nothing.
        steps_BWV[ended_BW] = -torch.inf
        steps_BWV[..., END_ID] = steps_BWV[..., END_ID].masked_fill(ended_BW, 0.0)
        vocabulary = steps_BWV.shape[-1]
        scores_BW, chosen_BW = (scores_BW[..., None] + steps_BWV).flatten(1).topk(width)
        beams_BW, tokens_BW = chosen_BW // vocabulary, chosen_BW % vocabulary
        chosen = written.gather(1, beams_BW[..., None].expand_as(written))
        written = torch.cat([chosen, tokens_BW[..., None]], dim=-1)
        ended_BW = ended_BW.gather(1, beams_BW)
        lengths_BW = lengths_BW.gather(1, beams_BW) + ~ended_BW
        ended_BW = ended_BW | (tokens_BW == END_ID)
        if ended_BW.all():
            break
    best_B = (scores_BW / lengths_BW**length_penalty).argmax(1)
    rows = written[torch.arange(batch, device=device), best_B, 1:].cpu().numpy()
    return [row[: (row == END_ID).argmax()] if END_ID in row else row for row in rows]


def rouge(references, summaries):
    """Mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L, by name (Lin 2004), from the library `rouge_score`.

    The library's tokenizer, used for English as in publications, takes stemmed runs of a to z and digits. References in other scripts use `AnyWords`.
    """
    english, other = RougeScorer(ROUGE, use_stemmer=True), RougeScorer(ROUGE, tokenizer=AnyWords())
    pairs = zip(references, summaries, strict=True)
    scores = [
        (other if _in_other_script(reference) else english).score(reference, written) for reference, written in pairs
    ]
    return {name: float(np.mean([score[name].fmeasure for score in scores])) for name in ROUGE}


class AnyWords:
    """Tokenizer for `rouge_score` for any script: runs of letters, marks and digits, or single characters in scripts without spaces."""

    def tokenize(self, text):
        """The words of a text, or its characters if it has no words."""
        text = " ".join(_pieces(unicodedata.normalize("NFKC", text).lower()))
        words = "".join(letter if unicodedata.category(letter)[0] in "LMN" else " " for letter in text).split()
        return words or list(text.replace(" ", ""))


def _in_other_script(text):
    """True if at least a tenth of the letters and digits, without accents, are not ASCII, or none of them is."""
    letters = [letter for letter in unicodedata.normalize("NFKD", text.lower()) if letter.isalnum()]
    return 10 * sum(not letter.isascii() for letter in letters) >= len(letters) or not re.search(
        "[a-z0-9]", text.lower()
    )


def _pieces(text):
    """Words between spaces, or characters where no spaces separate words."""
    return UNSPACED.sub(r" \g<0> ", text).split()


def write(model, pairs, decode, settings, batch, device, part=0, parts=1):
    """Summarise a split. Returns [(number of the first document, greedy summaries, beam summaries)], one per batch.

    pairs: the split (parascale.data.pairs.Pairs). decode: token numbers → text. settings: `Summaries` of the configuration. batch: documents
    at once. part, parts: take every `parts`-th batch, starting with number `part`.
    """
    rows = np.arange(len(pairs.raw(settings.documents)))
    batches = [rows[first : first + batch] for first in range(0, len(rows), batch)][part::parts]
    written = []
    title = "summaries" if parts == 1 else f"summaries, part {part + 1} of {parts}"
    with Progress(title, unit="documents", total=sum(map(len, batches))) as progress:
        for chosen in batches:
            document, mask = (torch.from_numpy(part).to(device) for part in pairs.documents(chosen))
            search = partial(beam_search, model, document, mask, pairs.summary_window)
            found = [search(width, settings.length_penalty) for width in (1, settings.beams)]
            written.append((int(chosen[0]), *([decode(summary) for summary in each] for each in found)))
            progress.add(len(chosen))
    return written


def judge(pairs, batches, settings):
    """Score a model's summaries of a split: {documents, greedy, beam, lead: ROUGE by name, examples, …}.

    Compares every summary with its full reference. batches: results of `write`, of all parts in any order. `lead` is the score
    of the first words of each document, as many as references have on average.
    """
    documents, references = zip(*pairs.raw(settings.documents), strict=True)
    rows = np.arange(len(documents))
    written = {"greedy": [], "beam": []}
    for _, greedy, beam in sorted(batches):
        written["greedy"] += greedy
        written["beam"] += beam
    words = round(np.mean([len(_pieces(reference)) for reference in references]))
    lead = [" ".join(_pieces(document)[:words]) for document in documents]
    return {
        "documents": len(rows),
        **{name: rouge(references, summaries) for name, summaries in {**written, "lead": lead}.items()},
        "lead_words": int(words),
        "beams": settings.beams,
        "examples": [
            {"document": documents[n], "reference": references[n], "summary": written["beam"][n]}
            for n in rows[: settings.examples]
        ],
    }
