"""A DeepSpeed document without a fault, which tests change in one place."""

from __future__ import annotations

from typing import Any

GOOD: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
