"""Where the package keeps what outlives a process: private directories, whole files, SQLite."""
