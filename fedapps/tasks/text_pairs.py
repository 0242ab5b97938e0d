"""Task ``text-pairs``: do two texts have the same meaning? Fine-tunes DistilBERT. The
AAggFF chapter uses the data set MQP.

Columns, as in ``curaihealth/medical_questions_pairs``: ``question_1``, ``question_2``,
``label``, and ``dr_id`` (``data.natural-id``): one client per doctor, eleven in all.
Needs the extra ``text``.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. MQP: McCreery,
Katariya, Kannan, Chablani, Amatriain, "Effective Transfer Learning for Identifying
Similar Questions: Matching User Questions to COVID-19 FAQs", 2020, arXiv 2008.13546.
DistilBERT: Sanh, Debut, Chaumond, Wolf, "DistilBERT, a distilled version of BERT:
smaller, faster, cheaper and lighter", 2019, arXiv 1910.01108.
"""

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapps.clients.base.evaluation import BINARY
from fedapps.data.columns import check_columns, groups_of, labels_of
from fedapps.data.source import Categorical, Samples, Source
from fedapps.data.sources import open_split
from fedapps.errors import UserError, reason
from fedapps.models.base import Classifier
from fedapps.models.transformers_nets import transformers_library
from fedapps.tasks.context import RunContext
from fedapps.tasks.dealt_samples import DealtSamples
from fedapps.tasks.options import TextPairsOptions

NEEDED = "task = 'text-pairs'"
FILES = ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


class TextPairs(DealtSamples):
    """Binary classification of pairs of texts; one logit, evaluated by accuracy and
    AUROC.
    """

    name = "text-pairs"
    objective = BINARY
    from_clients = ""  # tokens and initial weights are those of the checkpoint

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: TextPairsOptions = options
        self.pretrained = context.model.pretrained
        if context.model.name != "distilbert":
            raise UserError(
                f"model.name = {context.model.name!r}: task 'text-pairs' has one net: choose "
                "distilbert or auto"
            )
        transformers_library(NEEDED)  # fails early if the package is missing

    @cached_property
    def folder(self) -> Path:
        """The folder of the checkpoint; a hub checkpoint is read from the cache, else
        downloaded. Raises ``UserError``.
        """
        checkpoint = self.options.checkpoint
        folder = Path(checkpoint).expanduser()
        if folder.is_dir():
            return folder
        if not self.pretrained:
            raise UserError(
                f"text-pairs.checkpoint = {checkpoint!r}: is no folder, and without "
                "model.pretrained nothing is fetched: set model.pretrained = true, or name a "
                "folder with config.json and vocab.txt"
            )
        from huggingface_hub import snapshot_download

        fetch = partial(snapshot_download, checkpoint, allow_patterns=list(FILES))
        try:
            try:
                return Path(fetch(local_files_only=True))
            except OSError:  # not in the cache
                return Path(fetch())
        except Exception as error:
            raise UserError(
                f"text-pairs.checkpoint = {checkpoint!r}: no such folder, and the hub does not "
                f"give it ({reason(error, 200)}): check the network, or name a folder"
            ) from error

    def read(self) -> Samples:
        """Return the token ids (N, length) of all pairs, and their labels."""
        data, options = self.context.data, self.options
        doctor = data.natural_id if data.partition == "natural" else ""
        source = Source.of(data)
        split = open_split(source)
        columns = {"text-pairs.first": options.first, "text-pairs.second": options.second}
        check_columns(
            split, source, columns | {"data.label": data.label, "data.natural-id": doctor}
        )
        labels, classes = labels_of(split, source, data.label)
        if len(classes) != 2:
            raise UserError(
                f"data.label: {data.source} has {len(classes)} classes of pairs: task 'text-pairs' "
                "wants two"
            )
        tokens = tokenise(self.folder, split[options.first], split[options.second], options.length)
        doctors = groups_of(split, source, doctor) if doctor else None
        clients = Categorical(doctors[0], tuple(doctors[1])) if doctors else None
        return Samples(tokens, labels, 2, clients=clients)

    def model_fn(self, seed: int) -> nn.Module:
        """Return a DistilBERT, pre-trained or drawn from ``seed``, with a new head."""
        return build_pair_classifier(self.folder, seed, self.pretrained, self.options.length).to(
            self.device
        )


class PairClassifier(Classifier):
    """DistilBERT with a classifier on its output at the first token, [CLS]: linear of
    the same width, ReLU, dropout 0.1, linear.
    """

    initialised = True

    def __init__(self, encoder: nn.Module, width: int, padding: int) -> None:
        head = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1)
        )
        super().__init__(encoder, head)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 1) of token ids ``x`` (n, length)."""
        states: Tensor = self.body(input_ids=x, attention_mask=x != self.padding).last_hidden_state
        logits: Tensor = self.classifier(states[:, 0])
        return logits


def build_pair_classifier(folder: Path, seed: int, pretrained: bool, length: int) -> PairClassifier:
    """Return the classifier for a checkpoint folder; weights that are not loaded are
    initialised from ``seed`` as the library does.

    The process-wide random state is preserved. Raises ``UserError``.
    """
    library = transformers_library(NEEDED)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            config = library.DistilBertConfig.from_pretrained(folder, local_files_only=True)
            if pretrained:
                encoder, report = library.DistilBertModel.from_pretrained(
                    folder, local_files_only=True, use_safetensors=True, output_loading_info=True
                )
            else:
                encoder, report = library.DistilBertModel(config), {}
        except Exception as error:  # the library raises errors of many kinds
            raise UserError(
                f"text-pairs.checkpoint: {folder} holds no DistilBERT that can be read: "
                f"{reason(error, 200)}"
            ) from error
        if report.get("missing_keys"):
            missing = sorted(report["missing_keys"])[0]
            raise UserError(
                f"text-pairs.checkpoint: {folder} lacks weights of a DistilBERT ({missing}): "
                "choose another"
            )
        if config.max_position_embeddings < length:
            most = config.max_position_embeddings
            raise UserError(
                f"text-pairs.length = {length}, but the checkpoint reads {most} tokens: choose at "
                f"most {most}"
            )
        return PairClassifier(encoder.float(), config.dim, config.pad_token_id)


def tokenise(folder: Path, first: list[str], second: list[str], length: int) -> NDArray[np.int64]:
    """Return ``[CLS] first [SEP] second [SEP] [PAD]...`` as token ids (n, length).

    Pairs that are too long are truncated at the end of the longer text. Raises
    ``UserError``.
    """
    library = transformers_library(NEEDED)
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        encoded = tokenizer(
            first,
            second,
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="np",
        )
    except Exception as error:
        raise UserError(
            f"text-pairs: the vocabulary of {folder} cannot be read or used: {reason(error, 200)}"
        ) from error
    return np.asarray(encoded["input_ids"], np.int64)
