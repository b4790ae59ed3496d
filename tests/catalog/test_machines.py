"""The machine tables: every row is sourced and sane, and its figures agree with what others measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from planner import toml
from planner.catalog import tables
from planner.catalog.names import gpu_key, normalise, split_memory
from planner.errors import PlannerError, UnknownName
from planner.units import GIB

SHARED = Path(__file__).parents[2].parent / "shared" / "data"

FITTED = {
    *("V100-16G", "V100-32G", "V100-16G-PCIe", "V100-32G-PCIe"),
    *("A100-40G", "A100-80G", "A800-80G", "B200-180G"),
}
"""Cards whose efficiency was set on steps or shapes measured since: the source of their rows says on which."""

OBSERVED_GIB = [
    # torch's total_memory in GiB as seen in public messages: least, most
    ("A100-80G", 79.14, 79.35),
    ("A800-80G", 79.14, 79.35),
    ("H100-80G", 79.10, 79.35),
    ("A100-40G", 39.39, 40.00),  # 40,536 to 40,960 MiB in nvidia-smi; 39.59 in bigscience-workshop/t-zero#12
    ("H200-141G", 139.80, 139.80),
    ("B200-180G", 178.36, 178.36),
    ("V100-32G", 31.74, 31.75),  # open-mmlab/mmdetection3d#697
    ("V100-16G", 15.75, 15.78),
    ("RTX-3090-24G", 23.69, 23.70),
    ("A6000-48G", 44.55, 44.55),  # with ECC
    ("A10G-24G", 21.9, 22.2),
    ("RTX-4090-24G", 23.6, 23.68),  # ali-vilab/VGen#104 23.64
    ("L40-48G", 44.40, 44.40),  # QwenLM/Qwen3-VL#2097
    ("L40S-48G", 44.42, 44.42),  # stepfun-ai/Step-Video-T2V#8
    ("L4-24G", 22.03, 22.03),  # ArcInstitute/evo2#190
    ("A10-24G", 21.99, 21.99),  # zai-org/CogVLM#236
    ("A30-24G", 23.53, 23.53),  # google/RB-Modulation#5
    ("H20-96G", 95.00, 95.00),  # modelscope/DiffSynth-Studio#1238
    ("H100-NVL-94G", 93.00, 93.00),  # ali-vilab/VACE#56
    ("RTX-5090-32G", 31.36, 31.37),  # TrajectoryCrafter#20, Wan2.1#465
    ("MI355X-288G", 287.98, 287.98),  # ROCm/TheRock#2118
]

DATASHEET_PEAKS = [
    # dense bf16 (fp16 where there is no bf16) TFLOP/s and HBM GB/s, NVIDIA and AMD product pages
    ("A100-80G", 312, 2039),
    ("A100-40G", 312, 1555),
    ("H100-80G", 989, 3350),
    ("H200-141G", 989, 4800),
    ("B200-180G", 2250, 8000),
    ("V100-32G", 125, 900),
    ("T4-16G", 65, 320),
    ("L40S-48G", 362, 864),
    ("MI300X-192G", 1307, 5300),
    ("RTX-4090-24G", 165.2, 1008),
]


@pytest.fixture(scope="module")
def gpus() -> tuple[tables.Row, ...]:
    rows = tables.gpu_rows()
    assert len(rows) >= 45
    return rows


@pytest.fixture(scope="module")
def nodes() -> tuple[tables.Row, ...]:
    rows = tables.node_rows()
    assert len(rows) >= 60
    return rows


def test_every_gpu_row_names_a_source_and_only_known_unverified_keys(gpus):
    for row in gpus:
        assert len(row["source"]) > 20, row["name"]
        assert set(row.get("unverified", [])) <= set(row), row["name"]


def test_every_node_row_names_a_source_and_only_known_unverified_keys(nodes):
    for row in nodes:
        assert len(row["source"]) > 20, row["name"]
        assert set(row.get("unverified", [])) <= set(row), row["name"]


def test_rows_have_no_misspelt_key(gpus, nodes):
    about = {"source", "unverified", "notes", "name"}
    peaks = {"bf16_tflop_per_s", "fp16_tflop_per_s", "fp32_tflop_per_s", "gemm_efficiency", "attention_efficiency"}
    sizes = {"memory_gib", "marketed_gb", "also_gb", "hbm_gb_per_s", "host_link_gb_per_s", "tdp_w", "usd_per_hour"}
    kind = {"families", "full_name", "not_to_confuse", "devices_per_card", "box_gpus", "link", "network"}
    assert {key for row in gpus for key in row} == about | peaks | sizes | kind
    node = {"aliases", "provider", "gpu", "gpus", "vcpus", "cpu_cores", "host_ram_gib", "nvme_tb", "nvme", "link"}
    assert {key for row in nodes for key in row} == about | node | {"network_gbit_per_s", "fabric", "usd_per_hour"}


def test_gpu_figures_are_in_a_sane_range(gpus):
    for row in gpus:
        name = row["name"]
        assert 0.88 * row["marketed_gb"] * 1e9 / GIB < row["memory_gib"] <= row["marketed_gb"], name
        peak = row.get("bf16_tflop_per_s", row.get("fp16_tflop_per_s"))
        assert 15 < peak < 3000, name
        assert row["fp32_tflop_per_s"] <= peak, name
        assert 25 < peak * 1e12 / (row["hbm_gb_per_s"] * 1e9) < 520, f"{name}: FLOP per byte of HBM"
        assert 0.3 < row["gemm_efficiency"] < 0.95, name
        assert 0.1 < row["attention_efficiency"] < 0.7, name
        assert row["host_link_gb_per_s"] in (12, 12.5, 24, 50, 380), name
        assert 0.1 < row.get("usd_per_hour", 1) < 20, name
        assert 50 < row["tdp_w"] < 1500, name
        assert f"{row['marketed_gb']}G" in name


def test_cards_older_than_ampere_have_no_bf16(gpus):
    without = {row["name"].split("-")[0] + row["name"].split("-")[1] for row in gpus if "bf16_tflop_per_s" not in row}
    assert without == {"P10016G", "V10016G", "V10032G", "T416G", "RTX2080", "RTX6000", "RTX8000"}
    assert tables.find_gpu("V100-32G").has_bf16 is False
    assert tables.find_gpu("A100-80G").has_bf16 is True


@pytest.mark.parametrize(("name", "least", "most"), OBSERVED_GIB)
def test_memory_is_what_torch_reports(name, least, most):
    memory_gib = tables.find_gpu(name).memory_bytes / GIB
    assert least - 0.02 <= memory_gib <= most + 0.02


@pytest.mark.parametrize(("name", "peak", "bandwidth"), DATASHEET_PEAKS)
def test_peaks_are_the_dense_ones_of_the_datasheet(name, peak, bandwidth):
    gpu = tables.find_gpu(name)
    assert (gpu.bf16_flop_per_s or gpu.fp16_flop_per_s) == pytest.approx(peak * 1e12)
    assert gpu.hbm_bytes_per_s == pytest.approx(bandwidth * 1e9)


def test_every_link_network_and_gpu_that_a_row_names_exists(gpus, nodes):
    for row in gpus:
        assert tables.find_link(row["link"]).bus_bytes_per_s
        assert tables.find_network(row["network"]).bytes_per_s >= 0.5e9  # 10 Gbit/s Ethernet is the slowest
        for other in row.get("not_to_confuse", ()):
            assert other in tables.gpu_names()
    for row in nodes:
        node = tables.find_node(row["name"])
        assert tables.find_gpu(node.gpu).name == node.gpu == row["gpu"]
        assert tables.find_link(node.link)


def test_link_rows_ascend_in_ranks_and_are_sourced():
    rows = tables.link_rows()
    assert len(rows) >= 20
    for row in rows:
        ranks = [r for r, _ in row["bus_gb_per_s"]]
        assert ranks == sorted(set(ranks)), row["name"]
        assert ranks[0] == 2, row["name"]
        assert all(3 < gb < 1000 for _, gb in row["bus_gb_per_s"]), row["name"]
        assert len(row["source"]) > 20


def test_two_v100_are_six_times_slower_than_eight():
    link = tables.find_link("nvlink-mesh-v100")  # vTrain's measured tables, https://github.com/VIA-Research/vTrain
    assert [round(link.bus(n) / 1e9, 1) for n in (2, 4, 8)] == [22.5, 85.4, 134.5]
    assert link.bus(8) / link.bus(2) == pytest.approx(6, abs=0.1)


def test_measured_bus_bandwidths_are_the_published_ones():
    assert tables.find_link("nvswitch-a100").bus(8) == 229e9
    assert tables.find_link("nvswitch-h100").bus(8) == 365e9
    assert tables.find_link("nvswitch-b200").bus(8) == 682e9
    assert [tables.find_link("pcie-gen4").bus(n) / 1e9 for n in (2, 4, 8)] == [20, 20, 12.5]


def test_node_figures_are_in_a_sane_range(nodes):
    for row in nodes:
        name, count = row["name"], row["gpus"]
        assert 1 <= count <= 16, name
        assert 12 <= row["host_ram_gib"] / count <= 600, name
        assert row["cpu_cores"] in (row["vcpus"], row["vcpus"] // 2), name
        assert ("nvme_tb" in row) == ("nvme" in row), name
        assert ("network_gbit_per_s" in row) == ("fabric" in row), name
        assert 0.2 < row.get("usd_per_hour", count) / count < 20, name


@pytest.mark.parametrize(
    ("name", "gpu", "count", "ram", "network_gbit"),
    [
        # vendor pages: aws.amazon.com/ec2/instance-types (p4, p5), learn.microsoft.com (ND A100 v4, ND H100 v5), DGX
        ("p4d.24xlarge", "A100-40G", 8, 1152, 400),
        ("p5.48xlarge", "H100-80G", 8, 2048, 3200),
        ("Standard_ND96asr_v4", "A100-40G", 8, 900, 1600),
        ("Standard_ND96isr_H100_v5", "H100-80G", 8, 1900, 3200),
        ("a2-ultragpu-8g", "A100-80G", 8, 1360, 100),
        ("g5.48xlarge", "A10G-24G", 8, 768, 100),
        ("dgx-a100-80", "A100-80G", 8, 2048, 1600),
    ],
)
def test_well_known_nodes_have_the_published_figures(name, gpu, count, ram, network_gbit):
    node = tables.find_node(name)
    assert (node.gpu, node.gpus, node.host_ram_gib) == (gpu, count, ram)
    assert node.network is not None
    assert node.network.gbit_per_s == network_gbit
    assert node.network.bytes_per_s < network_gbit * 1e9 / 8


def test_only_the_rates_of_gpu_ports_count_where_a_node_has_a_host_port_too():
    network = tables.find_node("a3-highgpu-8g").network  # 1000 Gbit/s in all, 4 x 200 for the GPUs
    assert network is not None
    assert network.gbit_per_s == 800


def test_a_node_without_drives_has_no_drive_rates():
    bare, full = tables.find_node("p3.8xlarge"), tables.find_node("p4d.24xlarge")
    assert (bare.nvme_bytes, bare.nvme_read_bytes_per_s, bare.nvme_write_bytes_per_s) == (None, None, None)
    assert (full.nvme_bytes, full.nvme_read_bytes_per_s, full.nvme_write_bytes_per_s) == (8 * 10**12, 10e9, 5e9)


def test_names_read_without_parsing_are_the_names_of_the_parsed_rows():
    for file, table, others in (("gpus.toml", "gpu", "families"), ("nodes.toml", "node", "aliases")):
        parsed = toml.loads(tables._text(file))[table]
        assert [(row["name"], *row[others]) for row in parsed] == list(tables._spellings(file, table))


def test_a_family_and_a_size_lead_to_one_row_and_names_are_unique(gpus, nodes):
    sized = [(gpu_key(family), size) for row in gpus for family in row["families"] for size in _sizes(row)]
    assert len(sized) == len(set(sized))
    names = [gpu_key(name) for name in tables.gpu_names()]
    assert len(names) == len(set(names))
    spellings = [normalise(s) for row in nodes for s in (row["name"], *row["aliases"])]
    assert len(spellings) == len(set(spellings))
    assert not set(spellings) & {gpu_key(s) for row in gpus for s in (row["name"], *row["families"])}


def _sizes(row: tables.Row) -> tuple[float, ...]:
    return (row["marketed_gb"], *row.get("also_gb", ()))


def test_every_canonical_name_finds_itself(gpus):
    for name in tables.gpu_names():
        assert tables.find_gpu(name).name == name
        assert tables.find_gpu(f"  {name.lower().replace('-', ' ')} ").name == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        # `nvidia-smi --query-gpu=name` and torch.cuda.get_device_name, as seen in public logs
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA A100 80GB PCIe", "A100-80G-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40G-PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A800-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("NVIDIA H100 PCIe", "H100-80G-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL-94G"),
        ("NVIDIA H200", "H200-141G"),
        ("NVIDIA B200", "B200-180G"),
        ("NVIDIA GH200 480GB", "GH200-96G"),
        ("Tesla V100-SXM2-16GB", "V100-16G"),
        ("Tesla V100-SXM2-32GB", "V100-32G"),
        ("Tesla V100-PCIE-32GB", "V100-32G-PCIe"),
        ("Tesla T4", "T4-16G"),
        ("NVIDIA L4", "L4-24G"),
        ("NVIDIA L40S", "L40S-48G"),
        ("NVIDIA A10G", "A10G-24G"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090-24G"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24G"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti-11G"),
        ("NVIDIA RTX A6000", "A6000-48G"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada-48G"),
        ("Quadro RTX 6000", "RTX-6000-24G"),
        ("Quadro RTX 8000", "RTX-8000-48G"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-96G"),
        ("AMD Instinct MI300X", "MI300X-192G"),
    ],
)
def test_names_that_drivers_report_are_found(reported, name):
    assert tables.find_gpu(reported).name == name


def test_memory_in_a_name_is_no_memory_size():
    assert split_memory("A10G") == ("A10G", ())
    assert split_memory("A10G-24G")[1] == (24.0,)
    assert split_memory("GB200 186GB")[1] == (186.0,)
    assert split_memory("4 GB200")[1] == ()


def test_an_ambiguous_name_takes_the_smallest_card_and_says_so():
    for name, expected, other in (("A100", "A100-40G", "A100-80G"), ("V100", "V100-16G", "V100-32G")):
        row, notes = tables.identify_gpu(name)
        assert row["name"] == expected
        assert len(notes) == 1
        assert name in notes[0]
        assert other in notes[0]
    assert tables.identify_gpu("A100-PCIe")[0]["name"] == "A100-40G-PCIe"
    assert tables.identify_gpu("A100-80G") == (tables.identify_gpu("A100 80GB")[0], ())


def test_a_size_that_no_card_of_the_name_has_is_an_error_that_lists_the_cards():
    with pytest.raises(PlannerError) as error:
        tables.find_gpu("A100-50G")
    assert error.value.message == "no `A100` has `50` GB of memory"
    assert error.value.hint == "there is `A100-40G` and `A100-80G`"
    with pytest.raises(PlannerError) as error:
        tables.find_gpu("RTX6000 48GB")
    assert "RTX-6000-Ada-48G" in error.value.hint


def test_unknown_names_are_errors_with_a_suggestion():
    with pytest.raises(UnknownName) as error:
        tables.find_gpu("A100-80")
    assert error.value.message == "no GPU is called `A100-80`"
    assert "`A100-80G`" in error.value.hint
    with pytest.raises(UnknownName) as error:
        tables.find_node("p4d.24xlarg")
    assert "`p4d.24xlarge`" in error.value.hint


@pytest.mark.skipif(not SHARED.is_dir(), reason="the research data beside the checkout is absent")
def test_the_tables_agree_with_the_research_data(gpus, nodes):
    research = {g["name"].replace(" (per GPU)", ""): g for g in json.loads((SHARED / "gpus.json").read_text())["gpus"]}
    compared = 0
    for row in gpus:
        known = research[row["full_name"]]
        assert row["hbm_gb_per_s"] == known["hbm_gb_s"]
        assert row.get("bf16_tflop_per_s") == (known["tflops_dense"]["bf16"] if known["bf16"] else None)
        if row["name"] not in FITTED:
            assert row["gemm_efficiency"] == known["gemm_eff_default"]
        low, high = known["price_usd_per_gpu_hour"] or (None, None)
        if low:
            assert row["usd_per_hour"] == pytest.approx(math.sqrt(low * high), abs=0.006)
        compared += 1
    assert compared == len(research) == 61
    instances = {n["name"]: n for n in json.loads((SHARED / "instances.json").read_text())["instances"]}
    same = [row for row in nodes if row["name"] in instances]
    assert len(same) >= 95
    for row in same:
        assert row["host_ram_gib"] == instances[row["name"]]["host_ram"]
        assert row.get("network_gbit_per_s") == instances[row["name"]]["gpu_net_gbit_s"]
