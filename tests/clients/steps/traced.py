"""A compiler that only traces: it runs the traced steps, which would be compiled, in a
hundredth of the time.
"""

import torch

from fedapps.clients.steps.compiled import Compiler, trace


class Traced(Compiler):
    """Runs the traced steps without compiling them."""

    def _library(self, training, x, y, numbers, many):
        if not many and len(y) < 2:
            x, y = torch.cat([x, x]), torch.cat([y, y])
        graph = trace(training, x, y, numbers, many)
        return lambda inputs: graph(inputs)
