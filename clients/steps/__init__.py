"""Local steps. Read ``plain`` first: the loop that everything here equals. Then
``sgd``, its step as a function, to which methods add terms; ``batches``, the
mini-batches of a round; ``compiled``, the same steps as compiled code. What a step is,
and the loop that takes any of them: ``algorithms.common.steps``.
"""
