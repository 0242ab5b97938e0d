"""Adapters for the trackers TensorBoard, MLflow and Weights & Biases. Each is imported
only if the setting ``track`` names it.
"""
