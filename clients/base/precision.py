"""The precision in which a client's net computes, as the message says (``precision`` of
``clients.base.options.TrainOptions``).
"""

from typing import Any, TypeVar, cast

from fedapps.clients.base.options import BF16, Config, keys_read

AnyClient = TypeVar("AnyClient")


def at_precision(client: AnyClient, config: Config) -> AnyClient:
    """Return the client, with its net set to the precision of a configuration. Raises
    ``ValueError`` if that is bf16 and the class has no net that takes it.
    """
    asked, kind = config.get("precision") == BF16, cast(Any, type(client))
    why = getattr(client, "needs_float32", "it takes no local steps of a net")
    if not why:
        from fedapps.algorithms.common.precision import set_bfloat16  # late: others need no PyTorch

        set_bfloat16(client.model, asked)  # type: ignore[attr-defined]
    # a class that declares nothing may have an option of this name
    elif asked and keys_read(kind) is not None:
        raise ValueError(f"precision = 'bf16': {kind.__name__}: {why}: choose float32")
    return client
