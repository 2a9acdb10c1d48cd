"""The forms of the transformer that are measured, from plain modules to quantised products and attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ...kernels import quant_matmul
from ...kernels.dense_attention import choose_dense
from ..model import Form, choose_form
from ..sampler import Network, PrefixBank
from ..sampler.bank import FP8 as FP8_BANK
from ..sampler.bank import SANDWICH, SPLIT
from ..sampler.window_sparse import SparseWindow
from .limits import FP8, LAYERS, Limits, backends, plain_kind
from .measure import GIB
from .model import GRID, Subject, fp8_weights
from .rows import asked_for

PLAIN, FUSED, SPARSE_WINDOW = "plain modules", "fused", "sparse window"
WINDOW_KEEPS = (50.0, 25.0)  # percent
PLAIN_BANK = SPLIT  # joined with the moving rows in every layer


@dataclass(frozen=True)
class Variant:
    """One form: `linears` are the weights of the large layers, `attention` the backend where it is not the chosen one."""

    name: str
    subject: Subject
    form: Form | None
    bank: str
    linears: str
    attention: str | None = None
    window_keep: float | None = None  # of an experiment, which runs only where it is named

    @property
    def looked_into(self) -> bool:
        """Whether its kernels are listed: plain modules once, fused forms all."""
        return self.form is not None or self.name == PLAIN

    def limit_ms(self, limits: Limits) -> float:
        """A chunk's products and attention of this form alone; without a product on fp8 codes the weights are widened."""
        linears = self.linears if self.linears in limits.linears else plain_kind(self.subject.model)
        return limits.chunk_ms(linears, self.attention)

    def own(self, peak: float | None) -> float | None:
        """`peak` GiB without the weights of the large layers in the form that this variant does not use."""
        model = self.subject.model
        unused = [model] if self.linears == FP8 else [fp8_weights(model)] if fp8_weights.cache_info().currsize else []
        layers = (block.get_submodule(name) for one in unused for block in one.blocks for name in LAYERS)
        return None if peak is None else peak - sum(t.nbytes for layer in layers for t in layer.parameters()) / GIB

    def network(self) -> Network:
        """A predictor of this form with an empty bank."""
        model = fp8_weights(self.subject.model) if self.linears == FP8 else self.subject.model
        made, bank, sparse = self.subject, PrefixBank(self.bank), None
        if self.window_keep is not None:
            sparse = SparseWindow.choose(self.window_keep, model, made.device)
        return Network(model, made.tables, made.conditions, GRID, bank=bank, form=self.form, sparse=sparse)


def fused_form(subject: Subject) -> Form:
    """What the pack chooses for the device; on a CPU, the same path with the reference of every kernel."""
    model, device = subject.model, subject.device
    return choose_form(model, device) or Form(choose_dense(device, model.dtype, model.config.head_dim))


def variants(subject: Subject, part_of_name: str = "") -> Iterator[Variant]:
    """The forms that run here and are `asked_for`, plain modules first, always."""
    for one in every_variant(subject):
        wanted = asked_for(part_of_name, one.name) and (one.window_keep is None or SPARSE_WINDOW in part_of_name)
        if one.name == PLAIN or wanted:
            yield one


def every_variant(subject: Subject) -> Iterator[Variant]:
    kind, form, device = plain_kind(subject.model), fused_form(subject), subject.device
    yield Variant(PLAIN, subject, None, PLAIN_BANK, kind)
    yield Variant(f"{FUSED}, sandwich", subject, form, SANDWICH, kind)
    yield Variant(f"{FUSED}, split", subject, form, SPLIT, kind)
    yield Variant(f"{FUSED}, fp8 bank", subject, form, FP8_BANK, kind)
    fp8 = FP8 if quant_matmul.chosen(FP8, device).works or device.type == "cpu" else kind
    if fp8 == FP8:
        yield Variant(f"{FUSED}, fp8 linears", subject, form, SANDWICH, FP8)
        yield Variant(f"{PLAIN}, fp8 linears", subject, None, PLAIN_BANK, FP8)
    for keep in WINDOW_KEEPS:
        for bank in (SANDWICH, SPLIT):
            yield Variant(f"{SPARSE_WINDOW} {keep:g} %, {bank}", subject, form, bank, kind, window_keep=keep)
    for backend in backends(device, subject.model.dtype, subject.config.head_dim):
        if not backend.exact:
            named = choose_dense(device, subject.model.dtype, subject.config.head_dim, backend.name)
            quick = replace(form, attention=named)
            yield Variant(
                f"{FUSED}, {fp8} linears, {backend.name} attention", subject, quick, SANDWICH, fp8, backend.name
            )


def first_variants(subject: Subject) -> list[Variant]:
    """Of these: plain modules, fused, and the first with fp8 linears."""
    every = list(variants(subject))
    fp8 = [one for one in every if one.linears == FP8][:1]
    return [*every[:2], *fp8]


def release(device: torch.device) -> None:
    """Let go of what a variant left behind."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
