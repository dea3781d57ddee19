"""The dissertation's question on graphs whose spaces cannot be measured as a whole: at equal measurements."""
