"""Plans, the searchers that make them and the store that caches them."""
