"""FedEvg's client: trains a local energy-based classifier and returns its energy
signals at the server's synthetic samples.

The client initialises a new net every round, or keeps one (``evg-persistent``). For
each mini-batch of its data it takes a batch of its copy of the synthetic samples, moves
it by R Langevin steps, writes it back, and takes one Adam step on the joint loss
(``algorithms.synthetic.energies``). It then returns ``log e`` and the gradient of the
energy at the samples as received. The parameters of its net never leave the client.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Algorithm 4.2.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.contract.sent import FedEvgSent, RoundFacts
from fedapps.algorithms.synthetic.energies import energies_and_gradients, joint_loss, langevin_step
from fedapps.algorithms.synthetic.mixture import log_weights
from fedapps.clients.base.training import Arrays, Config, TrainOptions, get_arrays, set_arrays
from fedapps.clients.families.generative import adam, check_images
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.steps.batches import mini_batches

NetFn = Callable[[int], nn.Module]


class FedEvgClient(FedAvgClient):
    """``net_fn``: seed -> the energy net, which is not sent. ``model_fn``: the server's
    classifier, which is only evaluated.
    """

    needs_float32 = "it trains a net of its own"
    reads = (FedEvgSent,)

    def __init__(self, net_fn: NetFn, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net_fn = net_fn

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return (gradients (M, C, H, W), ``log e`` (M,)) at the samples (x (M, C, H,
        W), y (M,)), and the number of local samples.
        """
        device, sent = self.data.train.y.device, FedEvgSent.from_config(config)
        x, y = (
            torch.tensor(parameters[0], device=device),
            torch.tensor(parameters[1], device=device).long(),
        )
        self._check(x, sent.low)
        net, optimiser = self._net(config)
        net.train()
        loss = self._train_energy(net, optimiser, x.clamp(sent.low, 1.0), y, config)
        if sent.persistent:
            self._keep(net, optimiser, config)
        net.eval()
        energies, gradients = energies_and_gradients(net, x, y)
        logs = log_weights(energies.cpu().numpy(), sent.weights)
        return [gradients.cpu().numpy(), logs], len(self.data.train), {"loss": loss}

    def _train_energy(
        self, net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, config: Config
    ) -> float:
        """Train the net for one round; return the mean loss over mini-batches. ``x``:
        the synthetic samples; a copy of them moves.
        """
        options, sent = TrainOptions.from_config(config), FedEvgSent.from_config(config)
        rng, noise = (generator(*self.draw(purpose, config)) for purpose in ("batches", "langevin"))
        size = min(options.batch_size, len(x))
        x, total, count = x.clone(), torch.zeros((), device=x.device), 0
        for real in mini_batches(self.data.train, options, rng, net):
            # Labels of real and synthetic samples are not matched: synthetic batches
            # are drawn from all classes.
            rows = torch.from_numpy(noise.permutation(len(x))[:size]).to(x.device)
            start = moved = x[rows]
            for _ in range(sent.langevin_steps):
                normal = torch.from_numpy(noise.standard_normal(start.shape, np.float32)).to(
                    x.device
                )
                moved = langevin_step(
                    net, moved, y[rows], normal, sent.step, sent.noise, sent.clip, sent.low, 1.0
                )
            x[rows] = moved
            loss = joint_loss(net, real, start, moved, y[rows], sent.lambda_)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total, count = total + loss.detach(), count + 1
        return float(total) / count

    def _net(self, config: Config) -> tuple[nn.Module, torch.optim.Adam]:
        """Return a new net, or the stored one, and its optimiser."""
        options = TrainOptions.from_config(config)
        persistent = FedEvgSent.from_config(config).persistent
        place = (self.client_id, 0 if persistent else self.round(config))
        net = self.net_fn(derived_seed(RoundFacts.from_config(config).seed, "energy net", *place))
        optimiser = adam(net, options.rate(self.round(config)), options)
        if persistent and (kept := self.store.load("energy", config, before=True)):
            size = len(net.state_dict())
            set_arrays(net, kept[:size])
            moments = [
                torch.tensor(array, device=self.data.train.y.device) for array in kept[size:]
            ]
            for k, parameter in enumerate(net.parameters()):
                first, second, steps = moments[3 * k : 3 * k + 3]
                optimiser.state[parameter] = {
                    "exp_avg": first,
                    "exp_avg_sq": second,
                    "step": steps.cpu(),
                }
        return net, optimiser

    def _keep(self, net: nn.Module, optimiser: torch.optim.Adam, config: Config) -> None:
        states = [optimiser.state[parameter] for parameter in net.parameters()]
        moments = [
            state[name].cpu().numpy()
            for state in states
            for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        self.store.save("energy", [*get_arrays(net), *moments], config)

    def _check(self, x: Tensor, low: float) -> None:
        own = self.data.train.x
        if x.shape[1:] != own.shape[1:]:
            sent, mine = (f"{s[1]} channel(s) of {s[2]} x {s[3]}" for s in (x.shape, own.shape))
            raise ValueError(
                f"synthetic images with {sent}, but this client's have {mine}: bring all clients' "
                "images to one form"
            )
        check_images(own, low)
