"""ComfyUI node: H3 Doctor."""

from __future__ import annotations

from pathlib import Path

from comfy_api.latest import io

from .. import host
from ..host import CATEGORY
from .doctor import diagnose

KINDS = ("diffusion_models", "vae_approx", "vae", "loras", "text_encoders")


class DoctorNode(io.ComfyNode):
    """Looks at the machine, tries every optional package, recognises the model files."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_Doctor",
            display_name="H3 Doctor",
            category=CATEGORY,
            description="Says what this machine has, really tries every optional package, names the form of each model file, "
            "and tells what a render would use and why. Attach its text to a question about the pack.",
            inputs=[
                io.Boolean.Input(
                    "files",
                    default=True,
                    tooltip="Also read the headers of the files in the model folders and say what each one is.",
                ),
            ],
            outputs=[io.String.Output("report", display_name="report", tooltip="All findings as text.")],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, files: bool) -> float:
        return float("nan")  # the machine may have changed

    @classmethod
    def execute(cls, files: bool) -> io.NodeOutput:
        places = [Path(place) for place in host.model_folders(KINDS)] if files else []
        text = diagnose(host.device(), [place for place in places if place.is_dir()]).as_text()
        return io.NodeOutput(text, ui={"text": (text,)})
