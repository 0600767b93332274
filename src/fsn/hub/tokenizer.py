"""What a run's tokens mean as a tokenizer of transformers."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data import Alphabet, Encoding, Subwords
from ..errors import UserError

PADDING = "<pad>"
UNKNOWN = "<unk>"
END = "<|endoftext|>"
"""Begins and ends a text. The model reads it as a line break; it is a token of its own here because tokens of this kind
are left out when text is decoded, which must not happen to line breaks."""


def make_tokenizer(encoding: Encoding, window: int = 256) -> PreTrainedTokenizerFast:
    """What a run's tokens mean, for transformers. Padding is on the left, where generation needs it."""
    if isinstance(encoding, Alphabet):
        inner, padding, end = _from_alphabet(encoding)
    elif isinstance(encoding, Subwords):
        inner, padding, end = _from_subwords(encoding)
    else:
        raise UserError(
            "the run was trained on tokens without a tokenizer; train it with --tokenizer to export it"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=padding,
        bos_token=end,
        eos_token=end,
        unk_token=UNKNOWN if isinstance(encoding, Alphabet) else None,
        padding_side="left",
        split_special_tokens=True,  # a text may hold the letters "<pad>"
        model_max_length=window - 1,
        clean_up_tokenization_spaces=False,
    )


def _from_subwords(encoding: Subwords) -> tuple[Tokenizer, str, str]:
    """The run's own tokenizer; its end of a document begins and ends texts. Behind its tokens comes one for padding,
    which the model does not have: padding is masked."""
    inner = Tokenizer.from_str(encoding.tokenizer.to_str())
    if inner.id_to_token(encoding.end) is None:
        inner.add_special_tokens([AddedToken(END, special=True)])
    padding = PADDING
    while inner.token_to_id(padding) is not None:
        padding = f"<{padding}>"
    inner.add_special_tokens([AddedToken(padding, special=True)])
    end = inner.id_to_token(encoding.end)
    if end is None or inner.token_to_id(padding) != len(encoding):
        raise UserError("the numbers of the run's tokenizer have gaps; transformers cannot hold it")
    return inner, padding, end


def _from_alphabet(alphabet: Alphabet) -> tuple[Tokenizer, str, str]:
    """The tokens of ``alphabet``, in its order; behind them padding, bytes it does not have, and the end of a text.

    The model has none of the three: padding is masked, an unknown byte is refused, and the end of a text is read as a
    line break.
    """
    letters = bytes_to_unicode()
    vocabulary = {letters[value]: token for token, value in enumerate(alphabet.symbols)}
    vocabulary |= {mark: len(alphabet) + place for place, mark in enumerate((PADDING, UNKNOWN, END))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner, PADDING, END
