"""TensorBoard, MLflow and Weights & Biases. The library of each is imported only if the
setting ``track`` names it.
"""
