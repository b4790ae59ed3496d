"""The Accelerate dict holds counts and the name of the DeepSpeed file, and nothing that also lies in that file."""

import pytest
import yaml
from handmade_plans import make_cluster, make_plan

from planner.render.accelerate_yaml import accelerate_config, accelerate_text

# accelerate 1.15, utils/dataclasses.py: what DeepSpeedPlugin refuses beside deepspeed_config_file
REFUSED = {
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
    *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
}


@pytest.mark.parametrize(("nodes", "gpus", "zero"), [(1, 1, 0), (1, 4, 3), (2, 8, 3), (4, 8, 2)])
def test_counts_are_totals_and_nothing_has_two_homes(nodes: int, gpus: int, zero: int) -> None:
    cluster = make_cluster(nodes=nodes, gpus_per_node=gpus)
    config = accelerate_config(cluster, make_plan(zero=zero, cluster=cluster).ranked[0].candidate)
    assert (config["num_processes"], config["num_machines"]) == (nodes * gpus, nodes)
    assert "mixed_precision" not in config
    assert not REFUSED & set(config["deepspeed_config"])
    assert config["deepspeed_config"]["deepspeed_config_file"] == "ds_config.json"
    assert config["deepspeed_config"]["zero3_init_flag"] is (zero == 3)
    assert ("deepspeed_multinode_launcher" in config["deepspeed_config"]) is (nodes > 1)
    assert "main_process_port" not in config


def test_the_first_line_names_the_schema_and_the_rest_is_the_document() -> None:
    """The comment is that of yaml-language-server, which most editors run."""
    cluster = make_cluster()
    candidate = make_plan().ranked[0].candidate
    text = accelerate_text(cluster, candidate)
    assert text.splitlines()[0] == "# yaml-language-server: $schema=accelerate.schema.json"
    assert yaml.safe_load(text) == accelerate_config(cluster, candidate)
