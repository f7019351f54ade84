# ruff: noqa: RUF001  (letters of many scripts)
"""Replies with calls of tools that models wrote: kept in GitHub's threads, logs and model cards,
mostly because some parser stumbled over them.

A reply stands here as it was kept. Where what kept it broke it off, or took the thinking out, its
source says so. Of `gigachat` and `gigachat3` no reply was found, and `agent` is oxidizr's own: of
these the built-in model wrote the replies, held to the format by its grammar (`tool_choice:
required`).
"""

from __future__ import annotations

from tests.support.recorded_calls import Recorded, wide
from tests.support.recorded_json_outputs import JSON_OUTPUTS

OUTPUTS = (
    *JSON_OUTPUTS,
    Recorded(
        "qwen3_coder",
        "vllm-project/vllm#22975 (Qwen3-Coder-480B-A35B-Instruct-FP8)",
        "Let me check if there might be a base.py file that's not showing up. Since we know it's "
        "being imported, let me try to grep for the implementation of BaseService.\n\n<tool_call>\n"
        "<function=GrepTool>\n<parameter=pattern>\nclass BaseService\\(\n</parameter>\n"
        "<parameter=path>\n.\n</parameter>\n</function>\n</tool_call>",
        (("GrepTool", r'{"pattern": "class BaseService\\(", "path": "."}'),),
        "Let me check if there might be a base.py file that's not showing up. Since we know it's "
        "being imported, let me try to grep for the implementation of BaseService.",
    ),
    Recorded(
        "qwen3_coder",
        "jundot/omlx#844 (Qwen3-Coder-30B-A3B-Instruct-4bit), which forgets to begin",
        "I'll check the model information to confirm I'm running on the local oMLX server.\n\n"
        "<function=Bash>\n<parameter=command>\necho $ANTHROPIC_BASE_URL && echo "
        "$ANTHROPIC_DEFAULT_SONNET_MODEL\n</parameter>\n</function>\n</tool_call>",
        (
            (
                "Bash",
                '{"command": "echo $ANTHROPIC_BASE_URL && echo $ANTHROPIC_DEFAULT_SONNET_MODEL"}',
            ),
        ),
        "I'll check the model information to confirm I'm running on the local oMLX server.",
    ),
    Recorded(
        "minimax_m2",
        "MiniMax-AI/MiniMax-M2.5#10 (MiniMax-M2.5)",
        '<minimax:tool_call>\n  <invoke name="exec">\n    <parameter name="command">ls'
        "</parameter>\n  </invoke>\n</minimax:tool_call>",
        (("exec", '{"command": "ls"}'),),
    ),
    Recorded(
        "minimax_m2",
        "earendil-works/pi#368 (MiniMax-M2.1)",
        '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">mb --help'
        '</parameter>\n</invoke>\n<invoke name="bash">\n<parameter name="command">cm --help'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        (("bash", '{"command": "mb --help"}'), ("bash", '{"command": "cm --help"}')),
    ),
    Recorded(
        "glm45",
        "alibaba/rtp-llm#525 (GLM-4.6)",
        "<tool_call>get_current_weather\n<arg_key>location</arg_key>\n<arg_value>杭州</arg_value>\n"
        "</tool_call>",
        (("get_current_weather", '{"location": "杭州"}'),),
    ),
    Recorded(
        "glm47",
        "osaurus-ai/vmlx-swift#228 (a model of GLM's family), alibaba/rtp-llm#525 (GLM-4.7)",
        "<tool_call>list_mailboxes</tool_call>",
        (("list_mailboxes", "{}"),),
    ),
    Recorded(
        "kimi_k2",
        "MoonshotAI/Kimi-K2#26 (Kimi-K2-Instruct): the arguments are a string",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.TodoWrite:1"
        '<|tool_call_argument_begin|>"{\\"todos\\": [{\\"id\\": \\"transform-analysis\\", '
        '\\"content\\": \\"Analyze transform.ts file - data structures, type safety, and error '
        'handling patterns\\", \\"status\\": \\"in_progress\\", \\"priority\\": \\"high\\"}]}"'
        "<|tool_call_end|><|tool_calls_section_end|>",
        (
            (
                "TodoWrite",
                (
                    '{"todos": [{"id": "transform-analysis", "content": "Analyze transform.ts file '
                    '- data structures, type safety, and error handling patterns", "status": '
                    '"in_progress", "priority": "high"}]}'
                ),
            ),
        ),
    ),
    Recorded(
        "mistral_args",
        "raullenchai/Rapid-MLX#1071 (Devstral-Small-2-24B-Instruct-2512-4bit)",
        '[TOOL_CALLS]web_search[ARGS]{"query": "latest AI model releases this month"}',
        (("web_search", '{"query": "latest AI model releases this month"}'),),
    ),
    Recorded(
        "mistral_args",
        "the same where the tokens between are not shown, from the same thread",
        '[TOOL_CALLS]web_search{"query": "latest AI model releases this month"}',
        (("web_search", '{"query": "latest AI model releases this month"}'),),
    ),
    Recorded(
        "mistral_args",
        "vllm-project/vllm#30651 (Devstral-Small-2-24B-Instruct-2512)",
        '[TOOL_CALLS]create_file{"filePath": "/workspaces/overleaf_dev/workspace/git-bridge/'
        'overleaf_with_admin_extension/blabla.txt", "content": "This is a test file created to '
        'verify file creation functionality."}',
        (
            (
                "create_file",
                (
                    '{"filePath": "/workspaces/overleaf_dev/workspace/git-bridge/'
                    'overleaf_with_admin_extension/blabla.txt", "content": "This is a test file '
                    'created to verify file creation functionality."}'
                ),
            ),
        ),
    ),
    Recorded(
        "pythonic",
        "vllm-project/vllm#22917 (Llama 4)",
        '[get_todays_date(), get_weather(location="Dublin, Ireland", date="2025-04-14")]',
        (
            ("get_todays_date", "{}"),
            ("get_weather", '{"location": "Dublin, Ireland", "date": "2025-04-14"}'),
        ),
    ),
    Recorded(
        "pythonic",
        "vllm-project/vllm#16214 (Llama 4), which was asked for JSON",
        '<|python_start|>{"name": "brave_web_search", "parameters": {"query": "latest news"}}'
        "<|python_end|>",
        (("brave_web_search", '{"query": "latest news"}'),),
    ),
    Recorded(
        "lfm2",
        "ggml-org/llama.cpp#23838 (LFM2.5-8B-A1B)",
        "<|tool_call_start|>[web_search_exa(query='current temperature in Mexico City', "
        "numResults=5)]<|tool_call_end|>",
        (
            (
                "web_search_exa",
                '{"query": "current temperature in Mexico City", "numResults": 5}',
            ),
        ),
    ),
    Recorded(
        "lfm2",
        "vllm-project/vllm#39243 (LFM2-2.6B), with a space",
        '<|tool_call_start|>[get_current_temperature(location="Tokyo")] <|tool_call_end|>',
        (("get_current_temperature", '{"location": "Tokyo"}'),),
    ),
    Recorded(
        "lfm2",
        "ggml-org/llama.cpp#21242: LFM2.5 leaves the tokens out",
        '[get_weather(city="Oslo")]',
        (("get_weather", '{"city": "Oslo"}'),),
    ),
    Recorded(
        "gemma4",
        "dotLLM's tests, issue 776 (gemma-4-E4B-it Q4_K_M)",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
        (("get_weather", '{"city": "Paris"}'),),
    ),
    Recorded(
        "gemma4",
        "an evaluation's records, live_irrelevance_86-2-74 (gemma-4-26B-A4B-it)",
        '<|tool_call>call:google_search:search{queries:[<|"|>what is Columbia University<|"|>]}'
        "<tool_call|>",
        (("google_search:search", '{"queries": ["what is Columbia University"]}'),),
    ),
    Recorded(
        "functiongemma",
        "a trace of Jarvis-CD's tools, c1, T=0.3, seed 44 (a tuned FunctionGemma), between the "
        "thinking and the answer of the tool, which it makes up",
        "<start_function_call>call:append_pkg{do_configure:true,extra_args:{nprocs:16},"
        "pipeline_id:<escape>bench_v2<escape>,pkg_type:<escape>ior<escape>}<end_function_call>",
        (
            (
                "append_pkg",
                (
                    '{"do_configure": true, "extra_args": {"nprocs": 16}, "pipeline_id": '
                    '"bench_v2", "pkg_type": "ior"}'
                ),
            ),
        ),
    ),
    Recorded(
        "harmony",
        "ai-dynamo/dynamo's tests, which keep the tokens of a stream (gpt-oss-20b)",
        "<|channel|>analysis<|message|>User asks for weather in San Francisco in Celsius. Use "
        "function.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"location":"San Francisco, CA","unit":"celsius"}<|call|>',
        (("get_weather", '{"location":"San Francisco, CA","unit":"celsius"}'),),
        "<|channel|>analysis<|message|>User asks for weather in San Francisco in Celsius. Use "
        "function.<|end|>",
    ),
    Recorded(
        "harmony",
        "waybarrios/vllm-mlx#562 (gpt-oss-20b-MXFP4-Q8), which calls from among its thoughts",
        "<|channel|>analysis<|message|>We need to run ffgrep. Let us search.\n<|end|><|start|>"
        "assistant<|channel|>analysis to=functions.ffgrep code<|message|>\n"
        '{"path":"","pattern":"TextualDisplayView"}<|call|>',
        (("ffgrep", '{"path":"","pattern":"TextualDisplayView"}'),),
        "<|channel|>analysis<|message|>We need to run ffgrep. Let us search.\n<|end|>",
    ),
    Recorded(
        "seed_oss",
        "vllm-project/vllm's test of its parser, after the thinking (Seed-OSS-36B-Instruct)",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=location>Barcelona, Spain"
        "</parameter>\n<parameter=unit>celsius</parameter>\n</function>\n</seed:tool_call>",
        (("get_weather", '{"location": "Barcelona, Spain", "unit": "celsius"}'),),
    ),
    Recorded(
        "deepseek_v3",
        "deepcogito/cogito-671b-v2.1, model card",
        wide(
            "{calls▁begin}{call▁begin}function{sep}get_current_temperature\n```json\n"
            '{"location":"Paris, France"}\n```{call▁end}{calls▁end}'
        ),
        (("get_current_temperature", '{"location":"Paris, France"}'),),
    ),
    Recorded(
        "deepseek_v3",
        "deepcogito/cogito-671b-v2.1, model card: neither a line's end nor a fence",
        wide(
            "{calls▁begin}{call▁begin}function{sep}get_current_temperature{sep}"
            '{"location": "San Francisco, USA"}{call▁end}{calls▁end}'
        ),
        (("get_current_temperature", '{"location": "San Francisco, USA"}'),),
    ),
    Recorded(
        "deepseek_v3",
        "gorilla's evaluation, what its reader is for (DeepSeek-Coder-V2)",
        wide(
            "{calls▁begin}{call▁begin}function{sep}calculate_cosine.similarity\n```json\n"
            '{"vectorA": [0.5, 0.7, 0.2, 0.9, 0.1], "vectorB": [0.3, 0.6, 0.2, 0.8, 0.1]}\n'
            "```{call▁end}\n{call▁begin}function{sep}calculate_cosine_similarity\n```json\n"
            '{"vectorA": [0.2, 0.4, 0.6, 0.8, 1.0], "vectorB": [1.0, 0.8, 0.6, 0.4, 0.2]}\n'
            "```{call▁end}\n{call▁begin}function{sep}calculate_cosine_similarity\n```json\n"
            '{"vectorA": [0.1, 0.2, 0.3, 0.4, 0.5], "vectorB": [0.5, 0.4, 0.3, 0.2, 0.1]}\n'
            "```{call▁end}{calls▁end}"
        ),
        (
            (
                "calculate_cosine.similarity",
                '{"vectorA": [0.5, 0.7, 0.2, 0.9, 0.1], "vectorB": [0.3, 0.6, 0.2, 0.8, 0.1]}',
            ),
            (
                "calculate_cosine_similarity",
                '{"vectorA": [0.2, 0.4, 0.6, 0.8, 1.0], "vectorB": [1.0, 0.8, 0.6, 0.4, 0.2]}',
            ),
            (
                "calculate_cosine_similarity",
                '{"vectorA": [0.1, 0.2, 0.3, 0.4, 0.5], "vectorB": [0.5, 0.4, 0.3, 0.2, 0.1]}',
            ),
        ),
    ),
    Recorded(
        "deepseek_v31",
        "alibaba/rtp-llm's tests, which keep the tokens (DeepSeek-V3.1)",
        wide(
            "我来为您查询北京和杭州的天气情况。{calls▁begin}{call▁begin}get_current_weather{sep}"
            '{"location": "北京", "unit": "celsius"}{call▁end}{call▁begin}get_current_weather{sep}'
            '{"location": "杭州", "unit": "celsius"}{call▁end}{calls▁end}\n'
        ),
        (
            ("get_current_weather", '{"location": "北京", "unit": "celsius"}'),
            ("get_current_weather", '{"location": "杭州", "unit": "celsius"}'),
        ),
        "我来为您查询北京和杭州的天气情况。",
    ),
    Recorded(
        "deepseek_v32",
        "328pikapika-bot/SwiftBoot, answers in a dump of its database (deepseek-chat, 2026-02-10)",
        wide(
            "让我搜索更通用的日志查询代码：\n\n<{DSML}function_calls>\n<{DSML}invoke "
            'name="search_codebase">\n<{DSML}parameter name="query" string="true">log query '
            "日志查询 分页</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>"
        ),
        (("search_codebase", '{"query": "log query 日志查询 分页"}'),),
        "让我搜索更通用的日志查询代码：",
    ),
    Recorded(
        "deepseek_v32",
        "another answer in the same dump",
        wide(
            "是的，SwiftBoot 智能助手确实实现了**检索增强生成（RAG）**，但采用的是**创新的 Agent "
            "工具调用模式**，而不是传统的向量检索方式。\n\n让我查看具体的实现代码：\n\n"
            '<{DSML}function_calls>\n<{DSML}invoke name="search_codebase">\n<{DSML}parameter '
            'name="query" string="true">search_codebase 工具定义 function</{DSML}parameter>\n'
            "</{DSML}invoke>\n</{DSML}function_calls>"
        ),
        (("search_codebase", '{"query": "search_codebase 工具定义 function"}'),),
        "是的，SwiftBoot 智能助手确实实现了**检索增强生成（RAG）**，但采用的是**创新的 Agent "
        "工具调用模式**，而不是传统的向量检索方式。\n\n让我查看具体的实现代码：",
    ),
    Recorded(
        "deepseek_v4",
        "sgl-project/sglang#35736 (DeepSeek-V4)",
        wide(
            '<{DSML}tool_calls>\n<{DSML}invoke name="Bash">\n<{DSML}parameter name="command" '
            'string="true">pwd</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}tool_calls>'
        ),
        (("Bash", '{"command": "pwd"}'),),
    ),
    Recorded(
        "deepseek_v4",
        "anomalyco/opencode#24566 (DeepSeek-V4-Flash)",
        wide(
            '<{DSML}tool_calls>\n<{DSML}invoke name="read">\n<{DSML}parameter name="filePath" '
            'string="true">I:\\hrc\\usermode\\src\\hypercall\\hypercall.cpp</{DSML}parameter>\n'
            '<{DSML}parameter name="limit" string="false">15</{DSML}parameter>\n<{DSML}parameter '
            'name="offset" string="false">357</{DSML}parameter>\n</{DSML}invoke>\n'
            "</{DSML}tool_calls>"
        ),
        (
            (
                "read",
                (
                    r'{"filePath": "I:\\hrc\\usermode\\src\\hypercall\\hypercall.cpp", '
                    '"limit": 15, "offset": 357}'
                ),
            ),
        ),
    ),
    Recorded(
        "deepseek_v4",
        "sgl-project/sglang#39435 (DeepSeek-V4.1-Flash): a tag without its token and type",
        wide(
            "I'll call the `set_flag` function to enable the flag.\n\n<{DSML}tool_calls>\n"
            '<{DSML}invoke name="set_flag">\n<parameter name="enabled">true</{DSML}parameter>\n'
            "</{DSML}invoke>\n</{DSML}tool_calls>"
        ),
        (("set_flag", '{"enabled": true}'),),
        "I'll call the `set_flag` function to enable the flag.",
    ),
    Recorded(
        "gigachat35",
        "ggml-org/llama.cpp#25342 (GigaChat3.5-432B-A28B), as a terminal shows it, without the "
        "first token",
        wide(
            'tool_calls>\n<{GCML}invoke name="code-review">\n</{GCML}invoke>\n</{GCML}tool_calls>'
        ),
        (("code-review", "{}"),),
        "tool_calls>",
    ),
    Recorded(
        "functionary_v31",
        "kagent-dev/kagent#1532 (Llama 3.3 70B at Groq), broken off",
        '<function=run_command {"command": "kubectl get deployments -n demo"} ',
        (("run_command", '{"command": "kubectl get deployments -n demo"}'),),
    ),
    Recorded(
        "functionary_v31",
        "a README of 08-crypto-chatbot (Llama at Groq)",
        '<function=get_symbol>{"company": "Vinfast", "country": "VN"}</function>\n'
        '<function=get_stock_price>{"symbol": "VFS"}></function>',
        (
            ("get_symbol", '{"company": "Vinfast", "country": "VN"}'),
            ("get_stock_price", '{"symbol": "VFS"}'),
        ),
    ),
    Recorded(
        "functionary_v31",
        "notes of a course on agents, EP4 (Llama at Groq)",
        '<function=write_file{"content": "花好月圆人寿，世代共承欢乐。", "path": "词.txt"}>'
        "</function>",
        (("write_file", '{"content": "花好月圆人寿，世代共承欢乐。", "path": "词.txt"}'),),
    ),
    Recorded(
        "functionary_v31",
        "a log of poc-i1110Labs (Llama at Groq): no arguments",
        "<function=get_cart></function>",
        (("get_cart", "{}"),),
    ),
    Recorded(
        "nemotron",
        "MediPrice Pro, AI Provider Benchmark Report of 2026-07-21 (a model of OpenRouter's)",
        '<TOOLCALL>[{"name": "calculate_margin", "arguments": {"cost": 200, '
        '"margin_percentage": 25}}]</TOOLCALL>\n',
        (("calculate_margin", '{"cost": 200, "margin_percentage": 25}'),),
    ),
)
