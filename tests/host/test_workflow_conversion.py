"""UI graph -> API graph, as the browser does it (no server needed)."""

from __future__ import annotations

import io

import pytest
from streamrender_h3.nodes.batch.prompt import WorkflowError, to_api
from streamrender_h3.workflows.run import Event, ProgressBar, Result

INFO = {
    "Load": {
        "display_name": "Load It",
        "input": {"required": {"file": [["a.png", "b.png"], {"image_upload": True}]}},
        "input_order": {"required": ["file"]},
    },
    "Work": {
        "input": {
            "required": {
                "image": ["IMAGE", {}],
                "seed": ["INT", {"default": 0, "control_after_generate": True}],
                "mode": ["COMBO", {"options": ["x", "y"], "default": "x"}],
            },
            "optional": {
                "mask": ["MASK", {}],
                "scale": ["FLOAT", {"default": 1.5}],
                "text": ["STRING", {"forceInput": True}],
                "label": ["STRING", {"default": "none"}],
            },
        },
    },
    "Save": {"input": {"required": {"image": ["IMAGE", {}], "prefix": ["STRING", {"default": "out"}]}}},
    "Words": {"input": {"required": {"value": ["STRING", {}]}}},
}


def node(key, kind, *, inputs=(), outputs=(), values=(), mode=0, **more):
    return {
        "id": key,
        "type": kind,
        "mode": mode,
        "inputs": [{"name": name, "type": type_, "link": link, **extra} for name, type_, link, extra in inputs],
        "outputs": [{"name": type_, "type": type_, "links": links} for type_, links in outputs],
        "widgets_values": values if isinstance(values, dict) else list(values),
        **more,
    }


def graph(*middle, links):
    load = node(1, "Load", outputs=[("IMAGE", [1])], values=["b.png", "image"])
    save = node(9, "Save", inputs=[("image", "IMAGE", 9, {})], values=["result"])
    return {"nodes": [load, *middle, save], "links": links}


def work(mode=0, values=(7, "randomize", "y", 2.5, "hello"), inputs=()):
    return node(
        2, "Work", inputs=[("image", "IMAGE", 1, {}), *inputs], outputs=[("IMAGE", [9])], values=values, mode=mode
    )


PLAIN = [[1, 1, 0, 2, 0, "IMAGE"], [9, 2, 0, 9, 0, "IMAGE"]]


def test_values_follow_the_servers_order_and_the_seeds_control_box_is_skipped():
    api = to_api(graph(work(), links=PLAIN), INFO)
    assert api["2"]["inputs"] == {"image": ["1", 0], "seed": 7, "mode": "y", "scale": 2.5, "label": "hello"}
    assert api["1"] == {"class_type": "Load", "inputs": {"file": "b.png"}, "_meta": {"title": "Load It"}}
    assert api["9"]["inputs"] == {"image": ["2", 0], "prefix": "result"}


def test_a_seed_without_control_box_keeps_its_neighbours():
    api = to_api(graph(work(values=(7, "y", 2.5, "hello")), links=PLAIN), INFO)
    assert (
        api["2"]["inputs"]["seed"] == 7 and api["2"]["inputs"]["mode"] == "y" and api["2"]["inputs"]["label"] == "hello"
    )


def test_missing_values_become_the_servers_defaults():
    api = to_api(graph(work(values=(7, "fixed")), links=PLAIN), INFO)
    assert api["2"]["inputs"] == {"image": ["1", 0], "seed": 7, "mode": "x", "scale": 1.5, "label": "none"}


def test_values_stored_by_name_win():
    middle = work(values={"seed": 3, "mode": "y"})
    assert to_api(graph(middle, links=PLAIN), INFO)["2"]["inputs"]["seed"] == 3
    middle = work()
    middle["widgets_values_named"] = {"seed": 5, "label": "named"}
    inputs = to_api(graph(middle, links=PLAIN), INFO)["2"]["inputs"]
    assert inputs["seed"] == 5 and inputs["label"] == "named"


def test_a_linked_widget_takes_the_link_and_keeps_its_place_in_the_values():
    words = node(5, "Words", outputs=[("STRING", [5])], values=["spoken"])
    middle = work(inputs=[("scale", "FLOAT", 5, {"widget": {"name": "scale"}})])
    api = to_api(graph(words, middle, links=[*PLAIN, [5, 5, 0, 2, 1, "FLOAT"]]), INFO)
    assert api["2"]["inputs"]["scale"] == ["5", 0]
    assert api["2"]["inputs"]["label"] == "hello"


def test_a_bypassed_node_hands_its_input_on():
    api = to_api(graph(work(mode=4), links=PLAIN), INFO)
    assert set(api) == {"1", "9"}
    assert api["9"]["inputs"]["image"] == ["1", 0]


def test_a_muted_node_is_gone_and_what_needs_it_is_named():
    with pytest.raises(WorkflowError, match=r"node 9 \(Save\): input image is not connected"):
        to_api(graph(work(mode=2), links=PLAIN), INFO)


def test_reroutes_are_followed_and_notes_dropped():
    reroute = node(3, "Reroute", inputs=[("", "*", 1, {})], outputs=[("IMAGE", [3])])
    again = node(4, "Reroute", inputs=[("", "*", 3, {})], outputs=[("IMAGE", [9])])
    links = [[1, 1, 0, 3, 0, "*"], [3, 3, 0, 4, 0, "*"], [9, 4, 0, 9, 0, "IMAGE"]]
    api = to_api(graph(reroute, again, node(6, "Note", values=["hi"]), links=links), INFO)
    assert set(api) == {"1", "9"}
    assert api["9"]["inputs"]["image"] == ["1", 0]


def test_a_primitive_becomes_its_value():
    primitive = node(5, "PrimitiveNode", outputs=[("INT", [5])], values=[42, "fixed"])
    middle = work(inputs=[("seed", "INT", 5, {"widget": {"name": "seed"}})])
    api = to_api(graph(primitive, middle, links=[*PLAIN, [5, 5, 0, 2, 1, "INT"]]), INFO)
    assert api["2"]["inputs"]["seed"] == 42
    assert set(api) == {"1", "2", "9"}


def test_an_unknown_node_is_named():
    with pytest.raises(WorkflowError, match="node 7: the server has no node type Strange"):
        to_api(graph(work(), node(7, "Strange"), links=PLAIN), INFO)


def test_subgraphs_are_refused_with_a_remedy():
    with pytest.raises(WorkflowError, match="unpack"):
        to_api({**graph(work(), links=PLAIN), "definitions": {"subgraphs": [{}]}}, INFO)


def test_an_api_graph_passes_through():
    api = to_api(graph(work(), links=PLAIN), INFO)
    assert to_api(api, INFO) == api


def test_a_failed_node_is_reported_in_its_own_words():
    data = {"node_id": "2", "node_type": "Work", "exception_message": "the clip is empty\n"}
    result = Result("id", Event("execution_error", data), {}, [])
    with pytest.raises(WorkflowError, match=r"^node 2 \(Work\): the clip is empty$"):
        result.raise_for_failure()


def test_progress_lines_name_the_node_and_come_once_a_quarter():
    stream = io.StringIO()
    bar = ProgressBar({"2": {"class_type": "Work", "_meta": {"title": "Working"}}}, stream)
    for value in range(1, 101):
        state = {"state": "running", "value": value, "max": 100, "display_node_id": "2"}
        bar(Event("progress_state", {"nodes": {"2": state}}))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[-1].endswith("Working 100/100")


CODEC = {
    "options": [
        {"key": "auto", "inputs": {"required": {}}},
        {"key": "h264", "inputs": {"required": {"crf": ["FLOAT", {"default": 23.0}]}}},
    ]
}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (["auto"], {"codec": "auto"}),
        (["h264", 18.0], {"codec": "h264", "codec.crf": 18.0}),
        (["h264"], {"codec": "h264", "codec.crf": 23.0}),
        ([], {"codec": "auto"}),
    ],
)
def test_a_choice_with_inputs_of_its_own_takes_them_along(stored, expected):
    info = {"Save": {"input": {"required": {"codec": ["COMFY_DYNAMICCOMBO_V3", CODEC]}}}}
    prompt = to_api({"nodes": [node(1, "Save", values=stored)], "links": []}, info)
    assert prompt["1"]["inputs"] == expected
