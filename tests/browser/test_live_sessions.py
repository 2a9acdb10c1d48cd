"""Who sees which preview: reload, cancel, second run, two nodes, two tabs, subgraphs, and strangers at the door."""

from __future__ import annotations

import concurrent.futures
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from tab import SAMPLER

PLAYING = "p.frame !== '' && Number(p.frame) > 0"
SLOW = 40  # steps per chunk, where a test needs time in the middle of a render

# A second sampler with all the inputs of the first and a Save Video of its own.
TWIN = f"""() => {{
  const graph = app.graph;
  const copy = (node, x, y) => {{
    const made = node.clone();
    made.pos = [node.pos[0] + x, node.pos[1] + y];
    graph.add(made);
    return made;
  }};
  const first = graph._nodes.find((one) => one.type === "{SAMPLER}");
  const second = copy(first, 0, 900);
  first.inputs.forEach((input, slot) => {{
    const link = graph.links[input.link] ?? graph.links.get?.(input.link);
    if (link) graph.getNodeById(link.origin_id).connect(link.origin_slot, second, slot);
  }});
  second.connect(0, copy(graph._nodes.find((one) => one.type === "SaveVideo"), 0, 900), 0);
  second.widgets.find((one) => one.name === "seed").value = 5;
  return [String(first.id), String(second.id)];
}}"""


def test_a_reload_in_the_middle_comes_back_to_the_render(tabs, quick):
    tab = tabs()
    tab.page.evaluate("() => app.extensionManager.setting.set('Comfy.Workflow.Persist', true)")
    tab.load(quick)
    tab.queue(seed=11, steps=150)  # long enough to come back before the end
    tab.wait_player(PLAYING)
    session = tab.player()["session"]
    tab.reload()
    tab.wait_player(f"p.session === '{session}' && {PLAYING}")
    before = int(tab.player()["chunks"])
    assert before < 5
    tab.wait_player(f"Number(p.chunks) > {before}", 120)
    assert tab.events("chunk")[0]["session"] == session  # what came after the reload was told to the new page
    tab.shot("reloaded")
    tab.page.evaluate("() => { app.api.interrupt(); }")
    tab.wait_player("p.end === 'cancelled'")
    tab.page.evaluate("() => app.extensionManager.setting.set('Comfy.Workflow.Persist', false)")
    states = tab.page.locator(".srh3-timeline").first.get_attribute("data-states").split()
    done = int(tab.player()["chunks"])
    assert set(states[:done]) <= {"ready", "suspect"}  # random weights look suspect
    assert states[done:] == ["queued"] * (5 - done)


def test_cancel_ends_cleanly_and_a_second_run_replaces_the_first(tabs, quick):
    tab = tabs(vue=True, light=True)
    tab.load(quick)
    tab.queue(seed=12, steps=SLOW)
    tab.wait_player(PLAYING)
    tab.page.evaluate("() => { app.api.interrupt(); }")
    assert tab.wait_end()["kind"] == "execution_interrupted"
    tab.wait_player("p.end === 'cancelled'")
    first = tab.player()
    assert "cancelled" in tab.page.locator(".srh3-status").first.inner_text()
    assert 0 < int(first["chunks"]) < 5
    tab.page.evaluate("() => { seen.frames.length = 0; }")
    tab.wait("() => seen.frames.length > 3")  # what exists plays on
    with tab.page.context.expect_page() as popup:
        tab.press("open")
    assert "type=output" in popup.value.url and ".mp4" in popup.value.url
    popup.value.close()
    tab.shot("cancelled_vue_light")

    client = tab.page.evaluate("() => app.api.clientId")
    address = f"{tab.server.url}/streamrender_h3/preview/{first['session']}/state?client={client}"
    assert urllib.request.urlopen(address).status == 200
    tab.queue(seed=13)
    tab.wait_player(f"p.session !== '{first['session']}' && {PLAYING}")
    tab.wait_player("p.end === 'complete' && p.chunks === '5'")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address)

    # the keyboard is enough, and the graph does not hear what the player is told
    strip = tab.page.locator(".srh3-timeline").first
    strip.focus()
    tab.page.keyboard.press(" ")
    tab.wait_player("p.playing === 'false'")
    tab.page.keyboard.press("Home")
    tab.wait_player("p.frame === '0'")
    for key, frame in (("ArrowRight", 1), ("PageUp", 30), ("ArrowLeft", 29), ("End", 63), (".", 0), (",", 63)):
        tab.page.keyboard.press(key)
        tab.wait_player(f"p.frame === '{frame}'")
    tab.page.keyboard.press("Delete")
    assert tab.page.evaluate(f"() => app.graph._nodes.some((one) => one.type === '{SAMPLER}')")
    assert strip.get_attribute("aria-valuenow") == "63"
    assert strip.get_attribute("aria-valuetext").startswith("frame 64 of 64, chunk 5: ")
    unnamed = "() => [...document.querySelectorAll('.srh3-player :is(button, [role=slider])')].filter((one) => !one.ariaLabel)"
    assert tab.page.evaluate(f"{unnamed.replace('=> [', '=> ([')}).length") == 0


def test_two_nodes_stay_apart_and_another_tab_hears_nothing(tabs, quick):
    tab = tabs()
    tab.load(quick)
    other = tabs(beside=tab)
    other.load(quick)
    ids = tab.page.evaluate(TWIN)
    tab.queue(seed=4)
    assert tab.wait_end()["kind"] == "execution_success"
    for number in (0, 1):
        tab.wait_player("p.end === 'complete'", number=number)
    opened = {one["node"]: one["session"] for one in tab.events("open")}
    assert sorted(opened) == sorted(ids) and len(set(opened.values())) == 2
    assert [tab.player(number)["session"] for number in (0, 1)] == [opened[key] for key in ids]
    views = []
    for number in (0, 1):
        tab.page.locator(".srh3-timeline").nth(number).focus()
        tab.page.keyboard.press("ArrowRight")  # pauses
        tab.page.keyboard.press("Home")
        tab.wait_player("p.frame === '0' && p.playing === 'false'", number=number)
        views.append(np.array(tab.pixels(number)))
    assert np.abs(views[0] - views[1]).mean() > 2  # their seeds differ
    assert other.page.evaluate("() => seen.events.length") == 0
    assert other.player()["session"] == "" and "empty" in other.player()

    strangers_get_nothing(tab, other, opened[ids[0]])


def strangers_get_nothing(tab, other, session):
    """Against the real server: foreign clients, paths that climb, absurd numbers, and a crowd."""
    mine, foreign = (one.page.evaluate("() => app.api.clientId") for one in (tab, other))
    base = f"{tab.server.url}/streamrender_h3/preview"
    assert mine != foreign

    def status(path):
        try:
            with urllib.request.urlopen(base + path, timeout=30) as answer:
                return answer.status if answer.read() else 204
        except urllib.error.HTTPError as error:
            return error.code

    assert status(f"/{session}/seg/0.m4s?client={mine}") == 200
    bad = [
        f"/{session}/state",
        f"/{session}/state?client={foreign}",
        f"/{session}/seg/0.m4s?client={foreign}",
        f"/{'f' * 32}/state?client={mine}",
        f"/..%2f{session}/state?client={mine}",
        f"/{session}/seg/..%2f0.m4s?client={mine}",
        f"/{session}/seg/{10**30}.m4s?client={mine}",
        f"/{session}/frames/{10**30}?client={mine}",
    ]
    assert [status(path) for path in bad] == [404] * len(bad)

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        crowd = [pool.submit(status, f"/{session}/frames/{number % 5}?client={mine}") for number in range(50)]
        waits = []
        while not all(one.done() for one in crowd):
            started = time.perf_counter()
            tab.server.get("/queue")
            waits.append(time.perf_counter() - started)
        assert [one.result() for one in crowd] == [200] * 50
    assert max(waits, default=0) < 3


def test_a_sampler_in_a_subgraph_has_its_player_and_workflow_tabs_do_not_mix(tabs, quick):
    tab = tabs(policy=True, vue=True)
    tab.load(quick, "first drive")
    made = tab.page.evaluate(
        f"""() => {{
          const node = app.graph._nodes.find((one) => one.type === "{SAMPLER}");
          const made = app.graph.convertToSubgraph(new Set([node]));
          return [String(made.node.id), String(made.subgraph.nodes[0].id)];
        }}"""
    )
    tab.page.evaluate(
        """() => {
          const outer = app.graph._nodes.find((one) => one.subgraph);
          outer.subgraph.nodes[0].widgets.find((one) => one.name === "seed").value = 21;
          app.canvas.openSubgraph?.(outer.subgraph, outer);
          app.queuePrompt(0, 1);
        }"""
    )
    assert tab.wait_end()["kind"] == "execution_success"
    assert {one["node"] for one in tab.events("open")} == {":".join(made)}
    tab.wait_player(f"p.end === 'complete' && {PLAYING}")
    assert tab.player()["source"] == "pictures"
    tab.shot("subgraph")
    session = tab.player()["session"]

    # the same graph in another workflow tab: same node ids, but it never rendered
    tab.page.evaluate("() => app.canvas.setGraph(app.graph)")
    tab.load(quick, "second drive")
    tab.page.wait_for_timeout(700)
    assert tab.player()["session"] == ""
    tab.queue(seed=22)
    tab.wait_player(PLAYING)
    assert tab.player()["session"] not in ("", session)
