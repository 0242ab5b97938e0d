"""Trackers that people have: TensorBoard, MLflow, Weights & Biases. Nothing here is
imported unless a run asks for it (``track``).
"""
