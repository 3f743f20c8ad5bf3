"""Control messages: their structs, the registry of handlers by type, and their encoding."""
