"""The fixtures of those who wrote these tests for one part of the house."""

from tests.unit.server.conftest import loopback

__all__ = ["loopback"]
