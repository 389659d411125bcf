"""Event logs on disk; a session without a store stays in memory."""
