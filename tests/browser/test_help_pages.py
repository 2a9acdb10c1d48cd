"""Every node has a help page with a picture, in English and in Chinese, where ComfyUI's help panel looks for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "web" / "docs"
NODES = sorted(
    name
    for path in (ROOT / "nodes").rglob("*.py")
    for name in re.findall(r'node_id="(SRH3_\w+)"', path.read_text(encoding="utf-8"))
)
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_node_has_a_page_with_a_picture(name, language):
    page = DOCS / f"{name}.md" if language == "en" else DOCS / name / "zh.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# ") and len(text) > 150
    assert bool(re.search(r"[\u4e00-\u9fff]", text)) == (language == "zh")
    pictures = PICTURE.findall(text)
    assert pictures
    for picture in pictures:  # the panel puts /extensions/<pack>/docs/ in front, whatever the language
        assert (DOCS / picture).stat().st_size < 120_000, picture


def test_there_are_no_pages_of_nodes_that_do_not_exist():
    assert len(NODES) == len(set(NODES)) > 6
    assert {path.stem for path in DOCS.glob("*.md")} == set(NODES)
    assert {path.parent.name for path in DOCS.glob("*/zh.md")} == set(NODES)


def test_the_server_gives_pages_and_pictures(servers):
    server = servers(True)
    base = "/extensions/streamrender_h3/docs"
    assert "语义" in server.read(f"{base}/SRH3_StreamSampler/zh.md").decode()
    text = server.read(f"{base}/SRH3_StreamSampler.md").decode()
    for picture in PICTURE.findall(text):
        assert len(server.read(f"{base}/{picture}")) > 1000
