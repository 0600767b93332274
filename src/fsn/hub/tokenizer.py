"""An alphabet as a tokenizer of transformers: a token for every byte value that the corpus has."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data.alphabet import Alphabet

PADDING = "<pad>"
UNKNOWN = "<unk>"


def make_tokenizer(alphabet: Alphabet, window: int = 256) -> PreTrainedTokenizerFast:
    """The tokens of ``alphabet``, in its order; behind them one for padding and one for bytes it does not have.

    The model has neither: padding is hidden from it, and an unknown byte is refused when it meets one.
    Padding is on the left, where generation needs it.
    """
    letters = bytes_to_unicode()
    vocabulary = {letters[value]: token for token, value in enumerate(alphabet.symbols)}
    vocabulary |= {PADDING: len(alphabet), UNKNOWN: len(alphabet) + 1}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        padding_side="left",
        split_special_tokens=True,  # a text may hold the letters "<pad>"
        model_max_length=window - 1,
        clean_up_tokenization_spaces=False,
    )
