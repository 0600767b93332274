"""An alphabet as a tokenizer of transformers: a token for every byte value that the corpus has."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data.alphabet import Alphabet

PADDING = "<pad>"
UNKNOWN = "<unk>"
END = "<|endoftext|>"
"""Begins and ends a text. The model reads it as a line break; it is a token of its own here because tokens of this kind
are left out when text is decoded, which must not happen to line breaks."""


def make_tokenizer(alphabet: Alphabet, window: int = 256) -> PreTrainedTokenizerFast:
    """The tokens of ``alphabet``, in its order; behind them padding, bytes it does not have, and the end of a text.

    The model has none of the three: padding is masked, an unknown byte is refused, and the end of a text is read as a
    line break. Padding is on the left, where generation needs it.
    """
    letters = bytes_to_unicode()
    vocabulary = {letters[value]: token for token, value in enumerate(alphabet.symbols)}
    vocabulary |= {mark: len(alphabet) + place for place, mark in enumerate((PADDING, UNKNOWN, END))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        bos_token=END,
        eos_token=END,
        padding_side="left",
        split_special_tokens=True,  # a text may hold the letters "<pad>"
        model_max_length=window - 1,
        clean_up_tokenization_spaces=False,
    )
