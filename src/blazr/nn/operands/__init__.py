"""Arguments of operations, as their references and all their kernels take them."""
