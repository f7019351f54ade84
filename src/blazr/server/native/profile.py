"""``POST /start_profile`` and ``/stop_profile``: what an engine spends its time with."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import EngineError, RequestError
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.state import ProfileRecording

if TYPE_CHECKING:
    from blazr.engine.async_engine import AsyncEngine
    from blazr.engine.profile import Profile

_LONGEST_S = 300.0
# By which memory may grow before a profile ends: writing it down takes several times as much, and
# under load a minute of every function that Python calls filled 20 GB.
_MOST_BYTES = 2**28
_CHECK_S = 0.25


class StartBody(msgspec.Struct, kw_only=True):
    """Which model; left out it is the first. Where profiles go is not for clients to say."""

    model: str | None = None
    output_dir: str | None = None
    num_steps: int | None = None


class ProfileState(msgspec.Struct):
    """What was done; a profile is a file in the operator's folder."""

    status: Literal["started", "stopped"]
    file: str | UnsetType = UNSET


async def start_profile(call: Call[StartBody]) -> ProfileState:
    """Begin to record what a model's engine does, for five minutes or 256 MB at most."""
    state = call.state
    body = call.body
    if state.config.profile_dir is None:
        raise RequestError("no profiles are made.", hint="start the server with --profile-dir")
    for field in ("output_dir", "num_steps"):
        if getattr(body, field) is not None:
            raise RequestError(f"this endpoint has no {field}.", param=field)
    from blazr.engine.profile import Profile  # torch comes with it

    slot = call.models.find(body.model)
    async with state.profiling:
        if slot.llm is None or (state.recording and not state.recording.task.done()):
            why = "the model is not in memory" if slot.llm is None else "one is being made"
            raise HttpError(409, f"no profile can be begun: {why}.", code="conflict")
        engine = slot.llm.core.engine
        stop = asyncio.Event()
        path = state.config.profile_dir / f"blazr-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json.gz"
        profile = await asyncio.to_thread(engine.call, Profile)
        task = asyncio.create_task(_record(profile, engine, stop, path))
        state.recording = ProfileRecording(stop, task)
    return ProfileState("started")


async def stop_profile(call: Call[None]) -> ProfileState:
    """Record no more, and write the profile into the operator's folder."""
    state = call.state
    async with state.profiling:
        recording = state.recording
        state.recording = None
        if recording is None:
            raise HttpError(409, "no profile is being made.", code="conflict")
        recording.stop.set()
        try:
            path = await asyncio.shield(recording.task)
        except (OSError, EngineError) as error:
            message = f"the profile is lost: {type(error).__name__}."
            # until somebody has made room
            raise HttpError(503, message, code="profile_lost", retry_after_s=60) from error
    return ProfileState("stopped", path.name)


async def _record(profile: Profile, engine: AsyncEngine, stop: asyncio.Event, path: Path) -> Path:
    """Record until it is stopped or too long, and write the file."""
    end_s = monotonic() + _LONGEST_S
    most_bytes = _resident_bytes() + _MOST_BYTES
    while not stop.is_set() and monotonic() < end_s and _resident_bytes() <= most_bytes:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_S):
                await stop.wait()
    await asyncio.to_thread(engine.call, profile.end)
    await asyncio.to_thread(profile.save, path)
    return path


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
