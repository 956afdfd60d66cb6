"""The framework "pytorch", which a card with `framework: pytorch` runs.

    python3 -m penstock_model.pytorch                     started by the node, as the model's process
    python3 -m penstock_model.pytorch flat MODEL OUT      move the weights of MODEL to another file

The process imports PyTorch only after it has connected to the node.
"""
