"""ComfyUI node: H3 Prompt Builder, the six-section prompt from a clip's classes and a few phrases."""

from __future__ import annotations

import logging

from comfy_api.latest import io

from .. import host
from ..host import CATEGORY, SEMANTIC_CLIP, socket
from ..palette import SemanticClip
from .prompt import EXAMPLE, EXAMPLE_CLASSES, build_prompt, prompt_warnings
from .prompt_fill import phrases_from, present_classes

log = logging.getLogger(host.PACK)

FIELDS = (
    (
        "scene",
        "What is filmed, in one phrase without a full stop, such as 'A photoreal drive on a wet mountain road at dusk'.",
    ),
    ("atmosphere", "Light, weather and surfaces, as phrases with commas."),
    ("hero", "How the car in the lower middle looks: paint, body, marks."),
    ("rivals", "How the other cars look. Left out when no other car occurs in the clip."),
    ("surroundings", "How road, plants, buildings and land look."),
    ("sound", "What is heard, as a sentence without the final full stop."),
)


class PromptBuilderNode(io.ComfyNode):
    """Fills the template the model was trained on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_PromptBuilder",
            display_name="H3 Prompt Builder",
            category=CATEGORY,
            description="Writes the six-section prompt of StreamRender-H3: you give a few phrases, the colour key names the "
            "classes that occur in the clip. Connect the text to H3 Look.",
            inputs=[
                *(
                    io.String.Input(name, default=getattr(EXAMPLE, name), multiline=True, tooltip=tooltip)
                    for name, tooltip in FIELDS
                ),
                io.String.Input(
                    "objects",
                    default="\n".join(f"{name} = {thing}" for name, thing in EXAMPLE.objects.items()),
                    multiline=True,
                    tooltip="What a class stands for here, one 'class = thing' a line, such as 'road = wet asphalt'. A class "
                    "without a line is called by its own name.",
                ),
                socket(SEMANTIC_CLIP).Input(
                    "clip",
                    optional=True,
                    tooltip="From Semantic Palette Encode. Classes that do not occur in it stay out of the prompt. Without a clip "
                    "the classes of the example are named.",
                ),
            ],
            outputs=[io.String.Output("prompt", display_name="prompt", tooltip="The prompt, for H3 Look.")],
        )

    @classmethod
    def execute(
        cls,
        scene: str,
        atmosphere: str,
        hero: str,
        rivals: str,
        surroundings: str,
        sound: str,
        objects: str,
        clip: SemanticClip | None = None,
    ) -> io.NodeOutput:
        phrases = phrases_from(scene, atmosphere, hero, rivals, surroundings, sound, objects)
        present = EXAMPLE_CLASSES if clip is None else present_classes(clip)
        prompt = build_prompt(phrases, present)
        for warning in prompt_warnings(prompt, present):
            log.warning("H3 Prompt Builder: %s", warning)
        return io.NodeOutput(prompt, ui={"text": (prompt,)})
