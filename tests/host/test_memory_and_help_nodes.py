"""In a real ComfyUI: weights quantised on load with the plan on the node, the prompt builder, the doctor."""

from __future__ import annotations

import bench as tools


def text_of(result, node):
    return "\n".join(result.history["outputs"][node]["text"])


def test_weights_quantised_on_load_render_and_the_plan_is_on_the_node(bench):
    prompt = bench.prompt(21)
    bench.inputs_of(prompt, "SRH3_LoadModel")["weights"] = "fp8"
    made = bench.render(prompt)
    assert made.metrics["frames"] == bench.FRAMES
    plan = text_of(made.result, tools.key_of(prompt, "SRH3_LoadModel"))
    assert plan.startswith("memory plan:") and "fp8 rows" in plan and "prefix banks" in plan
    log = bench.server.log_text()
    assert "layers quantised on load to fp8" in log and "memory plan:" in log
    assert "fp8 weights on cpu are dequantised" in log


def test_the_prompt_builder_names_the_classes_of_the_clip(bench):
    prompt = {
        key: node
        for key, node in bench.prompt(22).items()
        if node["class_type"] in ("LoadVideo", "SRH3_SemanticPaletteEncode")
    }
    typed = {"scene": "A drive", "atmosphere": "fog", "hero": "a red car", "rivals": "", "surroundings": "hills"}
    builder = tools.add(
        prompt,
        "SRH3_PromptBuilder",
        **typed,
        sound="The engine hums.",
        objects="road = gravel",
        clip=[tools.key_of(prompt, "SRH3_SemanticPaletteEncode"), 0],
    )
    shown = tools.add(prompt, "PreviewAny", source=[builder, 0])
    result = bench.run(prompt)
    result.raise_for_failure()
    text = text_of(result, shown)
    assert text.startswith("subject_definitions:") and text.endswith("N/A")
    assert "= gravel" in text and "a red car" in text
    assert "sky" not in text.split("Color key:")[1].split("\n")[0]  # the clip shows four classes, not the sky


def test_the_doctor_reports_in_the_host(bench):
    prompt: dict = {}
    doctor = tools.add(prompt, "SRH3_Doctor", files=True)
    result = bench.run(prompt)
    result.raise_for_failure()
    text = text_of(result, doctor)
    for part in ("machine", "packages", "attention", "chosen here", "files"):
        assert f"\n{part}\n" in f"\n{text}"
    assert "h3_example.safetensors.index.json" in text
