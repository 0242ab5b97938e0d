"""Tasks: each combines data, a model, an objective and metrics. ``registry.py`` lists
them by name.
"""

from typing import TYPE_CHECKING

from fedapps.algorithms.common.lazy import late_exports

if TYPE_CHECKING:  # imported on first use: most need PyTorch, which takes seconds and 200 MB
    from fedapps.tasks.classification import Classification as Classification, Digits as Digits
    from fedapps.tasks.constrained_classification import (
        ConstrainedClassification as ConstrainedClassification,
    )
    from fedapps.tasks.convex import (
        Completion as Completion,
        Lasso as Lasso,
        Qap as Qap,
        SparseLogistic as SparseLogistic,
    )
    from fedapps.tasks.densities import PointMass as PointMass, Unigram as Unigram
    from fedapps.tasks.ensemble_classification import (
        EnsembleClassification as EnsembleClassification,
    )
    from fedapps.tasks.next_character import Text as Text
    from fedapps.tasks.next_word import Words as Words
    from fedapps.tasks.regression import Regression as Regression, Survival as Survival
    from fedapps.tasks.sites import site_task as site_task
    from fedapps.tasks.speech import Speech as Speech
    from fedapps.tasks.tabular import Tabular as Tabular
    from fedapps.tasks.text_pairs import TextPairs as TextPairs

__getattr__, __dir__, __all__ = late_exports(__name__, __file__)
