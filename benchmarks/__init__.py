"""One script per claimed figure; `figures` keeps what they measured."""
