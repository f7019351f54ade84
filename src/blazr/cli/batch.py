"""``blazr batch``: answer a file of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.cli.model_plans import ModelPlan
from blazr.cli.serve import open_client
from blazr.cli.signals import run_async
from blazr.core import log
from blazr.core.errors import EngineError
from blazr.llm.options import check_cache_disk

if TYPE_CHECKING:
    import httpx2

    from blazr.server.batches.lines import BatchAnswer

# Nobody waits for one of these replies, and one may take as long as it takes.
_REPLY_S = 7 * 24 * 3600.0


@options.with_flags
def batch(  # noqa: PLR0913  (one argument per flag)
    ctx: typer.Context,
    requests: Annotated[
        Path,
        typer.Argument(
            metavar="REQUESTS",
            help="Requests, one on each line, as OpenAI's batches have them: "
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}.',
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="File for the answers, one on each line, in the order in which they come. "
            "Requests with an answer in it are not asked again.",
        ),
    ],
    model: options.Model = None,
    url: options.Url = None,
    accept_any_model: Annotated[
        bool, typer.Option("--accept-any-model", help="Answer requests whatever model they name.")
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests that wait for their answers at once.  [default: twice --max-running]",
            show_default=False,
        ),
    ] = None,
    load: options.ServeFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Answer a file of requests; a batch that was stopped goes on where it was."""
    from blazr.server.batches.lines import AnswerFile, answer_all, read_ids, read_requests
    from blazr.server.config import ServerConfig
    from blazr.server.routes import batch_paths

    options.refuse_beside_url(ctx, "model", "accept_any_model", used={"max_running"})
    check_cache_disk([load])
    paths = batch_paths()
    ids = read_ids(requests, paths)
    with AnswerFile(output) as answers:
        left = ids - answers.answered
        log.write_line(f"{len(left):,} of {len(ids):,} requests to answer")
        if not left:
            return
        options.set_threads(threads)
        config = ServerConfig(
            accept_any_model=accept_any_model, access_log="off", request_timeout_s=_REPLY_S
        )
        plan = ModelPlan(path=options.pick_model(model, None), name=None, flags=load)
        num_done = len(ids) - len(left)
        num_failed = 0

        async def run(
            client: httpx2.AsyncClient, progress: Callable[[int, int], None] | None
        ) -> None:
            def write(answer: BatchAnswer) -> None:
                nonlocal num_done, num_failed
                answers.append(answer)
                num_done += 1
                num_failed += answer.is_failure
                if progress is not None:
                    progress(num_done, len(ids))

            async with client:
                await answer_all(
                    client,
                    (x for x in read_requests(requests, paths) if x.custom_id in left),
                    write,
                    places=asyncio.Semaphore(concurrency or 2 * load.max_running),
                )

        started_s = monotonic()
        try:
            with (
                open_client(url, [plan], config, read_s=None) as client,
                options.progress_bar("answering", unit="requests") as progress,
            ):
                run_async(run(client, progress))
        except KeyboardInterrupt:
            raise EngineError(
                "the batch was stopped.",
                found=f"{num_done:,} of {len(ids):,} requests have an answer",
                hint="run the same command again to answer the others",
            ) from None
        log.write_line(
            f"{len(left):,} answered in {monotonic() - started_s:.1f} s, {num_failed:,} of them"
            " with an error"
        )
