"""Persistent storage: private directories, atomic files, SQLite."""
