"""What every language model here shares: checking input, logits, losses, probing, text in and text out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..errors import UserError
from ..nn import NO_PROBE, Cache, Context, Probe
from ..nn.rotary import leave_meta
from ..ops.precision import transformed
from .config import Config
from .generate import Tokenizer, draw, first_token

SITES_PER_LAYER = 4
"""Places in a layer that dropout tells apart."""
IGNORED = -100
"""A target that counts nothing, as everywhere in PyTorch."""


class LanguageModel(nn.Module):
    """``model(tokens)`` gives logits; ``model(tokens, targets=...)`` gives logits and the loss of every token; after
    ``fsn.load``, ``model.generate(prompt)`` gives text."""

    config: Config
    probe: Probe = NO_PROBE
    first_point = "embedding"
    """The named point where tokens have become what the first layer reads."""
    tokenizer: Tokenizer | None = None
    """How text becomes tokens; None where nobody has said: set it, e.g. to the alphabet of a corpus."""
    window: int = 256
    """Symbols in a training window, the first of them never predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(leave_meta)

    def compute_logits(self, tokens: Tensor, context: Context) -> Tensor:
        """tokens (B, T) -> logits (B, T, V)"""
        raise NotImplementedError

    def compute_loss(self, tokens: Tensor, targets: Tensor, context: Context) -> Tensor:
        return ops.cross_entropy(self.compute_logits(tokens, context), targets)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        dropout_key: ops.DropoutKey | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """tokens (B, T) int64 -> logits (B, T, V) float32, and with targets also the losses (B, T) in nats.

        ``attention_mask`` (B, T) is zero for padding in front of a sequence or behind it. A target of −100, or one
        that stands at padding, has loss zero: the mean over the others is ``loss.sum() / (targets != -100).sum()``.
        """
        tokens, targets, context = self._prepared(tokens, targets, attention_mask, dropout_key)
        logits = self.compute_logits(tokens, context)
        if targets is None:
            return logits
        return logits, ops.cross_entropy(logits, targets)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        dropout_key: ops.DropoutKey | None = None,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Per-token loss in nats without keeping logits: what training and evaluation use.

        ``documents`` (B, T) integers: a document is a run of equal numbers. None of them sees another, and the losses
        are those that each would have alone.

        tokens, targets (B, T) -> (B, T) float32
        """
        if targets is None:
            raise UserError("targets are missing; pass them, or call model(tokens) for logits")
        tokens, masked, context = self._prepared(tokens, targets, attention_mask, dropout_key)
        assert masked is not None
        if documents is not None:
            self._check_marks("documents", documents, tokens)
            if documents.is_floating_point() or documents.dtype == torch.bool:
                raise UserError("documents are not integers; pass the number of each token's document")
            begins = documents[:, 1:] != documents[:, :-1]
            if context.padding is not None:  # padding is a document of its own
                begins |= context.padding[:, 1:] != context.padding[:, :-1]
            context.documents = F.pad(begins, (1, 0)).cumsum(1)
        return self.compute_loss(tokens, masked, context)

    def new_cache(self, lean: bool = False) -> Cache:
        """An empty memory for :meth:`extend`; a lean one keeps 2k numbers a position and layer of an FSN, not 9k, and
        2d of a transformer with shifted keys, not 4d."""
        return Cache(self.config.layers, lean)

    def extend(self, tokens: Tensor, cache: Cache, padding: Tensor | None = None) -> Tensor:
        """Read on: tokens that follow what ``cache`` has seen, any number of them, and their logits.

        For reading: no dropout, the reference path (a few positions at a time leave kernels nothing to win), and
        gradients only through a sequence read in one piece. ``padding`` is true for new positions that are padding in
        front of a sequence: no other position looks at them, and their own logits mean nothing. Positions only enter as
        distances, so such padding changes nothing. If the call fails the cache is as it was. Probes see the new
        positions.

        tokens (B, n), padding (B, n) bool -> logits (B, n, V)
        """
        self.check_tokens(tokens)
        if padding is not None:
            self._check_marks("padding", padding, tokens)
            if padding.dtype != torch.bool:
                raise UserError(f"padding is {padding.dtype}; make it bool, true for padding")
        if not isinstance(cache, Cache):
            raise UserError(f"cache is a {type(cache).__name__}; pass model.new_cache()")
        if cache.batch not in (None, tokens.shape[0]):
            raise UserError(
                f"the cache holds {cache.batch} sequences and tokens {tokens.shape[0]}; make them equal, "
                "or choose sequences with cache.reorder"
            )
        first = cache.length
        cache.grow(tokens, padding)
        context = Context(self.probe, cache=cache, first=first, padding=cache.padding)
        try:
            if cache.padding is not None:
                _check_holes(cache.padding, "padding is true")
            return self.compute_logits(tokens, context)
        except BaseException:
            cache.cut(first)
            raise

    def _prepared(
        self,
        tokens: Tensor,
        targets: Tensor | None,
        mask: Tensor | None,
        dropout_key: ops.DropoutKey | None,
    ) -> tuple[Tensor, Tensor | None, Context]:
        """Checked tokens and targets, neither of which count at padding, and the context of a sequence read whole; in
        training mode, a dropout key is drawn where none is given."""
        padding = None
        self.check_tokens(tokens, targets, ranges=mask is None)
        if mask is not None:
            self._check_marks("attention_mask", mask, tokens)
            padding = mask == 0
            tokens = tokens.masked_fill(padding, 0)
            targets = None if targets is None else targets.masked_fill(padding, IGNORED)
            self.check_tokens(tokens, targets)
            begins = _check_holes(padding, "attention_mask has zeros")
            if not transformed() and not bool(begins.any()):
                padding = None  # all of it comes behind the sequences, where causality hides it
        if not self.training or not self.uses_dropout:
            dropout_key = None
        elif dropout_key is None:
            dropout_key = ops.DropoutKey.draw(tokens.device)
        return tokens, targets, Context(self.probe, dropout_key, padding=padding)

    @property
    def uses_dropout(self) -> bool:
        return any(value for name, value in vars(self.config).items() if name.startswith("dropout"))

    @staticmethod
    def _check_marks(name: str, marks: Tensor, tokens: Tensor) -> None:
        """Stop unless these are a mark for every token."""
        if not isinstance(marks, Tensor):
            raise UserError(
                f"{name} is a {type(marks).__name__}; pass a tensor of shape {tuple(tokens.shape)}"
            )
        if marks.shape != tokens.shape:
            raise UserError(
                f"{name} has shape {tuple(marks.shape)} and tokens {tuple(tokens.shape)}; make them equal"
            )

    def check_tokens(self, tokens: Tensor, targets: Tensor | None = None, ranges: bool = True) -> None:
        """Reject bad input before work starts. Ranges are checked on the CPU only: on a GPU it would stall."""
        ranges = ranges and not torch.compiler.is_compiling() and not transformed()
        for name, value in (("tokens", tokens), ("targets", targets)):
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{name} are a {type(value).__name__}; pass a tensor, e.g. torch.tensor({name})"
                )
            if value.dtype not in (torch.int64, torch.int32):
                raise UserError(f"{name} have type {value.dtype}; pass integers, e.g. {name}.long()")
            if value.dim() != 2:
                raise UserError(f"{name} have shape {tuple(value.shape)}; pass two axes, (batch, positions)")
            if value.shape[1] == 0 or value.shape[0] == 0:
                raise UserError(f"{name} are empty (shape {tuple(value.shape)}); pass at least one position")
            if ranges and value.device.type == "cpu":
                real = value if value is tokens else value.masked_fill(value == IGNORED, 0)
                low, high = (int(end) for end in real.aminmax())
                if low < 0 or high >= self.config.vocab_size:
                    bad = low if low < 0 else high
                    raise UserError(
                        f"{name} hold {bad}, but this model has symbols 0 to {self.config.vocab_size - 1}; "
                        "encode the text with the corpus the model was built for"
                    )
        if targets is not None and targets.shape != tokens.shape:
            raise UserError(
                f"targets have shape {tuple(targets.shape)} and tokens {tuple(tokens.shape)}; make them equal"
            )

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    # -- text ----------------------------------------------------------------------------------------------

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                "this model does not know what its tokens mean; load a trained one with fsn.load, or set "
                "model.tokenizer, e.g. to the alphabet of a corpus"
            )
        return self.tokenizer

    def encode(self, text: str) -> Tensor:
        """Text -> tokens (1, T) on the model's device, ready for ``model(tokens)``."""
        if not isinstance(text, (str, bytes, bytearray)):
            raise UserError(
                f"text is a {type(text).__name__}; pass one str (of several texts, each by itself)"
            )
        return self._tokenizer().encode(text).long().to(next(self.parameters()).device)[None]

    def decode(self, tokens: Tensor) -> str:
        """Tokens (T,) or (1, T) -> text."""
        if not isinstance(tokens, Tensor) or tokens.is_floating_point():
            what = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
            raise UserError(f"tokens are a {what}; pass a tensor of integers, e.g. torch.tensor([1, 2])")
        return self._tokenizer().decode(tokens.detach().flatten().cpu())

    def begin(self, prompt: str = "") -> Tensor:
        """The prompt as tokens (1, T) on the model's device; where it is empty, what stands before a text."""
        if prompt or not isinstance(prompt, str):
            return self.encode(prompt)
        return torch.tensor([[first_token(self._tokenizer())]], device=next(self.parameters()).device)

    def generate(
        self,
        prompt: str = "",
        symbols: int = 200,
        *,
        temperature: float = 0.8,
        top_k: int | None = None,
        seed: int = 0,
        context: int | None = None,
    ) -> str:
        """``prompt`` and ``symbols`` symbols that continue it, as text. The options are those of :func:`draw`."""
        start = self.begin(prompt)
        drawn = draw(
            self, start, symbols=symbols, temperature=temperature, top_k=top_k, seed=seed,
            context=self.window - 1 if context is None else context,
        )  # fmt: skip
        new = torch.tensor(list(drawn))
        return self.decode(torch.cat((start[0].cpu(), new)) if prompt else new)


def _check_holes(padding: Tensor, what: str) -> Tensor:
    """Stop if padding lies between real positions of a row; true where padding in front of a sequence ends."""
    ends = padding[:, 1:] & ~padding[:, :-1]
    begins = padding[:, :-1] & ~padding[:, 1:]
    if not transformed() and bool((ends.cumsum(1).bool() & begins).any()):
        raise UserError(f"{what} inside a sequence; pad in front of sequences or behind them")
    return begins
