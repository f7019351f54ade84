"""Install the clients: ``python -m tests.integration.clients.install [ENVIRONMENT...]``.

What is there at the right versions is left alone. An environment that cannot be installed is
named, the others are installed all the same, and the tests skip its clients.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv

from tests.integration.clients.table import (
    CLIENTS,
    ENVIRONMENTS,
    NPM,
    installed_list,
    is_installed,
    packages,
    programs,
)


def install(environment: str) -> None:
    """Make an environment anew."""
    folder = ENVIRONMENTS / environment
    shutil.rmtree(folder, ignore_errors=True)
    if environment in NPM:
        folder.mkdir(parents=True)
        # Without a manifest of its own, npm would install into a folder above that has one.
        (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        npm = ["npm", "install", "--no-audit", "--no-fund", *packages(environment)]
        subprocess.run(npm, cwd=folder, check=True)
    else:
        venv.create(folder, with_pip=True)
        pip = [
            programs(environment) / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            *packages(environment),
        ]
        subprocess.run(pip, check=True)
    installed_list(environment).write_text("\n".join(packages(environment)), encoding="utf-8")


def main() -> None:
    """Install the environments that are named, or all."""
    failed = []
    for environment in sys.argv[1:] or dict.fromkeys(row.environment for row in CLIENTS):
        if is_installed(environment):
            continue
        sys.stderr.write(f"installing {' '.join(packages(environment))}\n")
        try:
            install(environment)
        except (OSError, subprocess.CalledProcessError) as error:
            failed.append(f"{environment}: {error}")
    if failed:
        sys.exit("not installed, so their clients will be skipped:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
