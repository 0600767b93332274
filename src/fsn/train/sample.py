"""Text from a trained model, one symbol at a time."""

from __future__ import annotations

import torch
from torch import nn

from ..data.alphabet import Alphabet
from ..errors import UserError


@torch.no_grad()
def sample(
    model: nn.Module,
    alphabet: Alphabet,
    prompt: str = "",
    *,
    symbols: int = 400,
    temperature: float = 0.8,
    top_k: int | None = None,
    context: int = 255,
    seed: int = 0,
) -> str:
    """Continue ``prompt`` by ``symbols`` symbols and return the continuation.

    The model sees at most the last ``context`` symbols, as many as a training window shows it. Each symbol is
    drawn from softmax(logits / temperature), among the ``top_k`` likeliest if given; temperature 0 takes the
    likeliest. The same seed gives the same text.
    """
    if symbols < 1:
        raise UserError(f"ask for at least one symbol, not {symbols}")
    if temperature < 0 or (top_k is not None and top_k < 1) or context < 1:
        raise UserError("temperature must not be negative; top_k and context must be at least 1")
    device = next(model.parameters()).device
    start = prompt.encode() or (b"\n" if b"\n" in alphabet.symbols else alphabet.symbols[:1])
    tokens = alphabet.encode(prompt if prompt else start).long().to(device)[None]
    generator = torch.Generator().manual_seed(seed)
    training = model.training
    model.eval()
    begin = tokens.shape[1]
    try:
        for _ in range(symbols):
            logits = model(tokens[:, -context:])[0, -1].float().cpu()
            if top_k is not None and top_k < logits.numel():
                logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
            if temperature == 0:
                new = logits.argmax()
            else:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, new.view(1, 1).to(device)], dim=1)
    finally:
        model.train(training)
    return alphabet.decode(tokens[0, begin:])
