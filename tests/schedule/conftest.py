"""Golden plan of the streaming planner, and the policies it was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamrender_h3.nodes.schedule import Schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "stream_plan.json"

FIELD_OF_POLICY = {
    "sink_size": "sink",
    "window_size": "window",
    "chunk_size": "chunk",
    "bootstrap_size": "bootstrap",
    "merge_single_frame_units": "merged",
    "audio_lookahead_latents": "audio_left",
    "audio_right_lookahead_latents": "audio_right",
    "sink_switch_at": "sink_switch_at",
    "sink_size_after_switch": "sink_after_switch",
}


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="session")
def golden_schedules(golden: dict[str, Any]) -> dict[str, Schedule]:
    return {
        config["name"]: Schedule(**{FIELD_OF_POLICY[key]: value for key, value in config["policy"].items()})
        for config in golden["configs"]
    }
