"""`litebert demo`: the whole way from raw text to answers, in English and Chinese."""
