"""Smaller and faster models: int8, students."""
