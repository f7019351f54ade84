"""Tools that run on this side of the API: their servers, and the loop that has a model use them."""
