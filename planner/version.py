"""The version of dsplan, and the versions of the programs its files are meant for."""

VERSION = "0.1.0"
TARGET_VERSIONS = {"deepspeed": "0.19.8", "accelerate": "1.15.0", "transformers": "5.24.0", "torch": "2.13.0"}
EXTRA_VERSIONS = {"peft": "0.21.2", "bitsandbytes": "0.50.2"}
"""Needed by some plans: adapters, and what is stored in 4 or 8 bits."""
