"""A random tiny transformer and the conditions of a tiny stream."""

import pytest
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.model import H3, H3Config, build_tables
from streamrender_h3.nodes.sampler import Conditions
from streamrender_h3.nodes.schedule import Geometry
from streamrender_h3.workflows.nano.weights import write_weights

TINY = H3Config(
    hidden=96,
    layers=3,
    refiner_layers=2,
    heads=4,
    head_dim=32,
    ffn=160,
    latent_channels=24,
    audio_channels=32,
    text_dim=80,
    freq_dim=256,
    time_hidden=96,
    time_dim=48,
    rope_freqs=4,
)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Norm weights near 1, everything else N(0, 0.08): default initialisation hides layout errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if parameter.ndim == 1 and "norm" in name else 0.08 * noise)


@pytest.fixture(scope="session")
def full_model() -> H3:
    model = H3(TINY, dtype=torch.float32).eval()
    randomise(model, 0)
    return model


@pytest.fixture(scope="session")
def tables_for(full_model):
    state = full_model.state_dict()
    return lambda grid: build_tables(state.__getitem__, TINY, grid.h3_times(), torch.float32)


@pytest.fixture(scope="session")
def conditions() -> Conditions:
    generator = torch.Generator().manual_seed(1)
    media = [1, 1, 0, 0, 0, 0, 0]
    tags = torch.tensor(media + [1] * 6)
    return Conditions(
        text=torch.randn(len(tags), TINY.text_dim, generator=generator),
        tags=tags,
        media_rows=len(media),
        picture=torch.randn(24, 1, 4, 6, generator=generator),
        geometry=Geometry(target=(4, 6), reference=(4, 4), picture=(4, 6)),
    )


@pytest.fixture(scope="session")
def tiny_parts(tmp_path_factory):
    """(model, encoder, decoder) of the tiny random checkpoint set, loaded from its files."""
    files = write_weights(tmp_path_factory.mktemp("weights"), seed=4)
    model = load_h3(files.model, dtype=torch.float32, device="cpu")
    return model, load_encoder(files.codec), load_decoder(files.codec)
