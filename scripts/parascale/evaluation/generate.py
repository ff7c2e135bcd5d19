"""Generates continuations of several texts at once with a language model, one token at a time."""

import torch


@torch.no_grad()
def continue_tokens(model, prompts, count, window, temperature, generators, forbidden=()):
    """Continue each of `prompts` (lists of token numbers) by `count` tokens. A result does not depend on the rest of the batch.

    model: (B, T) tokens → (B, T, V) logits, causal and in evaluation mode. It sees the last `window` tokens of each text.
    temperature: 0 takes the most likely token; above 0, each text draws from its own CPU generator in `generators`.
    forbidden: token numbers that are never chosen.
    """
    device = next(model.parameters()).device
    texts = [list(prompt) for prompt in prompts]
    for _ in range(count):
        seen = [torch.tensor(text[-window:]) for text in texts]
        lengths_B = torch.tensor([len(each) for each in seen])
        # Padding follows a shorter text, where a causal model does not see it.
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
