"""What every test may use: how hard Hypothesis tries, and a local Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgresql import Server, binaries

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    max_examples=int(os.environ.get("GYMCKPT_EXAMPLES", "50")),
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Start a PostgreSQL server of the tests' own."""
    if binaries() is None:
        pytest.skip("there is no PostgreSQL server here: install Debian's package postgresql")
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Start Ray once for all tests that need real actors; tests using it are marked `ray`."""
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
