"""Local steps. Read ``plain`` first: the loop that everything here equals. Then
``sgd``, its step as a function, to which methods add terms; ``batches``, the
mini-batches of a round; ``cohorts``, the steps of several clients at once;
``compiled``, the same steps as compiled code.
``algorithms.common.steps`` defines a step, and the loop that takes any step.
"""
