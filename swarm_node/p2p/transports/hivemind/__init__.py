"""The network over hivemind's DHT and p2pd.

hivemind's own `__init__` imports everything for training over hivemind, and with it scipy: 48 MB
and most of a second that a node never needs. So the package is registered here without running that
file, and `hivemind.dht` and `hivemind.p2p` are imported from it as usual.
"""

import importlib.util
import sys

if "hivemind" not in sys.modules:
    _spec = importlib.util.find_spec("hivemind")
    assert _spec is not None, "hivemind is a dependency"
    sys.modules["hivemind"] = importlib.util.module_from_spec(_spec)
