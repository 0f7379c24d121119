"""Shared by the tests of duplicates: commits are not flushed."""

from samples import unflushed

__all__ = ["unflushed"]
