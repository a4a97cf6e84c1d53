"""
Check that what is built from this tree is complete, and works where there is no source tree.

Builds the sdist, a wheel from the sdist and one from the tree; both wheels must hold the same
files, the charts of the tree among them. The wheel is installed into an empty environment, with
nothing but what it asks for, and `use_installed.py` uses it there, in another directory and with
Python's isolated mode. Then the same with an editable install, which must read the charts of the
tree and hold no second copy of them.

    python tools/check_wheel.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHARTS = sorted(path.stem for path in (ROOT / "statecharts").glob("*.toml"))
INSIDE = "gymckpt/statecharts"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; show it and leave where it fails."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))} failed with {done.returncode}")
    return done.stdout


def built(into: Path, *options: str) -> Path:
    """Build a wheel of the tree and return it."""
    run(sys.executable, "-m", "build", *options, "--outdir", into, ROOT, cwd=into.parent)
    [wheel] = into.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    """Return every file of a wheel but its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name
        }


def check_contents(wheel: Path, from_sdist: Path) -> None:
    """Require that both wheels are the package and the charts of the tree, and nothing else."""
    found = contents(wheel)
    if found != contents(from_sdist):
        differing = sorted(found.keys() ^ contents(from_sdist).keys())
        sys.exit(
            f"the wheel built from the sdist differs from the one built from the tree: {differing}"
        )
    for name in CHARTS:
        text = found.get(f"{INSIDE}/{name}.toml")
        if text != (ROOT / "statecharts" / f"{name}.toml").read_bytes():
            sys.exit(f"{wheel.name}: the chart {name} is absent or stale")
    if "gymckpt/py.typed" not in found:
        sys.exit(f"{wheel.name}: says nothing of its types: py.typed is absent")
    foreign = [name for name in found if not name.startswith("gymckpt/")]
    if foreign:
        sys.exit(f"{wheel.name}: holds files that are not the package's: {foreign}")


def new_environment(directory: Path) -> Path:
    """Make an empty environment and return its Python."""
    run(sys.executable, "-m", "venv", directory, cwd=directory.parent)
    scripts = "Scripts" if os.name == "nt" else "bin"
    return directory / scripts / "python"


def install(python: Path, *what: str | Path) -> None:
    """Install something into an environment."""
    pip = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    run(*pip, *what, cwd=python.parent)


def use(python: Path, outside: Path) -> str:
    """Use what is installed, away from the tree, and return what it says."""
    script = shutil.copy(ROOT / "tools/use_installed.py", outside)
    return run(python, "-I", script, *CHARTS, cwd=outside).strip()


def main() -> None:
    """Check everything, and say what was done."""
    with tempfile.TemporaryDirectory(prefix="gymckpt-wheel-") as name:
        temporary = Path(name).resolve()
        for directory in ("tree", "sdist", "outside"):
            (temporary / directory).mkdir()
        from_sdist = built(temporary / "sdist")
        wheel = built(temporary / "tree", "--wheel")
        check_contents(wheel, from_sdist)
        print(f"{wheel.name}: complete, also when it is built from the sdist")

        python = new_environment(temporary / "environment")
        install(python, wheel)
        said = use(python, temporary / "outside")
        if str(temporary / "environment") not in said:
            sys.exit(f"{said}, not from the environment that it was installed into")
        print("wheel: imports, finds its charts, saves and restores")

        install(python, "--no-deps", "--force-reinstall", "--editable", ROOT)
        said = use(python, temporary / "outside")
        copies = [
            path for path in (temporary / "environment").rglob("*.toml") if path.stem in CHARTS
        ]
        if str(ROOT) not in said or copies:
            sys.exit(f"the editable install: {said}; copies of charts: {copies}")
        print("editable install: the same, with the charts of the tree")


if __name__ == "__main__":
    main()
