"""Keys that let a browser in once."""

from swarm_node.page.entrance import Entrance, Key, bearer


def test_a_key_gives_one_pass_and_a_pass_admits() -> None:
    entrance = Entrance(lambda: 1.0)
    key = entrance.key()
    given = entrance.enter(key)
    assert entrance.admits(given.token)
    assert not entrance.admits(key.key)


def test_a_key_that_two_use_gives_neither_a_pass() -> None:
    entrance = Entrance(lambda: 1.0)
    key, other = entrance.key(), entrance.enter(entrance.key())
    thief = entrance.enter(key)
    assert entrance.enter(key) is None
    assert not entrance.admits(thief.token)
    assert entrance.admits(other.token)


def test_a_key_ends_after_a_minute_and_an_invented_one_never_began() -> None:
    now = [0.0]
    entrance = Entrance(lambda: now[0])
    key = entrance.key()
    now[0] = 61.0
    assert entrance.enter(key) is None
    assert entrance.enter(Key("x")) is None
    assert not entrance.admits("")


def test_keys_and_passes_are_bounded_and_the_newest_hold() -> None:
    entrance = Entrance(lambda: 0.0)
    keys = [entrance.key() for _ in range(17)]
    assert entrance.enter(keys[0]) is None
    assert entrance.enter(keys[16]) is not None
    passes = [entrance.enter(entrance.key()) for _ in range(65)]
    tokens = [given.token for given in passes if given is not None]
    assert [entrance.admits(token) for token in tokens] == [False, *[True] * 64]


def test_a_token_has_its_scheme_before_it() -> None:
    assert bearer("Bearer abc") == bearer("bearer abc") == "abc"  # RFC 9110, 11.1
    assert [bearer(text) for text in ("abc", "", "Basic abc", "Bearerabc")] == [""] * 4
