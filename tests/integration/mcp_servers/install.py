"""Install the servers: ``python -m tests.integration.mcp_servers.install``.

What is there is left alone; remove build/mcp to have other versions.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import venv

from tests.integration.mcp_servers.table import BUILD, NPM, PROGRAMS, SDKS, python


def install_sdk(version: str, *more: str) -> None:
    """Make an environment with an SDK and what its examples need, and unpack these."""
    if not python(version).exists():
        venv.create(python(version).parents[1], with_pip=True)
    pip = [str(python(version)), "-m", "pip", "--quiet"]
    wanted = [f"mcp=={version}", "click", "httpx", "uvicorn", *more]
    subprocess.run([*pip, "install", *wanted], check=True)
    # its name alone, or what it is built with would be built, too
    source = ["download", "--no-deps", "--no-binary", "mcp", "--dest", str(BUILD)]
    subprocess.run([*pip, *source, f"mcp=={version}"], check=True)
    with tarfile.open(BUILD / f"mcp-{version}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")


def install_npm() -> None:
    """Install npm's packages in a folder of their own."""
    folder = BUILD / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", *NPM], cwd=folder, check=True)


def main() -> None:
    """Install everything."""
    for version in SDKS:
        if not (BUILD / f"mcp-{version}").exists():
            install_sdk(version, *(PROGRAMS if version == SDKS[0] else ()))
    if not (BUILD / "npm" / "node_modules").exists():
        install_npm()


if __name__ == "__main__":
    main()
