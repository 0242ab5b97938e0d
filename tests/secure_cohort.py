"""Clients and an honest server of secure sums, without Flower."""

import numpy as np

from fedapps.algorithms.secure.client import Participant
from fedapps.algorithms.secure.fixed_point import whole
from fedapps.algorithms.secure.graph import neighbours
from fedapps.algorithms.secure.keys import identity, new_signing_key
from fedapps.algorithms.secure.messages import Session, context_digest
from fedapps.algorithms.secure.server import unmask
from fedapps.algorithms.secure.state import State

CONTENT = b"the model and its settings"


class Cohort:
    """Clients and an honest server, step by step; a test changes what it likes."""

    def __init__(self, count, degree=0, corrupted=0, consistency=True, min_change=0, trusted=None):
        self.keys = [new_signing_key() for _ in range(count)]
        known = {str(k): identity(key) for k, key in enumerate(self.keys)} if trusted else None
        self.clients = {
            str(k): Participant(str(k), key, State(), known) for k, key in enumerate(self.keys)
        }
        self.hellos = {name: client.hello() for name, client in self.clients.items()}
        self.degree, self.number = degree, 0
        facts = {"corrupted": corrupted, "consistency": consistency}
        self.facts = {**facts, "min_change": min_change}
        self.tag = bytes(16)

    def open(self, without=()):
        self.number += 1
        clients = len(self.clients) if self.degree else 0
        self.session = Session(tag=self.tag, number=self.number, clients=clients, **self.facts)
        self.graph = neighbours(sorted(self.clients), self.degree)
        self.offers = {
            name: client.offer(self.session, [self.hellos[n] for n in self.graph[name]])
            for name, client in self.clients.items()
            if name not in without
        }
        self.members = sorted(self.offers)
        self.context = context_digest(self.session, self.members, CONTENT)

    def store(self):
        """Store the states of all clients and read them again."""
        for client in self.clients.values():
            client.state = State.from_bytes(client.state.to_bytes())

    def mask(
        self, name, words, content=CONTENT, offers=None, members=None, sealed=None, weights=None
    ):
        offers = self.offers if offers is None else offers
        near = [offers[n] for n in self.graph[name] if n in offers]
        members = self.members if members is None else members
        sealed = self.sealed_for(name) if sealed is None else sealed
        return self.clients[name].mask(self.session, members, near, sealed, content, words, weights)

    def sealed_for(self, name):
        return {
            other: offer.sealed_for(name, self.graph[other])
            for other, offer in self.offers.items()
            if name in self.graph[other]
        }

    def sign(self, survivors, by=None):
        return {
            name: self.clients[name].sign(self.session, survivors)
            for name in (survivors if by is None else by)
        }

    def reveal(self, name, survivors, signatures):
        return self.clients[name].reveal(self.session, survivors, signatures)

    def finish(self, masked, gone=(), silent=()):
        """Sign and reveal by all but ``gone`` and ``silent``; return the sum."""
        survivors = sorted(masked)
        signatures = {}
        if self.session.consistency:
            signatures = self.sign(survivors, [n for n in survivors if n not in silent])
        reveals = {
            name: self.reveal(name, survivors, signatures)
            for name in survivors
            if name not in gone and name not in silent
        }
        total = np.sum(list(masked.values()), axis=0, dtype=np.uint64)
        unmask(total, self.session, self.context, self.offers, self.graph, survivors, reveals)
        return whole(total)


def words(values):
    return np.asarray(values, np.int64).view(np.uint64)


def opened(count=5, **facts):
    cohort = Cohort(count, **facts)
    cohort.open()
    return cohort
