"""The framework "pytorch": what a card with `framework: pytorch` runs.

    python3 -m penstock.pytorch                     started by the node, as the model's process
    python3 -m penstock.pytorch flat MODEL OUT      move the weights of MODEL to a file of their own

Nothing of PyTorch is imported before the node has been told that the process is there.
"""
