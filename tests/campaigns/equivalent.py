"""Guards that another one doubles, so that no test can miss them, each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    'p2p/wire/frames.py Reply.unwrap: check_size("reply", len(self.payload), limit)': (
        "both callers check the stated length before they take the payload"
    ),
    "p2p/wire/envelope.py _Outer.type: 64": "it is compared with the kind",
    "p2p/wire/envelope.py _Outer.body: MAX_SEALED_BYTES": "unpack has the same limit for the whole",
    "p2p/wire/envelope.py _Outer.key: 32": "the canonical encoding has no other length",
    "p2p/wire/envelope.py _Outer.signature: 64": "the canonical encoding has no other length",
    "p2p/transports/hivemind/records.py HeartbeatRecords._is_bounded: "
    "len(record.subkey) <= _MAX_SUBKEY_BYTES": ("a peer id has one form, which is shorter"),
    "p2p/exchange/verify.py GroupVerifier._open: "
    "self.check_replay(offer.author, header.epoch, header.seq)": (
        "the window is looked at before the pull and at the admission; this look saves the judging"
    ),
    "p2p/limits/admission.py Severed.__contains__: isinstance(peer, str)": (
        "no other key is in the table"
    ),
    "p2p/membership/statements.py Signed.sealed: MAX_LIST_BYTES": "open_sealed has the same limit",
    "p2p/exchange/requests.py Asker.reject: peer_id is None": (
        "the directory knows nobody without an id"
    ),
    "p2p/exchange/requests.py Asker._greet: not is_reachable": "whom a dial reached is connected",
    "coordinator/web.py Api._caller: not header.startswith(api.SCHEME)": "it is no base64 then",
    "coordinator/web.py Api._caller: len(header) > _BASE64_CHARS + len(api.SCHEME)": (
        "open_call has the same limit"
    ),
    "coordinator/web.py Api._caller: not header.startswith(api.SCHEME) or "
    "len(header) > _BASE64_CHARS + len(api.SCHEME)": "as both parts",
    "coordinator/web.py Api._caller: len(request.raw_path) > MAX_TARGET_CHARS": (
        "no call names a longer target"
    ),
    "page/entrance.py Key.key: 64": "a request has 64 KiB at most, and the key is only looked up",
}

#: Changes of `campaigns.drawn` that no test can miss, or none but a copy of the line, each with the
#: reason.
EQUIVALENT_CHANGES: dict[str, str] = {
    "environments/bundled/drills.py PRESETS: 7 becomes 8": (
        "a choice of lengths, of which a test would be a copy"
    ),
    "node/loops/sampling/levels.py Levels._probes: 0 becomes 1": "without seeds none is chosen",
    "policy/models/decoder/causal_lm.py CausalLM.rotary: len(table[0]) >= length becomes "
    "(len(table[0])) > (length)": ("the table that is computed anew is the same"),
    "policy/sampling/transformers_decoder.py TransformersDecoder.__init__: self._positions = "
    "torch.zeros(0, dtype=torch.int64) becomes pass": ("`begin` sets it before any step"),
    "policy/models/gguf/shape.py _SHOWN: 80 becomes 81": "how much of a foreign text is quoted",
    "environments/workers/processes.py ScoringWorker.survey: 2 becomes 3": (
        "a patience: the survey ends by itself after the seconds that it is given"
    ),
    "environments/workers/processes.py START_SECONDS: 600.0 becomes 1200.0": (
        "a patience: no test waits ten minutes for a start"
    ),
    "environments/workers/syscalls.py _argument_filter.refuse: 0 becomes 1": (
        "a return has no jumps"
    ),
    "node/metrics/health.py Steady.connectivity.is_stale: now - self._looked_at > HOLD_SECONDS "
    "becomes (now - self._looked_at) >= (HOLD_SECONDS)": (
        "times of a clock are never exactly so far apart"
    ),
    "node/loops/program_node.py _OPEN_TASKS: 8192 becomes 8193": (
        "a bound of memory, which the refusal names as it is"
    ),
    "node/loops/learning/mixing.py Mixer._note_offers: count > _FORGOTTEN becomes (count) >= "
    "(_FORGOTTEN)": ("no fading sum is exactly that small"),
    "node/loops/node.py Node._share: publisher.oversize > oversize becomes "
    "(publisher.oversize) >= (oversize)": (
        "a count of 0 is left out where the faults of all parts are added up"
    ),
    "node/preflight/env_check.py _scoring: seconds > max(_SLOW_SECONDS, info.score_seconds / "
    "SAID_TEXTS) becomes (seconds) >= (max(_SLOW_SECONDS, info.score_seconds / SAID_TEXTS))": (
        "no measured time is exactly that long"
    ),
    "simulation/report.py plot_learning.train_curve: True becomes False": ("the points are pairs"),
    "simulation/report.py plot_learning: len(report.models) > 1 becomes (len(report.models)) "
    ">= (1)": ("a legend of one curve: only who looks at the picture can tell"),
    "simulation/seeded.py _MEMBER_SECONDS: 86_400 becomes 86401": (
        "any certificate that outlives a simulation does"
    ),
}
