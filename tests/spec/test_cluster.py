"""The grammar of `--gpus`: every spelling people use, every decision with its note, every mistake with one line."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.records.machine import Cluster
from planner.spec import this_machine
from planner.spec.cluster import parse_cluster
from planner.units import GIB

SPELLINGS = [
    # text, nodes, GPUs per node, GPU: spellings seen in public threads, and the ones the help text names
    ("4xA100-80G", 1, 4, "A100-80G"),
    ("2x8xH100-80G", 2, 8, "H100-80G"),
    ("8*A800 80G", 1, 8, "A800-80G"),
    ("8x A100 40G", 1, 8, "A100-40G"),
    ("2Nodes * 8 A100-80G", 2, 8, "A100-80G"),
    ("8卡3090", 1, 8, "RTX-3090-24G"),
    ("8卡A100-80G", 1, 8, "A100-80G"),
    ("2台8张卡A800", 2, 8, "A800-80G"),
    ("6 machine x 8 card x V100 16GB", 6, 8, "V100-16G"),
    ("A10 (4* 24GB)", 1, 4, "A10-24G"),
    ("H100 NVL 96G", 1, 1, "H100-NVL-94G"),
    ("RTX6000 (24GB)", 1, 1, "RTX-6000-24G"),
    ("V100 32G x 8", 1, 8, "V100-32G"),
    ("V100 32G", 1, 1, "V100-32G"),
    ("8×A100-80G", 1, 8, "A100-80G"),
    ("８×Ａ１００-80G", 1, 8, "A100-80G"),
    ("A100-80G", 1, 1, "A100-80G"),
    ("4XH100-80G", 1, 4, "H100-80G"),
    ("4xa100_80g", 1, 4, "A100-80G"),
    ("4 A100-80G", 1, 4, "A100-80G"),
    ("8A100-80G", 1, 8, "A100-80G"),
    ("8 x A100 GPUs 80GB", 1, 8, "A100-80G"),
    ("8xA100 80GB PCIe", 1, 8, "A100-80G-PCIe"),
    ("8xA100-SXM4-80GB", 1, 8, "A100-80G"),
    ("NVIDIA H100 80GB HBM3 x 8", 1, 8, "H100-80G"),
    ("A100 (SXM4 80GB) x 4", 1, 4, "A100-80G"),
    ("8*3090", 1, 8, "RTX-3090-24G"),
    ("3090x4", 1, 4, "RTX-3090-24G"),
    ("RTX3090", 1, 1, "RTX-3090-24G"),
    ("RTX 3090 x 4", 1, 4, "RTX-3090-24G"),
    ("4 x 4090 (24GB)", 1, 4, "RTX-4090-24G"),
    ("2080Ti x 8", 1, 8, "RTX-2080-Ti-11G"),
    ("4xA10G", 1, 4, "A10G-24G"),
    ("A10Gx4", 1, 4, "A10G-24G"),
    ("4xA10G-24G", 1, 4, "A10G-24G"),
    ("8xMI300X", 1, 8, "MI300X-192G"),
    ("MI300Xx8", 1, 8, "MI300X-192G"),
    ("MI300X x 8", 1, 8, "MI300X-192G"),
    ("8x MI300X 192G", 1, 8, "MI300X-192G"),
    ("2x8xMI300X-192G", 2, 8, "MI300X-192G"),
    ("A100-80Gx8", 1, 8, "A100-80G"),
    ("A100 80GB x8", 1, 8, "A100-80G"),
    ("2机8卡 A100 80G", 2, 8, "A100-80G"),
    ("2台 x 8卡 A800 80G", 2, 8, "A800-80G"),
    ("2 nodes of 8 H100 80GB", 2, 8, "H100-80G"),
    ("8 GPUs per node, 2 nodes, A100-80G", 2, 8, "A100-80G"),
    ("4 servers x 4 x L40S", 4, 4, "L40S-48G"),
    ("RTX 6000 Ada x 2", 1, 2, "RTX-6000-Ada-48G"),
    ("4xA6000", 1, 4, "A6000-48G"),
    ("GH200 480GB", 1, 1, "GH200-96G"),
    ("2xGB200", 1, 2, "GB200-186G"),
    ("10x3090", 1, 10, "RTX-3090-24G"),
    ("p4d.24xlarge", 1, 8, "A100-40G"),
    ("2xp4d.24xlarge", 2, 8, "A100-40G"),
    ("2 x p4d.24xlarge", 2, 8, "A100-40G"),
    ("p4d.24xlarge x 2", 2, 8, "A100-40G"),
    ("2 nodes p4d.24xlarge", 2, 8, "A100-40G"),
    ("2x8xp4d.24xlarge", 2, 8, "A100-40G"),
    ("Standard_ND96asr_v4", 1, 8, "A100-40G"),
    ("4xND96asr_v4", 4, 8, "A100-40G"),
    ("gpu_8x_a100_80gb_sxm4", 1, 8, "A100-80G"),
    ("2x gpu_8x_a100_80gb_sxm4", 2, 8, "A100-80G"),
    ("2xa2-ultragpu-8g", 2, 8, "A100-80G"),
    ("a2-megagpu-16g", 1, 16, "A100-40G"),
    ("dgx-a100-80", 1, 8, "A100-80G"),
    ("  4xA100-80G\n", 1, 4, "A100-80G"),
]

MISTAKES = [
    # text, what the message holds, what the hint holds
    ("", "the cluster is empty", "4xA100-80G"),
    ("   ", "the cluster is empty", "4xA100-80G"),
    ("4", "`4` names no GPU", "4xA100-80G"),
    ("4x", "`4x` names no GPU", "4xA100-80G"),
    ("2Nodes * 8", "`2Nodes * 8` names no GPU", "4xA100-80G"),
    ("6 machine x 8 card x 16GB", "names no GPU", "cards with 16 GB are `P100-16G`, `V100-16G`"),
    ("8x80G", "`8x80G` names no GPU", "`A100-80G`"),
    ("4x(24G class)", "`4x(24G class)` names no GPU", "`RTX-3090-24G`"),
    ("8x77G", "`8x77G` names no GPU", "4xA100-80G"),
    ("4xA100-80", "no GPU or instance is called `A100-80`", "`A100-80G`"),
    ("4xA1000-80G", "no GPU or instance is called `A1000-80G`", "`A100-80G`"),
    ("2xp4d.24xlarg", "no GPU or instance is called `p4d.24xlarg`", "`p4d.24xlarge`"),
    ("4xA100-50G", "no `A100` has `50` GB of memory", "`A100-40G` and `A100-80G`"),
    ("4xRTX6000-48G", "no `RTX6000` has `48` GB of memory", "`RTX-6000-Ada-48G`"),
    ("A100 40G 80G", "names two memory sizes", "write one"),
    ("0xA100-80G", "`0` in `0xA100-80G` is no count", "4xA100-80G"),
    ("4x0xA100-80G", "`0` in `4x0xA100-80G` is no count", "4xA100-80G"),
    ("-4xA100-80G", "`-4xA100-80G` has a negative count", "4xA100-80G"),
    ("2x-8xA100-80G", "has a negative count", "4xA100-80G"),
    ("2.5xA100-80G", "is called `2.5xA100-80G`", "dsplan show gpus"),
    ("100001xA100-80G", "`100001` in `100001xA100-80G` is no count", "4xA100-80G"),
    ("9" * 50 + "xA100", "is no count", "4xA100-80G"),
    ("2x3x4xA100-80G", "has more counts than", "4xA100-80G"),
    ("A100-80G x 8 x 2", "does not say which count is nodes", "`2x8xA100-80G`"),
    ("2 nodes H100-80G", "does not say how many GPUs a node has", "`2x8xH100-80G`"),
    ("2x32xA100-80G", "no node holds `32` GPUs", "`32x2xA100-80G`"),
    ("12xA100-80G", "`12` GPUs are no whole number of nodes of 8", "`2x6xA100-80G`"),
    ("2x4xp4d.24xlarge", "gives `4` GPUs per node and p4d.24xlarge has 8", "`2xp4d.24xlarge`"),
    ("2xA100+2xV100", "mixes kinds of GPU", "smallest card"),
    ("A100 MIG 3g.40gb", "MIG slice", "memory_gib"),
    ('"4xA100"', 'no GPU or instance is called `"4xA100"`', "dsplan show"),
    ("$(touch here)", "no GPU or instance is called `$(touch here)`", "dsplan show"),
    ("4xA100\n4xH100", r"`4xA100\n4xH100` holds a character that cannot be printed", "4xA100-80G"),
    ("4xA100\x00", r"`4xA100\x00` holds a character that cannot be printed", "4xA100-80G"),
    ("x" * 10_000, "is longer than 200 characters", "4xA100-80G"),
    ("\u202e4xA100", "cannot be printed", "4xA100-80G"),
    ("absent.toml", "cannot read the cluster file `absent.toml`: no such file or directory", "path"),
]


@pytest.mark.parametrize(("text", "nodes", "per_node", "gpu"), SPELLINGS)
def test_spellings_that_people_use_are_understood(text, nodes, per_node, gpu):
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (nodes, per_node, gpu)
    assert cluster.world_size == nodes * per_node
    assert cluster.source


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES)
def test_mistakes_get_one_line_and_a_hint(text, message, hint):
    with pytest.raises(PlannerError) as error:
        parse_cluster(text)
    assert message in error.value.message
    assert hint in error.value.hint
    assert error.value.exit_code == 2
    assert error.value.message.isprintable()
    assert not error.value.message.endswith(".")


PIECES = (
    *("2", "8", "0", "x", "*", " ", "A100", "-80G", "24 GB", "3090", "nodes", "card", "卡", "(", ")", "p4d.24xlarge"),
    *("MI300X", "-", "+", "GB200", ",", "RTX", "6000", "Ada", "99999999999", ".", "_", "²", "٣"),
)
GRAMMAR = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(max_size=60), GRAMMAR))
@example("auto ")
@example("²x A100")
@example("٣xA100")
@example("//")
def test_any_text_gives_a_cluster_or_one_error(text):
    if text.strip().casefold() == "auto":
        return
    answer = _answer(text)
    if isinstance(answer, PlannerError):
        assert answer.hint
        assert (answer.message + answer.hint).isprintable()
    else:
        assert 1 <= answer.gpus_per_node <= 16
        assert (answer.network_bytes_per_s is not None) == (answer.nodes > 1)


def _answer(text: str) -> Cluster | PlannerError:
    try:
        return parse_cluster(text)
    except PlannerError as error:
        return error


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "said"),
    [
        ("32xA100-80G", 4, 8, "32 GPUs read as 4 nodes of 8"),
        ("16xA100-80G", 2, 8, "16 GPUs read as 2 nodes of 8"),
        ("8xGB200", 2, 4, "8 GPUs read as 2 nodes of 4"),
        ("4xGH200-96G", 4, 1, "4 GPUs read as 4 nodes of 1"),
    ],
)
def test_more_gpus_than_a_box_holds_are_whole_boxes_and_the_answer_says_so(text, nodes, per_node, said):
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, per_node)
    assert any(note.startswith(said) for note in cluster.notes)


def test_an_ambiguous_name_means_the_smallest_card_with_a_note():
    cluster = parse_cluster("8xV100")
    assert cluster.gpu.name == "V100-16G"
    assert any("V100-32G" in note for note in cluster.notes)
    assert parse_cluster("8xV100-32G").notes == ()


def test_a_multi_node_cluster_named_by_gpu_gets_a_network_that_is_called_an_assumption():
    cluster = parse_cluster("2x8xA100-80G")
    # 8 x 200 Gbit/s InfiniBand, 85 % of nominal effective: the reference configuration of NVIDIA DGX A100
    assert cluster.network_bytes_per_s == pytest.approx(8 * 200e9 / 8 * 0.85)
    assert any("network between nodes not given" in note for note in cluster.notes)
    assert parse_cluster("8xA100-80G").network_bytes_per_s is None
    assert parse_cluster("8xA100-80G").notes == ()


def test_an_instance_brings_its_own_figures():
    cluster = parse_cluster("2xp4d.24xlarge")
    assert cluster.instance == "p4d.24xlarge"
    assert cluster.host_memory_bytes == 1152 * GIB
    assert cluster.cpu_cores == 48
    assert cluster.network_bytes_per_s == pytest.approx(400e9 / 8 * 0.75)
    assert cluster.nvme_bytes == 8 * 10**12
    assert cluster.usd_per_hour == pytest.approx(2 * 21.96)
    assert cluster.notes == ()


def test_pairs_with_a_bridge_use_the_link_of_the_instance():
    assert parse_cluster("Standard_NC96ads_A100_v4").intra_node.name == "nvlink-pair-a100"
    assert parse_cluster("4xA100-80G-PCIe").intra_node.name == "pcie-gen4"


def test_host_memory_is_unknown_unless_given_or_of_an_instance():
    assert parse_cluster("4xA100-80G").host_memory_bytes is None
    assert parse_cluster("4xA100-80G", host_ram_gib=512).host_memory_bytes == 512 * GIB
    assert parse_cluster("p4d.24xlarge", host_ram_gib=512).host_memory_bytes == 512 * GIB
    for wrong in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(PlannerError, match="host memory"):
            parse_cluster("4xA100-80G", host_ram_gib=wrong)


def test_the_price_is_of_all_gpus_and_unknown_where_nobody_lists_one():
    one, eight = parse_cluster("A100-80G").usd_per_hour, parse_cluster("8xA100-80G").usd_per_hour
    assert one is not None
    assert eight == pytest.approx(8 * one)
    assert parse_cluster("8xA800-80G").usd_per_hour is None


# --- cluster files


@pytest.fixture
def cluster_file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "lab cluster.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_cluster_file_overrides_what_the_tables_say(cluster_file):
    cluster = parse_cluster(
        cluster_file(
            """
            gpus = "4x8xA100-80G"
            name = "lab"
            memory_gib = 79.3
            gemm_efficiency = 0.78
            host_ram_gib = 1007
            cpu_cores = 64
            network_gbit_per_s = 400
            fabric = "roce"
            bus_gb_per_s = [[8, 134.0], [2, 22.5]]
            nvme_tb = 4
            nvme_read_gb_per_s = 12
            nvme_write_gb_per_s = 6
            usd_per_hour = 10
            """
        )
    )
    assert cluster.gpu.memory_bytes == int(79.3 * GIB)
    assert cluster.gpu.gemm_efficiency == 0.78
    assert cluster.host_memory_bytes == 1007 * GIB
    assert cluster.cpu_cores == 64
    assert cluster.network_bytes_per_s == pytest.approx(400e9 / 8 * 0.8)
    assert cluster.notes == ()
    assert (cluster.intra_node.bus(2), cluster.intra_node.bus(8)) == (22.5e9, 134e9)
    assert (cluster.nvme_bytes, cluster.nvme_read_bytes_per_s, cluster.nvme_write_bytes_per_s) == (
        4 * 10**12,
        12e9,
        6e9,
    )
    assert cluster.usd_per_hour == 40
    assert cluster.source == "lab"


def test_the_smallest_cluster_file_is_the_same_as_its_text(cluster_file):
    from_file = parse_cluster(cluster_file('gpus = "2xp4d.24xlarge"'))
    assert dataclasses.replace(from_file, source="") == dataclasses.replace(parse_cluster("2xp4d.24xlarge"), source="")


def test_a_relative_cluster_file_is_found_from_the_folder_given(cluster_file, tmp_path):
    cluster_file('gpus = "8xH100-80G"')
    assert parse_cluster("lab cluster.toml", folder=tmp_path).gpu.name == "H100-80G"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "does not say `gpus`", 'gpus = "8xA100-80G"'),
        ("gpus = 8", "`gpus` is `8`, not text", "gpus"),
        ('gpus = "8xA100-80G"\nhost_ram = 5', "unknown keys: `host_ram`", "`host_ram_gib`"),
        ('gpus = "8xA100-80G"\nzzz = 5\nyyy = 1', "unknown keys: `zzz`, `yyy`", "the keys are"),
        ('gpus = "8xA100-80G"\nhost_ram_gib = -5', "`host_ram_gib` is `-5`, not a positive number", "host_ram_gib"),
        ('gpus = "8xA100-80G"\nmemory_gib = true', "`memory_gib` is `True`, not a positive number", "memory_gib"),
        ('gpus = "8xA100-80G"\nmemory_gib = "80"', "`memory_gib` is `80`, not a positive number", "memory_gib"),
        ('gpus = "8xA100-80G"\nmemory_gib = inf', "`memory_gib` is `inf`, not a positive number", "memory_gib"),
        ('gpus = "8xA100-80G"\ngemm_efficiency = 1.2', "not a share between 0 and 1", "gemm_efficiency"),
        ('gpus = "8xA100-80G"\ncpu_cores = 1.5', "`cpu_cores` is `1.5`", "cpu_cores"),
        ('gpus = "8xA100-80G"\nfabric = "ib"', "`fabric` without `network_gbit_per_s`", "rate"),
        ('gpus = "8xA100-80G"\nfabric = "x"\nnetwork_gbit_per_s = 1', "`fabric` is `x`", "roce"),
        ('gpus = "8xA100-80G"\nbus_gb_per_s = [1]', "not a number or rows", "[[2, 22.5], [8, 134.0]]"),
        ('gpus = "8xA100-80G"\nbus_gb_per_s = "fast"', "`bus_gb_per_s` is `fast`", "bus_gb_per_s"),
        ('gpus = "other.toml"', "`gpus` is `other.toml`", "8xA100-80G"),
        ('gpus = "auto"', "`gpus` is `auto`", "8xA100-80G"),
        ('gpus = "8xA100', "is not valid TOML", "gpus"),
        ("gpus = " + "[" * 5000, "is not valid TOML", "gpus"),
        ('gpus = "8xA100-80G"\ncpu_cores = 1' + "0" * 400, "not a positive number", "cpu_cores"),
        ('gpus = "8xA1000-80G"', "no GPU or instance is called `A1000-80G`", "A100-80G"),
    ],
)
def test_mistakes_in_a_cluster_file_name_the_file_or_the_value(cluster_file, text, message, hint):
    with pytest.raises(PlannerError) as error:
        parse_cluster(cluster_file(text))
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_folder_and_a_file_that_is_no_text_are_errors(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00gpus")
    (tmp_path / "huge.toml").write_text("#" * 1_000_001)
    for name in ("folder.toml", "binary.toml", "huge.toml", "nul\0.toml", "n" * 300 + ".toml"):
        with pytest.raises(PlannerError) as error:
            parse_cluster(str(tmp_path / name))
        assert name.replace("\0", "\\x00") in error.value.message


def test_a_network_without_a_fabric_is_taken_as_ethernet_and_said(cluster_file):
    cluster = parse_cluster(cluster_file('gpus = "2x8xA100-80G"\nnetwork_gbit_per_s = 100'))
    assert cluster.network_bytes_per_s == pytest.approx(100e9 / 8 * 0.6)
    assert any("Ethernet" in note for note in cluster.notes)


# --- this machine


def test_auto_without_nvidia_smi_is_an_error_and_no_traceback(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PlannerError, match="`auto` found no nvidia-smi"):
        parse_cluster("auto")


def test_auto_reads_what_nvidia_smi_lists(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nfor i in 1 2 3 4; do echo 'NVIDIA A100-SXM4-80GB, 81920'; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cluster = parse_cluster("auto")
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (1, 4, "A100-80G")
    assert cluster.host_memory_bytes
    assert cluster.host_memory_bytes > GIB
    assert cluster.cpu_cores
    assert parse_cluster("auto", host_ram_gib=64).host_memory_bytes == 64 * GIB
    program.write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    with pytest.raises(PlannerError, match="No devices were found"):
        parse_cluster("auto")


def test_auto_gives_up_on_a_driver_that_hangs(monkeypatch, tmp_path):
    def hang(*_args, **_kwargs):
        raise subprocess.TimeoutExpired("nvidia-smi", this_machine.TIMEOUT_S)

    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(PlannerError, match="did not answer within"):
        parse_cluster("auto")


@pytest.mark.parametrize(
    ("listing", "gpu", "count", "said"),
    [
        ("NVIDIA H200, 143771\n" * 8, "H200-141G", 8, "found 8 x NVIDIA H200"),
        ("Tesla V100-SXM2-32GB, 32510\n", "V100-32G", 1, "found 1"),
        ("NVIDIA GeForce RTX 3090, 24268\nNVIDIA GeForce RTX 4090, 24564\n", "RTX-3090-24G", 2, "mixes"),
        ("NVIDIA A100-SXM4-40GB, 20096\n", "A100-40G", 1, "less than the catalogue"),
        ("NVIDIA H100, 97871\n", "H100-96G", 1, "found 1"),
    ],
)
def test_a_listing_of_nvidia_smi_becomes_one_node(listing, gpu, count, said):
    cluster = this_machine.cluster_from_listing(listing)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (1, count, gpu)
    assert any(said in note for note in cluster.notes)


def test_auto_counts_the_cards_that_cuda_visible_devices_leaves():
    listing = "NVIDIA A100-SXM4-80GB, 81920\n" * 8 + "NVIDIA T4, 15360\n"
    for visible, count in (("0,1", 2), ("3", 1), ("GPU-8932f937,GPU-8932f938", 2), ("0,0,77", 1)):
        cluster = this_machine.cluster_from_listing(listing, visible=visible)
        assert (cluster.gpus_per_node, cluster.gpu.name) == (count, "A100-80G")
    with pytest.raises(PlannerError, match="lists no GPU that this process may use"):
        this_machine.cluster_from_listing(listing, visible="")


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("", "lists no GPU"),
        ("NVIDIA GeForce GT 710, 2048\n", "found `NVIDIA GeForce GT 710`, which is not in the catalogue"),
        ("nonsense\n", "nvidia-smi says `nonsense`"),
        ("NVIDIA A100-SXM4-80GB, [N/A]\n", "nvidia-smi says"),
    ],
)
def test_a_listing_that_cannot_be_used_is_an_error(listing, message):
    with pytest.raises(PlannerError) as error:
        this_machine.cluster_from_listing(listing)
    assert message in error.value.message
    assert "4xA100-80G" in error.value.hint
