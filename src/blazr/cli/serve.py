"""``blazr serve``: the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from blazr.cli import options
from blazr.cli.model_plans import ModelPlan, apply_settings, plan_models
from blazr.core import log
from blazr.core.errors import ConfigError
from blazr.server.config import Limits, ServerConfig

if TYPE_CHECKING:
    from blazr.server.models import Models


AccessLog = Literal["text", "json", "off"]


def _split_variable(
    ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """Split the values of an environment variable at commas."""
    source = ctx.get_parameter_source(param.name or "")
    if value is None or source is None or source.name != "ENVIRONMENT":
        return value
    return [each for each in ",".join(value).split(",") if each]


def _models_of_flag(
    ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """The models of ``--model``; a MODEL argument overrides those of variable and settings file."""
    source = ctx.get_parameter_source("model")
    if ctx.params.get("model_argument") and source is not None and source.name != "COMMANDLINE":
        return None
    return _split_variable(ctx, param, value)


@options.with_flags
def serve(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Directory, .safetensors or .gguf file, Hugging Face id; NAME=PATH, repeated, "
            "for several models, each loaded when first used.  [default: built-in nano]",
            show_default=False,
            callback=_models_of_flag,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            callback=apply_settings,
            is_eager=True,
            help="Settings file (TOML): flags without dashes, and [models].",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8080,
    health_port: Annotated[
        int | None,
        typer.Option(help="Port that answers /health, without TLS, however busy the other one is."),
    ] = None,
    uds: Annotated[
        str | None, typer.Option(help="Unix socket to listen on, instead of a port.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate file (PEM), for HTTPS.")] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="Private key file (PEM) of the certificate.")
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="Path under which a proxy serves this server, such as /llm.")
    ] = "",
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="API key that clients must send; repeatable.", callback=_split_variable),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with one API key per line; # begins a comment.")
    ] = None,
    admin_api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="API key for commands such as /sleep; repeatable.  [default: any API key]",
            callback=_split_variable,
            show_default=False,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name under which to answer without API keys, besides this machine's own, "
            "names without a dot and IP addresses; * is any; repeatable.",
            callback=_split_variable,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Web origin that may call the server besides localhost; * is any; repeatable.",
            callback=_split_variable,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the model in the API; repeatable, for more names.  [default: its own]",
            callback=_split_variable,
        ),
    ] = None,
    accept_any_model: Annotated[
        bool, typer.Option("--accept-any-model", help="Answer requests whatever model they name.")
    ] = False,
    idle_unload: Annotated[
        float | None,
        typer.Option(min=0, help="Unload a model that was not used for this many seconds."),
    ] = None,
    models_memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory for all models (24GiB); the least recently used are unloaded."
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds that running replies have to finish when the server stops."
        ),
    ] = 30.0,
    ui: Annotated[
        bool, typer.Option(help="Serve the chat page at / and the API viewer at /docs.")
    ] = True,
    access_log: Annotated[
        AccessLog, typer.Option(help="Log a line for each request: text, json or off.")
    ] = "text",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(help="Send OpenTelemetry traces to this address (http://localhost:4318)."),
    ] = None,
    adapter_dir: Annotated[
        Path | None,
        typer.Option(help="Folder from which /v1/load_lora_adapter may read adapters."),
    ] = None,
    weights_dir: Annotated[
        Path | None, typer.Option(help="Folder from which /update_weights may read checkpoints.")
    ] = None,
    profile_dir: Annotated[
        Path | None, typer.Option(help="Folder to which /stop_profile writes profiles.")
    ] = None,
    limits: Limits,
    load: options.ServeFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            help="Log level: error, warn, info, debug, trace, or blazr.engine=debug.  "
            "[default: info]"
        ),
    ] = None,
) -> None:
    """Serve models over HTTP, in the dialects of OpenAI, Anthropic and Ollama."""
    from blazr.engine.config import parse_memory
    from blazr.server.liveness import Liveness
    from blazr.server.serve import address_of, listen
    from blazr.server.serve import serve as run_server

    log.setup("debug" if verbose else "info", levels=log_level)
    named = [*([model_argument] if model_argument else []), *(model or ())]
    plans = plan_models(named, config, load, default=options.BUILT_IN)
    bound = parse_memory(models_memory, free_bytes=0) if models_memory else None
    server = ServerConfig(
        host=host,
        port=port,
        health_port=health_port,
        uds=uds,
        tls_cert=tls_cert,
        tls_key=tls_key,
        root_path=root_path,
        api_keys=read_api_keys(api_key or [], api_key_file),
        admin_api_keys=tuple(admin_api_key or ()),
        adapter_dir=adapter_dir,
        weights_dir=weights_dir,
        profile_dir=profile_dir,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        served_names=tuple(served_model_name or ()),
        accept_any_model=accept_any_model,
        idle_unload_s=idle_unload,
        models_memory_bytes=bound,
        drain_timeout_s=drain_seconds,
        has_ui=ui,
        access_log=access_log,
        otlp_endpoint=otlp_endpoint,
        **asdict(limits),
    )
    if len(plans) > 1 and server.served_names:
        raise ConfigError(
            "--served-model-name is for one model; several have a name each.",
            expected="--model NAME=PATH",
        )
    sock = listen(server)  # first, so that a port in use is told before minutes are spent
    liveness = None if health_port is None else Liveness(host, health_port)
    options.set_threads(threads)
    models = open_models(plans, server)
    _print_addresses(models, server, address_of(sock, is_tls=tls_cert is not None))
    run_server(models, sock, liveness)


def _print_addresses(models: Models, config: ServerConfig, address: str) -> None:
    names = ", ".join(slot.source.name for slot in models.slots)
    info = models.slots[0].info
    lines = [f"blazr serves {names} on {address}" + (f" ({info.device})" if info else "")]
    if config.uds is None:
        # what listens on every address is reached on this machine's own
        base = address.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
        base += config.root_path
        if config.has_ui:
            lines += [f"  chat page      {base}/", f"  API reference  {base}/docs"]
        lines.append(f"  OpenAI's API   {base}/v1")
    if not config.is_loopback and not config.api_keys:
        lines.append(
            "warning: anyone who can reach this machine can use it; "
            "set --api-key, or listen on --host 127.0.0.1"
        )
    log.write_line("\n".join(lines))


def open_models(plans: Sequence[ModelPlan], config: ServerConfig) -> Models:
    """The models; one that is alone is loaded now, so that what is wrong with it shows at once."""
    # torch comes with these, and a port in use should be told before
    from blazr.llm.async_llm import AsyncLLM
    from blazr.server.models import Models, ModelSource

    if len(plans) > 1:
        sources = [
            ModelSource(
                name=plan.name or plan.path,
                open=plan.open,
                adapters=plan.adapters,
                num_bytes=plan.num_bytes,
                capabilities=plan.capabilities,
            )
            for plan in plans
        ]
        return Models(sources, config)
    (plan,) = plans
    model = plan.open()
    info = model.core.info if isinstance(model, AsyncLLM) else model.info
    name, *more = config.served_names or (plan.name or info.name,)
    source = ModelSource(
        name=name,
        open=plan.open,
        aliases=(*more, plan.path),
        adapters=plan.adapters,
        capabilities=plan.capabilities,
    )
    models = Models([source], config)
    models.adopt(model)
    return models


def read_api_keys(given: list[str], file: Path | None) -> tuple[str, ...]:
    """The API keys of the command line, and those of a file.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    keys = [*given]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError("the API key file cannot be read.", found=str(error)[:200]) from None
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError("the API key file holds no key.", found=str(file)[:200])
        keys += found
    return tuple(keys)
