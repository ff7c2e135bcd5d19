"""Accuracy: how often the right class is the likeliest one, or among the likeliest."""


def correct_within(logits_BK, labels_B, count):
    """The number of samples whose label is among the `count` likeliest classes, as a tensor. Of equals the first ones count."""
    likeliest_Bn = logits_BK.topk(min(count, logits_BK.shape[-1])).indices
    return (likeliest_Bn == labels_B[:, None]).any(-1).sum()
