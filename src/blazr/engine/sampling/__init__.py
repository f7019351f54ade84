"""From logits to tokens: steps in the order they apply, each only for the rows that ask."""
