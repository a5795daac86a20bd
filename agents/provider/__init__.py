"""The provider process: litellm and the provider keys, with an interpreter and an environment of its own.

Nothing here imports more than the standard library, `agents.chat`, `agents.errors` and `gristmill.records`; litellm is
imported once the process is up. The search reaches it through `agents.models.provider_client`.
"""
