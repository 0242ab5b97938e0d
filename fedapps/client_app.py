"""Flower's ClientApp: what runs for every client.

A SuperNode starts a process for every message. The first one only asks who the client is: what trains is imported when it is needed.
"""

from flwr.app import Context
from flwr.client import NumPyClient

from clients.base.adapter import to_client_app


def client_fn(context: Context) -> NumPyClient:
    """Return the client that answers one message."""
    from fedapps.client_factory import client_of

    return client_of(context)


def check(context: Context) -> None:
    """Read this site's own data, so that what is wrong with them is said before the first round. Dealt data the server has checked."""
    described = any(value for key, value in context.run_config.items() if key.startswith("sites."))
    if described or "data" in context.node_config:
        from fedapps.client_factory import check_data

        check_data(context)


app = to_client_app(client_fn, writable=False, check=check)
