"""A checkpoint's root becomes one absolute path at the door, or is refused there."""

from __future__ import annotations

import contextlib
import enum
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.checks import is_unicode
from gymckpt.manifest import (
    ManifestPublication,
    load_gym_checkpoint_manifest,
    make_checkpoint_root,
    withdraw_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.participant.audit import audit_snapshot
from gymckpt.roots import require_root
from tests.faults.world import World


class Named(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    """A text that is more than a text."""

    ROOT = "/data/snap"


class Own:
    """A path of another library."""

    def __repr__(self) -> str:
        return f"Own({self.__fspath__()!r})"

    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


URLS = [
    "s3://bucket/snap",
    "S3://bucket/snap",
    "gs://bucket",
    "gs://",
    "file:///data/snap",
    "file:/data/snap",
    "hdfs://name/x",
    "dbfs:/mnt/x",
    "abfss://c@a.dfs.core.windows.net/x",
    "http+unix://x/y",
    "any-thing.1://x",
    "memory://",
    "C:/data",
    "C:\\data",
]


@pytest.mark.parametrize("form", [str, Path, PurePosixPath, Own])
@pytest.mark.parametrize("url", URLS)
def test_urls_are_refused(url: str, form: Any) -> None:
    """A URL is refused with a hint, also in the form that pathlib gives it."""
    what_helps = "pass the path alone" if url.startswith("file:") else "mount the store"
    with pytest.raises(ValueError, match=rf"directory, not the URL .*{what_helps}") as caught:
        require_root(form(url))
    assert url.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize("url", ["s3://b/x", "GS://b", "file:///x", "hdfs://x", "https://x/y"])
def test_a_url_that_was_joined_to_a_directory(url: str) -> None:
    """A well-known scheme is found behind the directory to which somebody has joined the URL."""
    for root in (Path("/data", url), Path.cwd() / url, f"/data/{url}", os.path.abspath(url)):
        with pytest.raises(ValueError, match="not the URL"):
            require_root(root)


def test_a_urls_password_is_not_told() -> None:
    """A refused URL is quoted without its credentials, also when pathlib took a slash away."""
    for form in (str, Path):
        with pytest.raises(ValueError, match="URL") as caught:
            require_root(form("s3://key:hunter2@bucket/x"))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "root",
    [
        " ",
        "snap ",
        "snap\t",
        "snap\n",
        "/data/snap /",
        "/data/snap \u3000",
        " snap",
        " /data/snap",
        " s3://bucket",
        "a\0b",
        "\0",
        "a\nb",
        "a\x1b[31mb",
        "a\x7fb",
        "a\u2028b",
        "a\u202eb",
        "a\u2066b",
        "a\ud800",
        "/",
        "//",
        "/./",
        "x" * 256,
        "ä" * 128,
        "/" + "/".join(["x" * 200] * 21),
    ],
)
def test_unsafe_roots_are_refused(root: str) -> None:
    """A root that ends in a blank, hides characters or fits no file system is refused."""
    with pytest.raises(ValueError, match="a checkpoint's root must") as caught:
        require_root(root)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "root",
    [
        None,
        "",
        Own(""),
        5,
        1.5,
        True,
        b"/data",
        bytearray(b"/data"),
        ["/data"],
        {},
        Own(b"/data"),
        Path,
    ],
)
def test_what_is_no_path_is_refused(root: Any) -> None:
    """What is not a path of text is a TypeError, bytes included."""
    with pytest.raises(TypeError, match=r"a checkpoint's root must be|__fspath__"):
        require_root(root)


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("/data/snap", "/data/snap"),
        ("/data//snap/./x/", "/data/snap/x"),
        ("//data/snap", "/data/snap"),
        ("/data/../snap", "/data/../snap"),
        ("snap", "/here/snap"),
        ("./snap", "/here/snap"),
        ("../snap", "/here/../snap"),
        (".", "/here"),
        ("a:b/c", "/here/a:b/c"),
        ("x/host:/y", "/here/x/host:/y"),
        ("/net/host:/y", "/net/host:/y"),
        ("with blank/sn ap", "/here/with blank/sn ap"),
        ("ünï/雪", "/here/ünï/雪"),
        ("~", "/home-of-me"),
        ("~/", "/home-of-me"),
        ("~/snap", "/home-of-me/snap"),
        ("./~/snap", "/here/~/snap"),
        ("a/~", "/here/a/~"),
        (Named.ROOT, "/data/snap"),
        (Path("snap"), "/here/snap"),
        (Path("~/snap"), "/home-of-me/snap"),
        (PurePosixPath("/data/snap"), "/data/snap"),
        (Own("snap"), "/here/snap"),
        (Own(Named.ROOT), "/data/snap"),
    ],
    ids=repr,
)
def test_what_a_root_becomes(monkeypatch: pytest.MonkeyPatch, root: Any, expected: str) -> None:
    """A root becomes a plain absolute text by the working directory and home of this host."""
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    monkeypatch.setenv("HOME", "/home-of-me")
    found = require_root(root)
    assert found == expected
    assert type(found) is str


def test_a_users_home_is_found() -> None:
    """`~user` is expanded for a user of this host."""
    pwd = pytest.importorskip("pwd")
    me = pwd.getpwuid(os.getuid())
    assert require_root(f"~{me.pw_name}/snap") == f"{me.pw_dir.rstrip('/')}/snap"


@pytest.mark.parametrize(
    ("root", "home", "why"),
    [
        ("~nobody-of-that-name/snap", "/home", "no home directory of '~nobody-of-that-name'"),
        ("~/snap", "", r"\$HOME is no absolute path"),
        ("~/snap", "relative", r"\$HOME is no absolute path"),
        ("~", "~", r"\$HOME is no absolute path"),
    ],
)
def test_a_home_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch, root: str, home: str, why: str
) -> None:
    """A `~` without a home is refused with the reason, and never means a directory named `~`."""
    monkeypatch.setenv("HOME", home)
    with pytest.raises(ValueError, match=why):
        require_root(root)


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """A relative root is refused where no working directory is left; an absolute one is taken."""
    gone = tmp_path / "gone"
    gone.mkdir()
    with contextlib.chdir(gone):
        gone.rmdir()
        with pytest.raises(ValueError, match="working directory is gone"):
            require_root("snap")
        assert require_root("/data/snap") == "/data/snap"
        os.chdir(tmp_path)


def test_a_root_of_another_system_is_refused() -> None:
    """A path of Windows is not taken for a relative name."""
    with pytest.raises(ValueError, match="a checkpoint's root"):
        require_root(PureWindowsPath("C:\\data\\snap"))


TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=" ~/.:as3\0\n\\\u202e\u3000", max_size=12),
    st.sampled_from([*URLS, "~", "~/x", ".", ".."]).flatmap(
        lambda url: st.tuples(st.just(url), st.text(max_size=4)).map("".join)
    ),
)


@given(TEXTS, st.sampled_from([str, Own, Path]))
def test_any_root_is_safe_or_refused(text: str, form: Any) -> None:
    """Whatever a root is, what is returned is absolute, safe, and returned again as it is."""
    try:
        root = require_root(form(text))
    except ValueError:
        return
    except TypeError:
        assert not os.fspath(form(text))
        return
    assert os.path.isabs(root)
    assert root == root.strip()
    assert is_unicode(root)
    assert not {"\0", "\n", "\u202e"} & set(root)
    assert "://" not in root
    assert require_root(root) == root == require_root(Path(root))


@pytest.mark.parametrize("root", ["s3://bucket", Path("s3://bucket"), "snap ", "~nobody-of-it/x"])
def test_every_function_that_takes_a_root_refuses(root: Any, tmp_path: Path) -> None:
    """Manifests are neither read, written nor withdrawn where a verb would refuse the root."""
    manifest = World(1).manifest()
    with contextlib.chdir(tmp_path):
        for function in (
            load_gym_checkpoint_manifest,
            audit_snapshot,
            lambda root: write_gym_checkpoint_manifest(root, manifest),
            lambda root: withdraw_gym_checkpoint_manifest(root, "c"),
            make_checkpoint_root,
            lambda root: ManifestPublication(root, manifest),
        ):
            with pytest.raises(ValueError, match="a checkpoint's root"):
                function(root)
    assert list(tmp_path.iterdir()) == []


def test_a_publication_keeps_its_directory(tmp_path: Path) -> None:
    """A relative root means the working directory of the moment, for publishing and withdrawing."""
    with contextlib.chdir(tmp_path):
        publication = ManifestPublication("snap", World(1).manifest())
        make_checkpoint_root("snap")
        os.chdir("/")
        publication.publish()
        assert load_gym_checkpoint_manifest(tmp_path / "snap").checkpoint_id == "source"
        assert publication.withdraw()
