"""Flower's ClientApp, which runs for every client.

A SuperNode starts a process for every message. The first message only asks for the
client's identity, so imports are deferred until a client is needed.
"""

from flwr.app import Context
from flwr.client import NumPyClient

from fedapps.clients.base.adapter import to_client_app
from fedapps.clients.base.secure_app import SecureApp
from fedapps.engines.node_app import answer_for_many
from fedapps.runs.guarded_app import Guarded, Site, told


def client_fn(context: Context) -> NumPyClient:
    """Return the client that answers one message."""
    from fedapps.runs.client_factory import client_of

    return client_of(context)


@told
def check(context: Context) -> None:
    """Read this site's own data, so that errors are reported before the first round.
    The server has checked data that it divides itself. A site that refuses the run
    leaves them alone.
    """
    if Site(context).refusal:
        return
    described = any(value for key, value in context.run_config.items() if key.startswith("sites."))
    if described or "data" in context.node_config:
        from fedapps.runs.client_factory import check_data

        check_data(context)


@told
def clients(context: Context) -> list[str]:
    """Return the clients that belong to this site."""
    from fedapps.runs.client_factory import clients_of

    return clients_of(context)


def masks(context: Context) -> bool:
    """Return whether the run's training replies must be masked."""
    return bool(context.run_config.get("secure.on"))


trained = SecureApp(to_client_app(client_fn, writable=False, check=check), masks)
app = answer_for_many(Guarded(trained), clients)
