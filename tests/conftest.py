"""What every test may use: how hard Hypothesis tries, and a local Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    max_examples=int(os.environ.get("GYMCKPT_EXAMPLES", "50")),
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Start Ray once for all tests that need real actors; tests using it are marked `ray`."""
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
