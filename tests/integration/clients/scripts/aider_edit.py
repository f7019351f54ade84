"""aider, by `blazr launch`: a question about a file, and a change of it that is committed."""

from __future__ import annotations

from pathlib import Path

from checks import check, git, launch, repository, run

FLAGS = ["--yes-always", "--no-check-update", "--no-analytics", "--no-gitignore"]


def aider(url: str, home: Path, message: str, *flags: str) -> str:
    """What aider prints."""
    done = launch(url, "aider", *FLAGS, *flags, "--message", message, "story.txt", home=home)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "Error" not in told, told
    return done.stdout


@check
def ask(url: str) -> None:
    home = repository("asked")
    assert "It is a story of a dog." in aider(url, home, "What is it?", "--chat-mode", "ask")
    assert (home / "story.txt").read_text("utf-8") == "A dog ran.\n"


@check
def edit(url: str) -> None:
    home = repository("edited")
    told = aider(url, home, "Let the dog sleep.")
    assert (home / "story.txt").read_text("utf-8") == "A dog slept.\n", told
    assert len(git(home, "log", "--oneline").splitlines()) == 2, told


run()
