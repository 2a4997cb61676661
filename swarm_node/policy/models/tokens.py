"""Whether the token ids of a completion really spell the text that was scored."""

from __future__ import annotations

from swarm_node.errors import Rejected
from swarm_node.policy.models.model import Codec
from swarm_node.rollout import Completion, Finish, RolloutGroup


def check_tokens(codec: Codec, group: RolloutGroup) -> Rejected | None:
    """None when every completion's ids decode to its text, or the reason "tokens".

    Rewards are computed from texts and gradients from ids: a peer whose ids say something else
    would have arbitrary tokens reinforced for a right answer. So the end token stands at the end
    and nowhere else, and no other special token, which decoding leaves out, may hide inside.
    """
    for completion in group.completions:
        fault = _fault(codec, completion)
        if fault:
            return Rejected("tokens", fault)
    return None


def _fault(codec: Codec, completion: Completion) -> str:
    ids = completion.token_ids.tolist()
    if completion.finish is Finish.STOP and (not ids or ids.pop() not in codec.eos_ids):
        return "it stopped without an end token"
    if any(token in codec.special_ids or token in codec.eos_ids for token in ids):
        return "a special token inside"
    try:
        text = codec.decode(ids)
    except ValueError as error:
        return str(error)
    return "" if text == completion.text else "the ids do not spell the text"
