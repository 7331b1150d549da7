"""Consumer groups: for now the offsets that consumers without membership commit."""
