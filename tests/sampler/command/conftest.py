"""The command `render` with good inputs, and the guard of one that must be refused."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from command_inputs import FRAMES, Command, Inputs, write_clip, write_picture
from streamrender_h3.nodes.codec import TAEDecoder, TAEEncoder
from streamrender_h3.nodes.look.qwen import QwenEncoder
from streamrender_h3.nodes.model import H3
from streamrender_h3.workflows.nano.weights import write_weights


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    write_clip(folder / "clip.mp4", FRAMES)
    write_picture(folder / "picture.png")
    (folder / "prompt.txt").write_text("a road by the sea", encoding="utf-8")
    return Inputs(folder, write_weights(folder / "weights", seed=4))


@pytest.fixture
def command(inputs, tmp_path, capsys) -> Command:
    before = signal.getsignal(signal.SIGTERM)
    yield Command(inputs, tmp_path, capsys)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def forwards(monkeypatch) -> list[str]:
    """Names of the networks that ran: text encoder, video encoder, decoder, transformer."""
    ran: list[str] = []

    def watch(owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            ran.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, watched)

    watch(QwenEncoder, "encode", "text encoder")
    watch(TAEEncoder, "encode_picture", "video encoder")
    watch(TAEEncoder, "stream", "video encoder")
    watch(TAEDecoder, "stream", "decoder")
    watch(H3, "forward", "transformer")
    watch(H3, "refine_text", "transformer")
    return ran


@pytest.fixture
def refused(command, forwards, tmp_path):
    """Runs the command, which must fail in one line with `words` before any network ran and leave nothing behind."""

    def refused(*words: str, ran: tuple[str, ...] = (), **changes: Any) -> str:
        before = sorted(tmp_path.rglob("*"))
        code, error = command.run(**changes)
        assert code == 2, error
        assert error.startswith("error: ") and error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error
        for word in words:
            assert word in error, f"{word!r} is not in: {error}"
        assert tuple(forwards) == ran
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return refused
