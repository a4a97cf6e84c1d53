"""What every test may use: how hard Hypothesis tries, servers, and writing files anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgresql import Server, binaries

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=200)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what tests hold against files be written into the files instead."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what happens into tests/scenarios, and new histories into tests/histories",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="try every case of what is sampled otherwise, and other random ones each time",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis try the same examples each time, or many more and others."""
    settings.load_profile("thorough" if config.getoption("--thorough") else "quick")


@pytest.fixture
def rewrites(request: pytest.FixtureRequest) -> bool:
    """Whether files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether every case is to be tried of what is sampled otherwise."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection() -> None:
    """Leave what was made before a module out of the garbage collections after its tests."""
    gc.freeze()


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
