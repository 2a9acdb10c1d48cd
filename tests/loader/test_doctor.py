"""The doctor: findings with reasons, files by their form, the same from the command line."""

import json

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import doctor
from streamrender_h3.nodes.loader.doctor_command import run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def diagnosis():
    return doctor.diagnose(CPU)


def by_name(diagnosis, part):
    return {finding.name.split(" ")[0]: finding for finding in diagnosis.findings if finding.part == part}


def test_every_package_is_tried_and_says_why_not(diagnosis):
    found = by_name(diagnosis, "packages")
    assert set(found) == set(doctor.PACKAGES)
    assert found["safetensors"].state == found["einops"].state == doctor.YES
    assert "H.264" in found["av"].detail
    for finding in found.values():
        assert finding.state in (doctor.YES, doctor.NO) and finding.detail


def test_a_package_that_breaks_when_it_runs_is_seen(monkeypatch):
    def broken(device):
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setitem(doctor.PACKAGES, "einops", ("needed", broken))
    found = {finding.name.split(" ")[0]: finding for finding in doctor.packages(CPU)}["einops"]
    assert found.state == doctor.NO and "OSError: libcudart.so.12" in found.detail


def test_a_wrong_result_is_no_working_package():
    with pytest.raises(RuntimeError, match="off by"):
        doctor._close(torch.ones(4), torch.full((4,), 1.5), 0.1)


def test_attention_and_products_have_a_reason_each(diagnosis):
    attention = {f.name: f for f in diagnosis.findings if f.part == "attention"}
    for use in ("transformer", "decoder windows"):
        assert attention[f"sdpa, {use}"].state == doctor.YES
        assert "CUDA device" in attention[f"fa2, {use}"].detail
    products = by_name(diagnosis, "products on quantised weights")
    assert set(products) == {"fp8", "int8", "nvfp4", "mxfp8"}
    assert all(finding.state == doctor.NO and finding.detail for finding in products.values())


def test_the_choice_is_told_part_by_part(diagnosis):
    names = [finding.name for finding in diagnosis.findings if finding.part == "chosen here"]
    assert names[:5] == [
        "transformer, attention",
        "decoder windows, attention",
        "sparse clips, attention",
        "transformer, kernels",
        "plain weights",
    ]
    assert "dequantised" in by_name(diagnosis, "chosen here")["fp8"].detail


def test_files_are_recognised_and_shards_counted_once(repository, tmp_path):
    save_file({"a.lora_A.weight": torch.ones(2, 2)}, tmp_path / "adapter.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 20)
    found = {f.name: f for f in doctor.recognised([repository / "workflows" / "assets", tmp_path])}
    assert found["h3_example.safetensors.index.json"].state == doctor.YES
    assert not any("-of-" in name for name in found)
    assert "TAE" in found["taeh3_example.safetensors"].detail
    assert "LoRA" in found["adapter.safetensors"].detail
    assert found["broken.safetensors"].state == doctor.NO


def test_the_command_prints_text_and_json(capsys, tmp_path):
    from argparse import Namespace

    save_file({"video_patch_proj.weight": torch.ones(2, 2)}, tmp_path / "part.safetensors")
    assert run(Namespace(files=[tmp_path], device="cpu", json=True)) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"part", "name", "state", "detail"} == set(findings[0])
    assert any(finding["name"] == "part.safetensors" and finding["state"] == doctor.NO for finding in findings)
    with pytest.raises(ValueError, match="is not there"):
        run(Namespace(files=[tmp_path / "none"], device="cpu", json=False))
