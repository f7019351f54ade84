"""Replicas by the hundred in one process: the real scheduler, caches and routers, made-up steps."""
