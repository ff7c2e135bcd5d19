"""Continuing texts with a trained language model, one token at a time, several texts at once."""

import torch


@torch.no_grad()
def continue_tokens(model, prompts, count, window, temperature, generators, forbidden=()):
    """Lists of `count` token numbers that follow each of `prompts` (lists of token numbers), independent of the rest of the batch.

    model: (B, T) tokens → (B, T, V) logits, causal and in evaluation mode. It sees the last `window` tokens of each text.
    temperature 0 takes the likeliest token each time; above, tokens are drawn by the text's own of `generators` (on the CPU).
    forbidden: numbers that are never chosen.
    """
    device = next(model.parameters()).device
    texts = [list(prompt) for prompt in prompts]
    for _ in range(count):
        seen = [torch.tensor(text[-window:]) for text in texts]
        lengths_B = torch.tensor([len(each) for each in seen])
        # What fills up a shorter text stands behind it, where a causal model does not look.
        filled_BT = torch.nn.utils.rnn.pad_sequence(seen, batch_first=True)
        logits_BV = model(filled_BT.to(device))[torch.arange(len(texts)), lengths_B - 1].float().cpu()
        logits_BV[:, list(forbidden)] = -torch.inf
        if temperature == 0:
            chosen = logits_BV.argmax(-1).tolist()
        else:
            odds_BV = (logits_BV / temperature).softmax(-1)
            chosen = [
                int(torch.multinomial(odds_V, 1, generator=generator))
                for odds_V, generator in zip(odds_BV, generators, strict=True)
            ]
        for text, number in zip(texts, chosen, strict=True):
            text.append(number)
    return [text[-count:] for text in texts]
