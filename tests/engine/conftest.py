"""How deep random runs go: HYPOTHESIS_PROFILE=deep for the long search, else what fits beside every other test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

settings.register_profile("quick", max_examples=40, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "deep", max_examples=20_000, stateful_step_count=60, deadline=None, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile("deep" if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else "quick")
