"""What every test may use: how hard Hypothesis tries, servers, and writing files anew."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what tests hold against files be written into the files instead."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what happens into tests/scenarios, and new histories into tests/histories",
    )


@pytest.fixture
def rewrites(request: pytest.FixtureRequest) -> bool:
    """Whether files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))


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
