"""Keys of a request that a node has no use for: which are ignored, and which are refused. Pure.

Clients of OpenAI, of vLLM and of other servers send keys of all of these. A key that asks for
another answer than the node would give is refused by name, unless its value is the one that changes
nothing. Whatever says nothing about the answer is ignored, and so is what no server knows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

#: Other keys of one request, each of which is compared with the known ones.
MAX_OTHER_KEYS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
#: How alike a key and a known one are if somebody meant that one (difflib's ratio).
_MEANT: Final = 0.82
#: Keys that ask for another answer, or another form of reply, with the values that change nothing.
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {
    # OpenAI
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "reasoning_effort": ("none",),
    "reasoning": ({}, {"effort": "none"}),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "instructions": ("",),
    # vLLM's sampling parameters
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "repetition_detection": (),
    # vLLM's other parameters
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "enable_thinking": (False,),
    "thinking_token_budget": (0,),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "structural_tag": (),
    "prompt_embeds": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "return_prompt_text": (False,),
    "vllm_xargs": ({},),
    # others
    "system": ("",),
    "system_prompt": ("",),
    "thinking": ({"type": "disabled"},),
    "max_new_tokens": (),
    "max_length": (),
    "num_predict": (),
    "typical_p": (1,),
    "mirostat": (0,),
    "grammar": ("",),
    "json_schema": (),
}
#: Keys of chats that completions lack, and of completions that chats lack.
_OF_OTHER_KINDS: Final = ("messages", "max_completion_tokens", "top_logprobs", "prompt")


class Objection(NamedTuple):
    """Why a key is refused, and OpenAI's code for that; "" if it has none."""

    text: str
    code: str


def objection(name: str, value: Any, fields: Collection[str]) -> Objection | None:
    """Say why a request with a key that is none of its kind's `fields` is refused. None if the key
    is ignored."""
    if value is None:
        return None
    if name in _NEUTRAL:
        if any(_same(value, default) for default in _NEUTRAL[name]):
            return None
        text = f"{name} is not supported by this sampler: leave it out"
        return Objection(text, "unsupported_parameter")
    quoted_name = repr(name[:64])
    if not _NAME.fullmatch(name):
        return Objection(f"unrecognized request argument: {quoted_name}", "")
    known_keys = {*fields, *_NEUTRAL, *_OF_OTHER_KINDS} - {"model"}  # which no request lacks
    close = difflib.get_close_matches(name.lower(), sorted(known_keys), n=1, cutoff=_MEANT)
    if not close:
        return None
    if close[0] == name:
        text = f"{quoted_name} belongs to another path: send it there, or leave it out"
    else:
        text = f"unrecognized request argument: {quoted_name}: did you mean {close[0]!r}?"
    return Objection(text, "")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, but True is not 1."""
    return bool(value == neutral) and isinstance(value, bool) is isinstance(neutral, bool)
