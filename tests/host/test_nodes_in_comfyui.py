"""What a person sees of the pack in a real ComfyUI: nodes, tooltips, templates, a clean log."""

from __future__ import annotations

import json

import comfy_server

NODES = {
    "SRH3_LoadModel",
    "SRH3_LoadEncoder",
    "SRH3_LoadDecoder",
    "SRH3_SemanticPaletteEncode",
    "SRH3_Look",
    "SRH3_StreamSchedule",
    "SRH3_StreamSampler",
    "SRH3_ClipSampler",
    "SRH3_Text",
    "SRH3_DecodeLatent",
    "SRH3_PromptBuilder",
    "SRH3_Doctor",
    "SRH3_LookChange",
    "SRH3_WriteTablesCheckpoint",
    "SRH3_LoRA",
    "SRH3_ClipList",
}


def ours(object_info):
    return {key: info for key, info in object_info.items() if info["python_module"].endswith(comfy_server.PACK)}


def test_every_node_is_registered_and_collides_with_nothing(object_info):
    # A custom node with the id of a built-in one is dropped in silence: the id would then belong to another module.
    assert set(ours(object_info)) == NODES


def test_display_names_are_plain_words_and_unique(object_info):
    names = {key: info["display_name"] for key, info in object_info.items()}
    for key in NODES:
        assert "_" not in names[key]
        assert [other for other, name in names.items() if name == names[key]] == [key]


def test_every_input_has_a_tooltip(object_info):
    silent = [
        f"{key}.{name}"
        for key, info in ours(object_info).items()
        for group in ("required", "optional")
        for name, spec in (info["input"].get(group) or {}).items()
        if len(spec) < 2 or len(spec[1].get("tooltip") or "") < 10
    ]
    assert silent == []


def test_nodes_describe_themselves_and_name_their_outputs(object_info):
    for key, info in ours(object_info).items():
        assert len(info["description"]) > 20, key
        named = zip(info["output_name"], info["output"], strict=True)
        assert all(name and name != kind for name, kind in named), key


def test_the_seed_can_change_by_itself_after_every_render(object_info):
    assert object_info["SRH3_StreamSampler"]["input"]["required"]["seed"][1]["control_after_generate"] is True


def test_the_example_models_are_offered_by_the_loaders(object_info):
    for key, name in (
        ("SRH3_LoadModel", "model_name"),
        ("SRH3_LoadEncoder", "encoder_name"),
        ("SRH3_LoadDecoder", "decoder_name"),
    ):
        assert any(
            option.startswith("example/") for option in object_info[key]["input"]["required"][name][1]["options"]
        )


def test_the_log_is_clean_after_loading(comfy):
    assert comfy_server.import_trouble(comfy.log_text()) == []
    assert comfy_server.PACK in comfy.log_text()


def test_the_workflow_is_a_template(comfy, shipped):
    names = comfy.get("/api/workflow_templates")[comfy_server.PACK]
    assert "semantic_to_video" in names
    for name in names:
        served = comfy.get(f"/api/workflow_templates/{comfy_server.PACK}/{name}.json")
        assert "nodes" in served and "links" in served
    assert comfy.get(f"/api/workflow_templates/{comfy_server.PACK}/semantic_to_video.json") == shipped


def test_every_template_uses_known_nodes_and_every_node_is_in_one(comfy, object_info, repository):
    used = set()
    for file in (repository / "workflows").glob("*.json"):
        used |= {node["type"] for node in json.loads(file.read_text(encoding="utf-8"))["nodes"]}
    assert used - {"Note", "MarkdownNote"} <= set(object_info)
    assert used >= NODES


def test_the_example_clip_and_picture_are_in_the_input_folder(comfy, bench, shipped):
    for node in shipped["nodes"]:
        if node["type"] in ("LoadVideo", "LoadImage"):
            assert (comfy.base / "input" / node["widgets_values"][0]).is_file()


def test_it_loads_without_optional_packages(comfyui, tmp_path):
    """Beside it a pack that cannot be imported, to see that the scan of the log finds such a one."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "__init__.py").write_text("import a_package_that_does_not_exist\n")
    missing = "triton,flash_attn,comfy_kitchen,sageattention,xformers,bitsandbytes"
    base = tmp_path / "base"
    code, log = comfy_server.quick_test(comfyui, base, packs={"broken": broken}, env=blocking(tmp_path, missing))
    assert code == 0, log
    trouble = comfy_server.import_trouble(log)
    assert trouble and all("broken" in line for line in trouble)
    assert f"custom_nodes/{comfy_server.PACK}" in log.replace("\\", "/")


def blocking(folder, names):
    """The environment of a Python in which importing these packages fails."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        f"BLOCKED = {names.split(',')!r}\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if any(name == b or name.startswith(b + '.') for b in BLOCKED):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r} (blocked by a test)', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    return {"PYTHONPATH": str(folder)}
