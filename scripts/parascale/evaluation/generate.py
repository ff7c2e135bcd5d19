"""Continuing a text with a trained language model, one token at a time."""

import torch


@torch.no_grad()
def continue_tokens(model, tokens, count, window, temperature, generator, forbidden=()):
    """Yield `count` more token numbers after `tokens` (a list).

    model: (1, T) tokens → (1, T, V) logits, in evaluation mode. It sees the last `window` tokens. temperature 0 takes the
    likeliest token each time; above, tokens are drawn by `generator`. forbidden: numbers that are never chosen.
    """
    context = list(tokens)
    for _ in range(count):
        logits_V = model(torch.tensor([context[-window:]]))[0, -1].float()
        logits_V[list(forbidden)] = -torch.inf
        if temperature == 0:
            chosen = int(logits_V.argmax())
        else:
            chosen = int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=generator))
        context.append(chosen)
        yield chosen
