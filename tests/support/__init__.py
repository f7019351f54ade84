"""What several tests share: models, servers, recorded replies, references to be held to."""
