"""Attacks on secure sums that would show single vectors, as a server and the clients
that help it would carry them out.
"""

from dataclasses import replace

import numpy as np

from fedapps.algorithms.secure.fixed_point import whole
from fedapps.algorithms.secure.keys import add_stream, derived, seal, signature
from fedapps.algorithms.secure.wire import Refusal
from tests.helpers import refused
from tests.secure_cohort import Cohort, opened, words


def resealed(cohort, offer):
    """Return shares of nothing for an offer, as its maker seals them."""
    maker, session = cohort.clients[offer.name], cohort.session
    about = session, offer.name
    keys = offer.public, offer.commitment
    return b"".join(
        seal(maker._share_key(cohort.hellos[n].channel, *about, n, *keys), bytes(32))
        for n in cohort.graph[offer.name]
    )


def test_most_of_those_with_shares_must_survive_and_sign_whatever_the_members():
    """Of 13 clients 8 get a list of these 8 as members. Where 5 of them survive or
    sign, the other 8 may give the shares of their keys: the server can tell them that
    all are members and these 8 the survivors.
    """
    cohort = opened(13)
    members = sorted(cohort.members)[:8]
    offers = {name: cohort.offers[name] for name in members}
    for name in members:
        sealed = {n: s for n, s in cohort.sealed_for(name).items() if n in members}
        cohort.mask(name, words([1]), offers=offers, members=members, sealed=sealed)
    refused(lambda: cohort.sign(members[:5]), "5 survivors of 13", Refusal)
    signatures = cohort.sign(members, by=members[:6])
    for call, message in (
        (
            lambda: cohort.reveal(members[0], members, {n: signatures[n] for n in members[:5]}),
            "5 valid signatures of the survivors, 7 needed",
        ),
        (
            lambda: cohort.reveal(members[0], members, signatures),
            "6 valid signatures of the survivors, 7 needed",
        ),
    ):
        refused(call, message, Refusal)


def test_a_copied_key_for_shares_opens_no_other_share():
    """One key would seal two texts with one nonce."""
    cohort = Cohort(5)
    channel = cohort.hellos["1"].channel
    cohort.hellos["2"] = replace(
        cohort.hellos["2"], channel=channel, proof=signature(cohort.keys[2], "hello", "2", channel)
    )
    cohort.open()
    of_another = cohort.offers["0"].sealed_for("2", cohort.graph["0"])
    refused(
        lambda: cohort.mask("1", words([1]), sealed=cohort.sealed_for("1") | {"0": of_another}),
        "the share of client 0: it was altered",
        Refusal,
    )


def test_a_copied_key_for_masks_does_not_cancel_a_mask():
    """Three of seven clients help the server. Each offers an honest client's key as
    its own, and has a name on the other side of client 3.
    """
    cohort = Cohort(7, corrupted=3)
    cohort.open()
    for name, copied in (("0", "4"), ("1", "5"), ("2", "6")):
        offer, public = cohort.offers[name], cohort.offers[copied].public
        parts = ("offer", cohort.session.id, b"", name, public, offer.commitment)
        copy = replace(offer, public=public, proof=signature(cohort.clients[name].key, *parts))
        cohort.offers[name] = replace(copy, sealed=resealed(cohort, copy))
    vector = words(np.arange(1000))
    masked = cohort.mask("3", vector)
    now = cohort.clients["3"].state.open[cohort.session.id.hex()]
    add_stream(masked, derived(bytes.fromhex(now.own), "self mask", cohort.context), -1)
    assert np.unique(whole(masked - vector)).size == 1000


def test_two_sums_do_not_differ_by_a_client_if_others_reveal_each():
    """Five of eight sign the first sum and four of them reveal it. The others sign one
    without client 0.
    """
    cohort = opened(8, min_change=2)
    vectors = {name: words([10 ** int(name)]) for name in cohort.members}
    assert cohort.finish(
        {name: cohort.mask(name, vectors[name]) for name in cohort.members}, gone="4", silent="567"
    ) == [11_111_111]
    del cohort.clients["0"]
    cohort.open()
    for name in cohort.members:
        cohort.mask(name, vectors[name])
    cohort.sign(cohort.members, by="567")
    refused(lambda: cohort.sign(cohort.members, by="4"), "by 1 clients, at least 2 needed", Refusal)
