"""Folders of data as a data set of the hub has them, written for a test."""

import datasets


def write_parquet(folder, columns, features=None, split="train"):
    """Write the columns of a split as a parquet file; return the folder's name."""
    folder.mkdir(exist_ok=True)
    made = datasets.Dataset.from_dict(columns, features and datasets.Features(features))
    made.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


def write_play(folder, **splits):
    """Write the speeches of each split of a play: pairs of a role and what it says."""
    for split, speeches in splits.items():
        roles, texts = map(list, zip(*speeches, strict=True))
        write_parquet(folder, {"character_id": roles, "text": texts}, split=split)
    return str(folder)
