"""Running a plan: the dry run on CPU."""

from planner.launch.smoke import Check, SmokeResult, run_smoke

__all__ = ["Check", "SmokeResult", "run_smoke"]
