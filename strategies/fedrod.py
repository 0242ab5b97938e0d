"""Fed-RoD: a generic model trained with a balanced loss, and on the same body a
personal head for each client.

Source: Chen, Chao, "On Bridging Generic and Personalized Federated Learning for Image
Classification", ICLR 2022, arXiv 2107.00778, Algorithm 1 (with the linear personal
head; there is also one made by a hypernetwork). With the class counts n_c of a client,
the outputs g of the generic model and p of the personal head on the same body:

    generic model: cross-entropy of g + log n_c (balanced softmax); averaged
    personal head: cross-entropy of g + p, in p alone; kept, and g + p is scored

Contract: FedAvg's. The client keeps its head and never sends it.
"""

from fedapps.algorithms.contract.sent import FedRoDSent, Reads
from fedapps.strategies.fedavg import FedAvg


class FedRoD(FedAvg):
    """Fed-RoD strategy; the averaging is FedAvg's."""

    client_half: Reads = (FedRoDSent,)
