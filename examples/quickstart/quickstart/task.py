"""Your model, data and training, without Flower and without fedapps. All variants of
the app use it unchanged.
"""

import functools

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional net for 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return the scores of the ten classes."""
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@functools.cache
def digits():
    """Read the digits once per process."""
    return load_digits(return_X_y=True)


def load_data(partition_id, num_partitions, batch_size):
    """Return loaders over a client's training and test digits: two blocks of the digits
    sorted by class.
    """
    x, y = digits()
    blocks = np.array_split(np.argsort(y, kind="stable"), 2 * num_partitions)
    rows = np.concatenate([blocks[partition_id], blocks[num_partitions + partition_id]])
    rows = np.random.default_rng(partition_id).permutation(rows)
    images, labels = (
        torch.tensor(x[rows] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8),
        torch.tensor(y[rows]),
    )
    cut = len(rows) * 4 // 5
    train, test = (
        TensorDataset(images[:cut], labels[:cut]),
        TensorDataset(images[cut:], labels[cut:]),
    )
    # one generator per client: results do not depend on the order of the clients
    order = torch.Generator().manual_seed(partition_id)
    return DataLoader(train, batch_size=batch_size, shuffle=True, generator=order), DataLoader(
        test, batch_size=batch_size
    )


def train(net, trainloader, epochs, lr, device):
    """Train ``net`` in place; return the mean loss of the batches."""
    net.to(device)
    net.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    running = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running += loss.item()
    return running / (epochs * len(trainloader))


def test(net, testloader, device):
    """Return loss and accuracy of ``net``."""
    net.to(device)
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in testloader:
            scores = net(images.to(device))
            loss += nn.functional.cross_entropy(scores, labels.to(device), reduction="sum").item()
            correct += (scores.argmax(1).cpu() == labels).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
