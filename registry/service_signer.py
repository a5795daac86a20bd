"""A private key that stays in a key service or on a token: its faults are told, and its signatures looked at.

`securesystemslib` lets signers raise whatever their services do, as late as when they sign, and signs with whichever
key a URI names. A wrong one would be noticed by hosts only.
"""

from __future__ import annotations

import logging

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Key, Signature, Signer

from registry.errors import KeyFileError
from registry.passphrase import Secrets

logging.getLogger("securesystemslib.signer").setLevel(logging.CRITICAL)
"""What it logs of a failure is raised as well, and told once."""


class ServiceSigner(Signer):
    """Signs as the signer of a URI does.

    Raises:
        KeyFileError: the service does not answer, refuses, or holds another key than the public half says.
    """

    def __init__(self, uri: str, public_key: Key, where: str, secrets: Secrets | None = None) -> None:
        """
        Args:
            where: the file that names the signer, for messages.
        """
        self._public_key = public_key
        self._where = where
        try:
            self._signer = Signer.from_priv_key_uri(uri, public_key, secrets)
        except Exception as error:  # any: see the module
            raise self._fault(error) from error

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: Secrets | None = None
    ) -> ServiceSigner:
        """As the interface demands."""
        return cls(priv_key_uri, public_key, priv_key_uri.partition(":")[0], secrets_handler)

    @property
    def public_key(self) -> Key:
        return self._public_key

    def sign(self, payload: bytes) -> Signature:
        try:
            signature = self._signer.sign(payload)
        except Exception as error:  # any: see the module
            raise self._fault(error) from error
        try:
            self._public_key.verify_signature(signature, payload)
        except UnverifiedSignatureError as error:
            raise KeyFileError(
                f"key file {self._where}: the signer it names holds another key than the public half beside it; put "
                "the two right, then run the same command again"
            ) from error
        return signature

    def _fault(self, error: Exception) -> KeyFileError:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        return KeyFileError(f"key file {self._where}: the signer it names does not answer ({told}); check it")
