"""``/v1/responses``: its endpoints, the items they take and give, the tools, what is stored."""
