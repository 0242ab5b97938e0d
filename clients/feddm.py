"""FedDM's client: makes a few synthetic images of each of its classes and sends them
once per round; no net is sent.

The images start as noise and follow the gradient of ``algorithms.synthetic.matching``
at weights near the received ones: the server's classifier, moved in every step by a
random direction of length ``dm-radius``. Classes without samples on the client are left
out.

Source: Xiong, Wang, Cheng, Yu, Hsieh, "FedDM: Iterative Distribution Matching for
Communication-Efficient Federated Learning", CVPR 2023, arXiv 2207.09653, Algorithm 1,
ClientUpdate.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.seeds import derived_seed
from fedapps.algorithms.contract.sent import FedDMSent
from fedapps.algorithms.synthetic.matching import matching_loss, nearby
from fedapps.clients.base.training import Arrays, Config, TrainOptions, set_arrays
from fedapps.clients.families.generative import check_images
from fedapps.clients.fedavg import FedAvgClient

MOMENTUM = 0.5


class FedDMClient(FedAvgClient):
    """Makes images in [``dm-low``, 1] like its own; evaluates the server's
    classifier.
    """

    reads = (FedDMSent,)
    needs_float32 = "it makes images, and trains no net"
    differentiates_surrogate = False

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return images (n, C, H, W) and labels (n,), ``dm-images`` of each own class,
        and the number of local samples.
        """
        data, sent = self.data.train, FedDMSent.from_config(config)
        check_images(data.x, sent.low)
        set_arrays(self.model, parameters)
        own = [torch.nonzero(data.y == label)[:, 0] for label in torch.unique(data.y)]
        seed = derived_seed(*self.draw("matching", config))
        with torch_seeded(seed, data.y.device):
            x, loss = self._match(own, sent, config)
        y = torch.unique(data.y).repeat_interleave(sent.images)
        return [x.cpu().numpy(), y.cpu().numpy().astype(np.int32)], len(data), {"loss": loss}

    def _match(self, own: list[Tensor], sent: FedDMSent, config: Config) -> tuple[Tensor, float]:
        """Return the images, and the loss of the last step. ``own``: the rows of each
        class.
        """
        batch, data = TrainOptions.from_config(config).batch_size, self.data.train
        self.model.eval()
        each, low = sent.images, sent.low
        x = torch.rand(len(own) * each, *data.x.shape[1:], device=data.x.device) * (1 - low) + low
        x.requires_grad_()
        optimiser, loss = torch.optim.SGD([x], sent.rate, MOMENTUM), torch.zeros(())
        for _ in range(sent.steps):
            real = [
                data.x[rows[torch.randperm(len(rows), device=rows.device)[:batch]]] for rows in own
            ]
            loss = matching_loss(
                self.model,
                nearby(self.model, sent.radius),
                real,
                list(x.split(each)),
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                x.clamp_(low, 1.0)
        return x.detach(), float(loss.detach())
