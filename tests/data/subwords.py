"""A small text and a tokenizer made from it, for tests."""

from __future__ import annotations

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
_WORDS = ["phase", "gate", "lag", "field", "omega", "theta", "kernel", "winding", "the", "a", "of", "größe"]


def words(count: int, seed: int) -> str:
    source = random.Random(seed)
    return " ".join(source.choice(_WORDS) for _ in range(count))


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of 20 to 60 words, some of them with line ends."""
    return [words(20 + 7 * i % 41, seed + i) + "\n" * (i % 2) for i in range(count)]


TEXT = "\n".join(documents(60, seed=100))


def byte_pairs(vocab_size: int = 320, end: str | None = END) -> Tokenizer:
    """Byte pairs learned from TEXT; every byte has a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[] if end is None else [end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer
