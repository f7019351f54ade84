"""The clients that are tried: one row each, and its script in ``scripts/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
ENVIRONMENTS = ROOT / "build" / "clients"
NPM = {"node", "agents"}


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
        name: What its users call it.
        script: The file in ``scripts/`` that uses it.
        environment: Where it is installed, with others that agree on what they need; those of NPM
            are npm's, all others are Python's.
        packages: What is installed, ``name==version`` (npm: ``name@version``), the client first.
        checks: What its script tries, in that order.
        unsupported: What its users may miss.
        is_launched: Whether ``blazr launch`` runs it, on a model that answers as agents expect.
    """

    name: str
    script: str
    environment: str
    packages: tuple[str, ...]
    checks: tuple[str, ...]
    unsupported: str = ""
    is_launched: bool = False

    @property
    def version(self) -> str:
        """The version of the client itself."""
        return self.packages[0].replace("@", "==").rpartition("==")[2]

    @property
    def path(self) -> Path:
        """Its script."""
        return SCRIPTS / self.script


CLIENTS = (
    Client(
        "OpenAI (Python)",
        "openai_python.py",
        "sdk",
        ("openai==2.54.0",),
        (
            "chat",
            "stream",
            "asynchronous",
            "tools",
            "json",
            "completions",
            "responses",
            "embeddings",
            "models",
        ),
        unsupported="fine-tuning, conversations",
    ),
    Client(
        "OpenAI (Node)",
        "openai_node.mjs",
        "node",
        ("openai@7.57.0",),
        ("chat", "stream", "tools", "json", "responses", "embeddings", "models"),
        unsupported="as in Python",
    ),
    Client(
        "Anthropic (Python)",
        "anthropic_python.py",
        "sdk",
        ("anthropic==2.12.0",),
        ("chat", "stream", "tools", "json", "count_tokens", "models"),
        unsupported="documents, batches, Anthropic's own tools",
    ),
    Client(
        "Ollama (Python)",
        "ollama_python.py",
        "sdk",
        ("ollama==0.6.3",),
        ("chat", "stream", "generate", "tools", "json", "embeddings", "models"),
        unsupported="create, copy, delete, push",
    ),
    Client(
        "Ollama (Node)",
        "ollama_node.mjs",
        "node",
        ("ollama@0.6.4",),
        ("chat", "stream", "generate", "json", "embeddings", "models"),
        unsupported="as in Python",
    ),
    Client(
        "Vercel AI SDK",
        "vercel_ai.mjs",
        "node",
        ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92"),
        ("chat", "stream", "tools", "json", "embeddings"),
    ),
    Client(
        "LangChain",
        "langchain_models.py",
        "sdk",
        (
            "langchain-openai==1.7.3",
            "langchain-anthropic==1.7.7",
            "langchain-ollama==1.1.0",
        ),
        ("chat", "stream", "tools", "json", "embeddings"),
        unsupported="embeddings by token ids of OpenAI's vocabulary",
    ),
    Client(
        "LiteLLM",
        "litellm_routes.py",
        "litellm",
        ("litellm==1.106.2", "mcp==2.3.0"),  # without mcp it can neither call tools nor respond
        (
            "openai",
            "hosted_vllm",
            "anthropic",
            "text_completion",
            "responses",
            "embedding",
            "rerank",
            "ollama",
            "ollama_chat",
        ),
        unsupported="schemas of tools that are closed, through `hosted_vllm/`",
    ),
    Client(
        "instructor",
        "instructor_modes.py",
        "litellm",
        ("instructor==1.17.0",),
        (
            "tools",
            "tools_strict",
            "parallel_tools",
            "json_schema",
            "responses_tools",
            "json",
            "md_json",
        ),
        unsupported="holding the model to its form in `parallel_tools`, `json`, `md_json`",
    ),
    Client(
        "pydantic-ai",
        "pydantic_ai_agent.py",
        "sdk",
        ("pydantic-ai-slim[openai]==2.31.1",),
        ("chat", "stream", "tools", "json"),
    ),
    Client(
        "OpenAI Agents SDK",
        "openai_agents.py",
        "sdk",
        ("openai-agents==0.20.0",),
        ("chat", "stream", "tools", "json"),
    ),
    Client(
        "LlamaIndex",
        "llama_index_like.py",
        "sdk",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
        ("chat", "stream", "completions", "tools", "embeddings"),
    ),
    Client(
        "llm",
        "llm_command.py",
        "sdk",
        ("llm==0.32.1",),
        ("chat", "stream", "json"),
    ),
    Client(
        "smolagents",
        "smolagents_model.py",
        "sdk",
        ("smolagents[openai]==1.26.0",),
        ("chat", "stream", "tools"),
        unsupported="agents on the built-in model, which is too small",
    ),
    Client(
        "huggingface_hub",
        "hub_inference.py",
        "hub",
        ("huggingface_hub==2.4.0",),
        ("text", "stream", "json", "errors"),
        unsupported="`best_of` and `watermark` of `text_generation`",
    ),
    Client(
        "Haystack",
        "haystack_generator.py",
        "sdk",
        ("haystack-ai==3.4.0",),
        ("chat", "stream", "tools", "json", "embeddings"),
    ),
    Client(
        "DSPy",
        "dspy_predict.py",
        "litellm",
        ("dspy==3.4.1", "numpy==2.4.6"),
        ("chat", "embeddings"),
    ),
    Client("guidellm", "guidellm_benchmark.py", "evaluation", ("guidellm==0.8.1",), ("benchmark",)),
    Client(
        "lm-eval",
        "lm_eval_parity.py",
        "evaluation",
        ("lm-eval[api,hf]==0.4.13", "torch==2.13.0", "transformers==5.23.0"),
        ("choices", "remote_tokenizer", "choices_after_bos", "perplexity", "completions", "chat"),
        unsupported="`tokenizer_backend=remote` for models with a beginning-of-text token",
    ),
    Client(
        "Claude Code",
        "claude_code.py",
        "agents",
        ("@anthropic-ai/claude-code@2.1.330",),
        ("tools",),
        unsupported="web search, images, documents",
        is_launched=True,
    ),
    Client(
        "Codex",
        "codex_exec.py",
        "agents",
        ("@openai/codex@0.169.0",),
        ("tools", "apply_patch"),
        unsupported="web search, images; `apply_patch` is not offered to models it does not know",
        is_launched=True,
    ),
    Client(
        "opencode",
        "opencode_run.py",
        "agents",
        ("opencode-ai@1.18.33",),
        ("tools",),
        unsupported="images",
        is_launched=True,
    ),
    Client(
        "aider",
        "aider_edit.py",
        "aider",
        ("aider-chat==0.86.2",),
        ("ask", "edit"),
        is_launched=True,
    ),
    Client(
        "Open WebUI",
        "open_webui.py",
        "open-webui",
        ("open-webui==0.12.4", "torch==2.13.0"),
        ("models", "chat", "stream", "tasks", "connections", "ollama"),
        unsupported="images, speech; embeddings of documents are its own",
        is_launched=True,
    ),
)


def packages(environment: str) -> tuple[str, ...]:
    """All that is installed in an environment."""
    names = (name for row in CLIENTS if row.environment == environment for name in row.packages)
    return tuple(dict.fromkeys(names))


def programs(environment: str) -> Path:
    """Where an environment has its programs."""
    return ENVIRONMENTS / environment / ("node_modules/.bin" if environment in NPM else "bin")


def installed_list(environment: str) -> Path:
    """The file that says what was installed; written when all of it was."""
    return ENVIRONMENTS / environment / "installed.txt"


def is_installed(environment: str) -> bool:
    """Whether an environment holds what the table names, at these versions."""
    path = installed_list(environment)
    return path.exists() and tuple(path.read_text("utf-8").split()) == packages(environment)


def render() -> str:
    """The table in docs/how-to/clients.md."""
    lines = [
        "| client | version | what is tried, and passes | what is not supported |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.version} | {', '.join(row.checks).replace('_', ' ')} "
        f"| {row.unsupported} |"
        for row in CLIENTS
    ]
    return "\n".join(lines)
