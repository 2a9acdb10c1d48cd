"""Is the checkpoint whole? Its names, shapes and block numbers against what a model of its size must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..model.config import RELEASE, ConfigError, H3Config
from .checkpoint import Checkpoint
from .detect import STREAM_PREFIX, Recognition, h3_config
from .forms import LOW_RANK
from .header import CheckpointError
from .layouts import BLOCKS, INV_FREQ, REFINER, Layout, Recipe, native_names, native_shape, natural

EXAMPLE_KEY = "streamrender_h3.example"  # metadata: a model made to try the pack with, of any number of blocks
TRIM_LAYERS = 42  # blocks that FastH3 Trim keeps of the fifty
_SHOWN = 8


@dataclass(frozen=True)
class Mismatch:
    """A tensor, by its name in the file, whose shape is not the one a model of this size has."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]


@dataclass(frozen=True)
class Audit:
    """What the headers say about completeness.

    Attributes:
        config: sizes of the model; None where tensors that carry a size are missing or contradict each other.
        form_sizes: sizes of its modulation's form that the config does not hold.
        recipes: canonical name -> how to make it, in names of the file.
        missing, unexpected: names in the file's own spelling.
        mismatched: wrong shapes.
        problems: what else is wrong, in sentences without a full stop.
    """

    config: H3Config | None
    form_sizes: Mapping[str, int]
    recipes: Mapping[str, Recipe]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Nothing missing, nothing unexpected, every shape right."""
        return not (self.missing or self.unexpected or self.mismatched or self.problems)

    def require_complete(self, checkpoint: Checkpoint, label: str) -> H3Config:
        """The config of a complete checkpoint. Raises CheckpointError that lists everything wrong."""
        if self.config is not None and self.complete:
            return self.config
        shapes = [f"{item.name} is {list(item.found)} instead of {list(item.expected)}" for item in self.mismatched]
        found = [
            *self.problems,
            *_listed("missing tensor", self.missing),
            *_listed("unexpected tensor", self.unexpected),
            *_listed("tensor of wrong shape", shapes),
        ]
        count = sum(len(recipe.sources) for recipe in self.recipes.values())
        raise CheckpointError(
            checkpoint.path,
            found="; ".join(found),
            needed=f"exactly the {count} tensors of this layout ({label})",
            remedy="Download the file again, or pick the unmodified file of its publisher.",
        )


def audit(checkpoint: Checkpoint, recognition: Recognition) -> Audit:
    """Compare a recognised H3 checkpoint with the tensors its layout and its sizes ask for."""
    layout, tensors = recognition.layout, recognition.tensors
    if layout is None or tensors is None:
        raise ValueError(
            f"{checkpoint.path} is a file of kind {recognition.kind}. Only H3 models are audited. Check the kind first."
        )
    blocks, refiner = (sorted(layout.stack_indices(stack, tensors)) for stack in (BLOCKS, REFINER))
    problems = [*_numbering(layout, BLOCKS, blocks), *_numbering(layout, REFINER, refiner)]

    form = recognition.form
    names = native_names(blocks, refiner, gates=recognition.gates > 0, form=form)
    recipes = {name: layout.recipe(name) for name in names}
    for name in (INV_FREQ, *form.optional):  # inv_freq is computed when absent: it holds nothing that was learned
        if name in recipes and not all(source in tensors for source in recipes[name].sources):
            del recipes[name]
    wanted = [source for recipe in recipes.values() for source in recipe.sources]
    missing = [name for name in wanted if name not in tensors]
    unexpected = {name for name in set(tensors).difference(wanted) if not form.is_spare(name)}

    config = None
    if not problems:
        try:
            config = _config(checkpoint, recognition, recipes)
        except ConfigError as error:
            if not missing:
                problems.append(str(error).rstrip("."))
    form_sizes = _form_sizes(recognition, recipes)
    mismatched = _mismatches(recognition, recipes, config, form_sizes) if config else []
    if config:
        problems += _block_count(checkpoint, recognition, config)

    def spelled(found: list[str] | set[str]) -> tuple[str, ...]:
        return tuple(recognition.prefix + name for name in sorted(found, key=natural))

    return Audit(
        config,
        form_sizes,
        {
            name: replace(recipe, sources=tuple(recognition.prefix + source for source in recipe.sources))
            for name, recipe in recipes.items()
        },
        spelled(missing),
        spelled(unexpected),
        tuple(replace(item, name=recognition.prefix + item.name) for item in mismatched),
        tuple(problems),
    )


def _numbering(layout: Layout, stack: str, indices: list[int]) -> list[str]:
    gap = next((number for number, index in enumerate(indices) if number != index), None)
    shown = layout.stacks.get(stack, stack)
    if gap is not None:  # a whole block may be missing, which the names of the others do not tell
        return [f"there are {len(indices)} blocks '{shown}.N' up to number {indices[-1]}, but no number {gap}"]
    return [] if indices else [f"there is no block '{shown}.0'"]


def _block_count(checkpoint: Checkpoint, recognition: Recognition, config: H3Config) -> list[str]:
    """A model that lost its last blocks looks whole; only a number from elsewhere tells."""
    if EXAMPLE_KEY in checkpoint.metadata or recognition.layout is None:
        return []
    found = (config.layers, config.refiner_layers)
    beside = h3_config(checkpoint)
    refiner = beside.get("num_refiner_layers", beside.get("token_refiner_num_layers", found[1]))
    wanted, who = (beside.get("num_layers", found[0]), refiner), "the model of its config.json"
    if config.hidden == RELEASE.hidden and (recognition.prefix == STREAM_PREFIX or "num_layers" not in beside):
        wanted, who = (RELEASE.layers, RELEASE.refiner_layers), "MiniMax-H3"
        if recognition.prefix == STREAM_PREFIX:
            who = "StreamRender-H3"
        elif recognition.form is LOW_RANK:
            wanted, who = (TRIM_LAYERS, RELEASE.refiner_layers), "FastH3 Trim"
    if found == wanted:
        return []
    layout, shown = recognition.layout, []
    for stack, count, needed in zip((BLOCKS, REFINER), found, wanted, strict=True):
        if count != needed:
            spelled = f"{recognition.prefix}{layout.stacks.get(stack, stack)}.{min(count, needed)}.norm1.weight"
            shown.append(f"tensor '{spelled}' is {'not there' if count < needed else 'one too many'}")
    return [
        f"the model has {found[0]} blocks and {found[1]} refiner blocks, {who} has {wanted[0]} and {wanted[1]}: "
        + ", ".join(shown)
    ]


def _form_sizes(recognition: Recognition, recipes: Mapping[str, Recipe]) -> dict[str, int]:
    """Sizes of the modulation's form that no config holds: rank, grid, number of times."""
    tensors = recognition.tensors or {}
    sizes = {}
    for size, (name, dimension) in recognition.form.sizes.items():
        shape = (
            tensors[recipes[name].sources[0]].shape if name in recipes and recipes[name].sources[0] in tensors else ()
        )
        sizes[size] = shape[dimension] if dimension < len(shape) else 0
    return sizes


def _config(checkpoint: Checkpoint, recognition: Recognition, recipes: Mapping[str, Recipe]) -> H3Config:
    """Sizes from the canonical shapes; what no shape tells, from config.json, else in the release's proportions."""
    tensors = recognition.tensors or {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, recipe in recipes.items():
        parts = [tensors[source].shape for source in recipe.sources if source in tensors]
        if len(parts) == len(recipe.sources) and all(parts):
            shapes[name] = (sum(part[0] for part in parts), *parts[0][1:])
    if INV_FREQ not in recipes:
        (head_dim, *_) = shapes.get("blocks.0.attn.q_norm.weight", (RELEASE.head_dim,))
        proportion = RELEASE.head_dim // RELEASE.rope_freqs
        shapes[INV_FREQ] = (int(h3_config(checkpoint).get("rope_freq_dim", head_dim // proportion)),)
    theta = float(h3_config(checkpoint).get("rope_theta", RELEASE.rope_theta))
    return replace(H3Config.from_shapes(shapes), rope_theta=theta)


def _mismatches(
    recognition: Recognition, recipes: Mapping[str, Recipe], config: H3Config, form_sizes: Mapping[str, int]
) -> list[Mismatch]:
    tensors = recognition.tensors or {}
    return [
        Mismatch(source, expected, tensors[source].shape)
        for name, recipe in recipes.items()
        for expected in [recipe.source_shape(native_shape(name, config, recognition.form, form_sizes))]
        for source in recipe.sources
        if source in tensors and tensors[source].shape != expected
    ]


def _listed(what: str, items: tuple[str, ...] | list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    noun = what if len(items) == 1 else what.replace("tensor", "tensors")
    return [f"{len(items)} {noun}: {', '.join(items[:_SHOWN])}{more}"]
