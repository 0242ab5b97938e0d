"""Small jobs for tests of every method, and methods that differ at their clients."""

from fedapps.methods import METHODS, TorchClient

#: Of the default jobs: few samples for each client. A method takes more from ``SMALL``
#: if it fits nets for long.
JOB = {"num-clients": 40, "clients-per-round": 0}
IMAGES = {
    "num-clients": 180,
    "data.partition": "iid",
    "synthetic.samples": 10,
    "synthetic.steps": 1,
}
BOOSTED = {"ffgb.fit-steps": 2}
DISTILLED = {
    "ffgb-distill.oracle-epochs": 1,
    "ffgb-distill.distill-epochs": 1,
    "public.samples": 50,
}
SMALL = {
    "ffgb": BOOSTED,
    "ffgb-c": BOOSTED,
    "ffgb-l": BOOSTED,
    "ffgb-distill": DISTILLED,
    "warm-start": DISTILLED,
    "fedavg-distill": {"fedavg-distill.distill-epochs": 1, "public.samples": 50},
    "fedevg": {**IMAGES, "fedevg.net": "energy-mlp"},
    "feddm": {**IMAGES, "feddm.steps": 1},
    "class-means": IMAGES,
    "fedcgan": {**IMAGES, "fedcgan.hidden": 4},
    "fedcvae": {**IMAGES, "fedcvae.hidden": 4},
}


def unlike_at_clients(names):
    """Return, of methods with the same clients, the first; those that distil have more
    to do. Around another method, one that asks clients for their losses stands for all.
    """
    first = {}
    for name in names:
        method = METHODS[name]
        kind = method.client.kind() if isinstance(method.client, TorchClient) else name
        if method.wrap is not None and not method.loss:
            kind = "wrapped"
        if name != "fedbuff":
            first.setdefault((kind, method.public), name)
    return list(first.values())
