"""What a number of training tokens takes: hours, dollars, energy.

In: predicted tokens per second of the whole job, and the price or the power limit. Out: seconds, dollars, joules.
"""

from __future__ import annotations


def training_s(tokens: int, tokens_per_s: float) -> float:
    """Time of that many tokens.

    Formula: tokens / tokens per second.
    Source: tokens per second of `planner.speed.estimate`.
    Leaves out: start-up, evaluation, checkpoints, restarts after failures.
    """
    return tokens / tokens_per_s


def tokens_usd(tokens: int, tokens_per_s: float, usd_per_hour: float) -> float:
    """Price of that many tokens.

    Formula: hours * price of all nodes for an hour.
    Source: the price of the GPU or instance table, or of the cluster file.
    Leaves out: storage, traffic, and hours that are billed but not trained in.
    """
    return training_s(tokens, tokens_per_s) / 3600 * usd_per_hour


def tokens_j(tokens: int, tokens_per_s: float, power_limit_w: float, gpus: int) -> float:
    """Energy that the GPUs of the job take at most for that many tokens, at the predicted speed.

    Formula: seconds * GPUs * power limit of one.
    Source: Patterson et al. 2021, arXiv:2104.10350, section 2.5: hours * processors * average power * PUE. The power
        limit of the GPU table stands for the average power, which makes it an upper bound.
    Leaves out: host, network and cooling (PUE).
    """
    return training_s(tokens, tokens_per_s) * gpus * power_limit_w
