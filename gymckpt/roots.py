"""
The root of a snapshot: the one directory that a controller and its instances must mean alike.

What a caller passes is turned once, at the door of a verb, into the absolute path that instances
are told, the journal keeps and manifests are written below. A path that another host would read
differently, or that no file system has, is refused before anything is sent.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import Any, cast

from gymckpt.wording import show

__all__ = ["require_root"]

_WHAT = "a checkpoint's root"

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_095
"""What the file systems of Linux take; a longer path would fail on every instance."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?:[/\\]|$)")
"""A URL, also as `pathlib` leaves it: `Path("s3://bucket")` is `s3:/bucket`."""

_STORES = re.compile(
    r"/(s3[an]?|gs|gcs|file|https?|hdfs|abfss?|az|wasbs?|adl|oci|hf|memory):(?:/|$)", re.IGNORECASE
)
"""Well-known schemes inside a path: a URL that was joined to a directory or made absolute."""

_UNSEEN = frozenset({"Cc", "Zl", "Zp"})
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that end a line, or change how the rest of it is shown."""


def require_root(value: object) -> str:
    """
    Return a snapshot's directory as an absolute path, the form in which instances are told it.

    `~` and `~user` are expanded and a relative path is resolved here, on the controller's host.
    `..` and symbolic links are left alone.

    Args:
        value: A `str` or `os.PathLike`.

    Returns:
        The path; given to this function again, it stays as it is.

    Raises:
        TypeError: It is not a path, an empty one, or one of bytes.
        ValueError: It is a URL, or not a path that every file system and the journal can
            hold; or it cannot be made absolute.
    """
    given = _plain(value)
    _require_safe(given)
    _require_no_url(given, _SCHEME.match(given))
    path = str(_absolute(_expanded(given)))
    root = f"/{path.lstrip('/')}"
    if root == "/":
        raise ValueError(f"{_WHAT} must be a directory of its own, not '/'")
    _require_safe(root)
    _require_no_url(root, _STORES.search(root))
    longest = max(len(name.encode()) for name in root.split("/"))
    if longest > NAME_BYTES_MAX or len(root.encode()) > PATH_BYTES_MAX:
        raise ValueError(
            f"{_WHAT} must have at most {PATH_BYTES_MAX} bytes, and {NAME_BYTES_MAX} between two "
            f"slashes: {show(root)}"
        )
    return root


def _require_no_url(text: str, scheme: re.Match[str] | None) -> None:
    if scheme is not None:
        url = re.sub(r":/?(?!/)", "://", text[scheme.start(1) :], count=1)
        what_helps = (
            "pass the path alone"
            if scheme[1].lower() == "file"
            else "mount the store at the same path on every host and pass that path"
        )
        raise ValueError(
            f"{_WHAT} must be a directory, not the URL {show(url)}: instances write files below "
            f"it; {what_helps}"
        )


def _plain(value: object) -> str:
    """Return the text of a path, as a plain `str` whatever class it has."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{_WHAT} must be a path, a str or os.PathLike, not {show(value)}")
    text: object = os.fspath(cast("os.PathLike[Any]", value))
    if not isinstance(text, str):
        raise TypeError(f"{_WHAT} must be a path of text, not of bytes: {show(text)}")
    if not text:
        raise TypeError(f"{_WHAT} must be a path, not an empty text; '.' is the working directory")
    return str.__str__(text)


def _require_safe(text: str) -> None:
    if text != text.strip():
        raise ValueError(f"{_WHAT} must not begin or end with a blank: {show(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{_WHAT} must be Unicode text, not {show(text)}") from error
    if any(unicodedata.category(c) in _UNSEEN or c in _DIRECTIONS for c in text):
        raise ValueError(
            f"{_WHAT} must not hold NUL, line breaks or other control characters: {show(text)}"
        )


def _expanded(text: str) -> str:
    """Replace a leading `~` or `~user` with that home directory."""
    if not text.startswith("~"):
        return text
    user, slash, rest = text.partition("/")
    home = os.path.expanduser(user)
    unset = user == "~" and not os.path.isabs(os.environ.get("HOME", "/"))
    if unset or home == user or not os.path.isabs(home):
        why = "$HOME is no absolute path" if unset else f"there is no home directory of {user!r}"
        raise ValueError(
            f"{_WHAT}, {show(text)}, cannot be expanded: {why} on the controller's host; pass "
            "the absolute path"
        )
    return f"{home}{slash}{rest}"


def _absolute(text: str) -> Path:
    try:
        return Path(text).absolute()
    except OSError as error:
        raise ValueError(
            f"{_WHAT}, {show(text)}, is relative, and the working directory is gone: "
            f"{error.strerror}; pass the absolute path"
        ) from error
