"""Replies with calls of tools that models wrote: kept in GitHub's threads, mostly because some
parser stumbled over them.
"""

from __future__ import annotations

from tests.recorded_calls import Recorded

OUTPUTS = (
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
        "llama3_json",
        "raullenchai/Rapid-MLX#700 (Meta-Llama-3.1-8B-Instruct-4bit)",
        '{"name": "web_search", "parameters": {"query": "你好"}}',
        (("web_search", '{"query": "你好"}'),),
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
)
