"""Files of requests that are sent, answered in the background, and fetched: OpenAI's batches."""
