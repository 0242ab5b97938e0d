"""A digest of a run's settings, by which a server and its sites name the same run."""

import hashlib
import json
from collections.abc import Mapping

from fedapps.toml_text import Value

# Settings that do not affect the results, so a resumed run may change them.
FREE = (
    "out",
    "resume",
    "timeout",
    "checkpoint-every",
    "until",
    "min-replies",
    "max-failed-rounds",
    "train.compile",
    "track",
    "track-to",
    "metrics-port",
    "metrics-host",
    "audit-log",
)


def settings_digest(config: Mapping[str, Value]) -> str:
    """Return a digest of a run's settings but the ``FREE`` ones: 16 letters of
    SHA-256.
    """
    kept = {key: value for key, value in config.items() if key not in FREE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
