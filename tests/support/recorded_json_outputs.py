"""Replies with calls as JSON that models wrote; see `recorded_outputs`."""

from __future__ import annotations

from tests.support.recorded_calls import Recorded

JSON_OUTPUTS = (
    Recorded(
        "hermes",
        "lmstudio-ai/lmstudio-bug-tracker#825 (qwen3-4b), after the thinking",
        '<tool_call>\n{"name": "search_products", "arguments": {"query": "Dell", "category": '
        '"electronics", "max_price": 50}}\n</tool_call>',
        (("search_products", '{"query": "Dell", "category": "electronics", "max_price": 50}'),),
    ),
    Recorded(
        "hermes",
        "vllm-project/vllm#5649 (Hermes-2-Pro-Llama-3-8B)",
        '<tool_call>\n{"arguments": {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}, '
        '"name": "get_current_weather"}\n</tool_call>',
        (("get_current_weather", '{"city": "Dallas", "state": "TX", "unit": "fahrenheit"}'),),
    ),
    Recorded(
        "hermes",
        "HuanzhiMao/BFCL-Result, parallel 40 (Hermes-2-Pro-Mistral-7B)",
        '\n<tool_call>\n{"arguments": {"exhibition_name": "Wonder of Nature", "museum_name": '
        '"Louvre"}, "name": "museum_exhibition_detail"}\n</tool_call>\n<tool_call>\n'
        '{"arguments": {"exhibition_name": "Age of Reptiles", "museum_name": "British Museum"}, '
        '"name": "museum_exhibition_detail"}\n</tool_call>\n',
        (
            (
                "museum_exhibition_detail",
                '{"exhibition_name": "Wonder of Nature", "museum_name": "Louvre"}',
            ),
            (
                "museum_exhibition_detail",
                '{"exhibition_name": "Age of Reptiles", "museum_name": "British Museum"}',
            ),
        ),
    ),
    Recorded(
        "hermes",
        "the same, parallel 5: Python's quotes and words",
        "\n<tool_call>\n{\"arguments\": {'streaming_service': 'Netflix', 'show_list': "
        "['Friends'], 'sort_by_rating': True}, \"name\": 'streaming_services_shows_list_and_ratings"
        "'}\n</tool_call>\n<tool_call>\n{\"arguments\": {'streaming_service': 'Hulu', 'show_list': "
        "['The Office', 'Stranger Things'], 'sort_by_rating': True}, \"name\": "
        "'streaming_services_shows_list_and_ratings'}\n</tool_call>\n",
        (
            (
                "streaming_services_shows_list_and_ratings",
                (
                    '{"streaming_service": "Netflix", "show_list": ["Friends"], '
                    '"sort_by_rating": true}'
                ),
            ),
            (
                "streaming_services_shows_list_and_ratings",
                (
                    '{"streaming_service": "Hulu", "show_list": ["The Office", "Stranger Things"], '
                    '"sort_by_rating": true}'
                ),
            ),
        ),
    ),
    Recorded(
        "hermes",
        "the same, parallel 31: and no others",
        "\n<tool_call>\n{'arguments': {'event': 'Treaty of Paris', 'depth': 'brief'}, 'name': "
        "'history_fact_fetch'}\n</tool_call>\n<tool_call>\n{'arguments': {'event': 'Magna Carta', "
        "'depth': 'brief'}, 'name': 'history_fact_fetch'}\n</tool_call>\n        \n<tool_call>\n"
        "{'arguments': {'event': 'Magna Carta', 'depth': 'detailed'}, 'name': "
        "'history_fact_fetch'}\n</tool_call>\n",
        (
            ("history_fact_fetch", '{"event": "Treaty of Paris", "depth": "brief"}'),
            ("history_fact_fetch", '{"event": "Magna Carta", "depth": "brief"}'),
            ("history_fact_fetch", '{"event": "Magna Carta", "depth": "detailed"}'),
        ),
    ),
    Recorded(
        "granite",
        "defgsus/blog, Tool usage with the granite language model (granite-3.3-2b-instruct): it "
        "makes the result up, and closes once too often",
        '<|tool_call|>[{"name": "get_time", "arguments": {}, "return": "2022-09-20T14:30:00Z"}}]',
        (("get_time", "{}"),),
    ),
    Recorded(
        "cohere",
        "Cohere's documentation, Command R7B on Hugging Face, an example of a completion, after "
        "the thinking",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "query_daily_sales_report", '
        '"parameters": {"day": "2023-09-29"}},\n    {"tool_call_id": "1", "tool_name": '
        '"query_product_catalog", "parameters": {"category": "Electronics"}}\n]<|END_ACTION|>',
        (
            ("query_daily_sales_report", '{"day": "2023-09-29"}'),
            ("query_product_catalog", '{"category": "Electronics"}'),
        ),
    ),
    Recorded(
        "mistral",
        "sgl-project/sglang, what its reader of Mistral's calls has to cut off",
        '[TOOL_CALLS] [{"name": "get_current_weather", "arguments": {"location": "Boston, MA", '
        '"unit": "fahrenheit"}}]\n\nToday\'s weather in Boston is :{function call result} (in '
        "Fahrenheit)\n\nIf you prefer Celsius, please let me know.",
        (("get_current_weather", '{"location": "Boston, MA", "unit": "fahrenheit"}'),),
        "Today's weather in Boston is :{function call result} (in Fahrenheit)\n\nIf you prefer "
        "Celsius, please let me know.",
    ),
    Recorded(
        "firefunction",
        "charisbit/browser-operator, test_parse_fix.py (a Llama 3.2 at Ollama)",
        'functools[{"name": "browser_navigate", "arguments": {"url": "https://mail.google.com/"}}]'
        " \n\nPlease note that the browser will be navigated to the Gmail website.",
        (("browser_navigate", '{"url": "https://mail.google.com/"}'),),
        "Please note that the browser will be navigated to the Gmail website.",
    ),
    Recorded(
        "apriel",
        'a Go package "clanker", its test of the "exact model output from real usage" (an Apriel, '
        "as the marks of its thinking say)",
        '<tool_calls>[{"name": "web_search", "arguments": {"query": "latest Iran news September '
        '2025"}}]</tool_calls>',
        (("web_search", '{"query": "latest Iran news September 2025"}'),),
    ),
    Recorded(
        "apertus",
        "swiss-ai/verl, test_apertus_tool_parser.py (Apertus-1.5-8B in training), up to the "
        "tool's answer",
        'I\'ll help you find rhyming words for "scrawny" categorized by syllable count. Let me '
        'find the rhymes for this word.<|tools_prefix|>[{"find_rhymes": {"input_word": "scrawny"}'
        "}]<|tools_suffix|>",
        (("find_rhymes", '{"input_word": "scrawny"}'),),
        'I\'ll help you find rhyming words for "scrawny" categorized by syllable count. Let me '
        "find the rhymes for this word.",
    ),
    Recorded(
        "apertus",
        "the end of the same one's next reply",
        "Please let me know if you'd like me to check these words for any that might be compounded "
        'exotics words or deeper the lookup.<|tools_prefix|>[{"display_answers": {"answers": '
        '["Mawny, Mawny, Prowly, Snooty, Laughton, Laughtrey, Roughty, Chawner, Jauney, Naughty, '
        'Clawny, Shawnee, Hawn, Brawn, Drawn, Farren"]}}]<|tools_suffix|>',
        (
            (
                "display_answers",
                (
                    '{"answers": ["Mawny, Mawny, Prowly, Snooty, Laughton, Laughtrey, Roughty, '
                    'Chawner, Jauney, Naughty, Clawny, Shawnee, Hawn, Brawn, Drawn, Farren"]}'
                ),
            ),
        ),
        "Please let me know if you'd like me to check these words for any that might be compounded "
        "exotics words or deeper the lookup.",
    ),
    Recorded(
        "llama3_json",
        "raullenchai/Rapid-MLX#700 (Meta-Llama-3.1-8B-Instruct-4bit)",
        '{"name": "web_search", "parameters": {"query": "你好"}}',
        (("web_search", '{"query": "你好"}'),),
    ),
    Recorded(
        "agent",
        "blazr's nano, held to the format, temperature 0.7, seed 2",
        '<|function|>{"name": "tell_story", "arguments": { "title":\n"I\'m '
        'going to make you go, and my name is"\n,"first_sentence"\n:\n"Here, '
        "a grumpy cat, and he must be able to do that he was a circle. And "
        'now, that is not a rubber dog! Oh, where is my e","animals":\n  [" '
        'answered Oz"\n, "It is all to",\n"Is it will a"\n      ]\n          '
        "          }}<|/function|>",
        (
            (
                "tell_story",
                (
                    '{ "title":\n"I\'m going to make you go, and my name '
                    'is"\n,"first_sentence"\n:\n"Here, a grumpy cat, and he must '
                    "be able to do that he was a circle. And now, that is not a "
                    'rubber dog! Oh, where is my e","animals":\n  [" answered '
                    'Oz"\n, "It is all to",\n"Is it will a"\n      ]\n           '
                    "         }"
                ),
            ),
        ),
    ),
    Recorded(
        "gigachat",
        "blazr's nano, held to the format, temperature 0.7, seed 3",
        '<|function_call|>{"name": "tell_story", "arguments": { '
        '"title"\n:\n"There are the Chirpy, what '
        'happened?"\n,"first_sentence"\n: "I am here to go out of the land, '
        "and now I am awamber to be awake! It is a raven, and I am the "
        'Master is a wide man, and"\n,"animals"\n:\n   [" said Claus,"\n," '
        'and Claus s", "What was ups"\n \t \t \t ] }}',
        (
            (
                "tell_story",
                (
                    '{ "title"\n:\n"There are the Chirpy, what '
                    'happened?"\n,"first_sentence"\n: "I am here to go out of '
                    "the land, and now I am awamber to be awake! It is a raven, "
                    'and I am the Master is a wide man, and"\n,"animals"\n:\n   '
                    '[" said Claus,"\n," and Claus s", "What was ups"\n \t \t \t '
                    "] }"
                ),
            ),
        ),
    ),
    Recorded(
        "gigachat3",
        "blazr's nano, held to the format, temperature 0.7, seed 2",
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": '
        '"tell_story", "arguments": { "title"\n: "I am going to get some '
        'directions of the","first_sentence"\n: "I think of the Snows. But '
        'as he was still at once dough, the Princess of the TV; and said, ", '
        '"animals"\n:\n         [ "--"\n," cried out; "\n, " smiled; she"\n  '
        "          ] }}",
        (
            (
                "tell_story",
                (
                    '{ "title"\n: "I am going to get some directions of '
                    'the","first_sentence"\n: "I think of the Snows. But as he '
                    "was still at once dough, the Princess of the TV; and said, "
                    '", "animals"\n:\n         [ "--"\n," cried out; "\n, " '
                    'smiled; she"\n            ] }'
                ),
            ),
        ),
    ),
)
