"""``blazr serve``: the HTTP server."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from blazr.cli import options
from blazr.core import env, log
from blazr.core.errors import ConfigError

_log = logging.getLogger(__name__)


def serve(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8080,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients must show; repeatable. Also BLAZR_API_KEY."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with one key a line; # begins a comment.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin that browsers may call from, besides loopback; * is any."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What the model is called.  [by model]")
    ] = None,
    accept_any_model: Annotated[
        bool, typer.Option("--accept-any-model", help="Answer whatever model a request names.")
    ] = False,
    memory: options.Memory = "auto",
    max_running: Annotated[
        int, typer.Option(envvar="BLAZR_MAX_RUNNING", help="Most replies computed at once.")
    ] = 32,
    max_waiting: Annotated[
        int, typer.Option(envvar="BLAZR_MAX_WAITING", help="Most replies queued.")
    ] = 128,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            envvar="BLAZR_MAX_SEQ_LEN",
            min=2,
            help="Lower the context to this.  [by model]",
            show_default=False,
        ),
    ] = None,
    token_budget: Annotated[
        int, typer.Option(envvar="BLAZR_TOKEN_BUDGET", help="Most tokens computed in one step.")
    ] = 512,
    prefix_cache: Annotated[
        bool, typer.Option(envvar="BLAZR_PREFIX_CACHE", help="Reuse prefixes of earlier requests.")
    ] = True,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running replies get to finish when stopping.")
    ] = 30.0,
    vocab: options.Vocab = None,
    chat_template: options.ChatTemplate = None,
    device: options.DeviceName = "auto",
    cpu: options.Cpu = False,
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = None,
    verbose: options.Verbose = False,
) -> None:
    """Serve a model over HTTP, in the dialects of OpenAI, Anthropic and Ollama."""
    from blazr.server.config import ServerConfig
    from blazr.server.serve import address_of, listen
    from blazr.server.serve import serve as run_server

    if not verbose:
        log.setup("info")
    name = options.pick_model(model, model_argument)
    config = ServerConfig(
        host=host,
        port=port,
        api_keys=_keys(api_key or [], api_key_file),
        cors_origins=tuple(cors_origin or ()),
        served_name=served_model_name,
        accept_any_model=accept_any_model,
        drain_timeout_s=drain_timeout,
    )
    sock = listen(config)
    # torch comes with these, and a port in use should be told at once
    from blazr.engine.config import EngineConfig
    from blazr.llm.async_llm import AsyncLLM
    from blazr.llm.open import open_model

    core = open_model(
        name,
        device=options.pick_device(device, cpu=cpu),
        dtype=dtype,
        vocab=vocab,
        chat_template=chat_template,
        quantize=quantize,
        engine=EngineConfig(
            memory=memory,
            max_running=max_running,
            max_waiting=max_waiting,
            max_seq_len=max_seq_len,
            token_budget=token_budget,
            prefix_cache=prefix_cache,
        ),
    )
    try:
        _say(f"blazr serves {core.info.name} on {address_of(sock)} ({core.info.device})")
        if not config.is_loopback and not config.api_keys:
            _say(
                "warning: anyone who can reach this machine can use it; "
                "set --api-key, or listen on --host 127.0.0.1"
            )
        run_server(AsyncLLM(core), config, sock, aliases=(name,))
    finally:
        core.close()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _keys(given: list[str], file: Path | None) -> tuple[str, ...]:
    keys = [*given, *(key.strip() for key in env.get("BLAZR_API_KEY").split(",") if key.strip())]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError(
                "the file of API keys cannot be read.", found=str(error)[:200]
            ) from None
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError("the file of API keys holds none.", found=str(file)[:200])
        keys += found
    return tuple(keys)
