"""A key service in a process of its own: the part of AWS KMS's HTTP interface that signing needs.

Private keys are made in it and never leave it. It runs until its standard input ends. moto's KMS will not do: it hashes
digests that it is given once more.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ECDSA, PSS = "ECDSA_SHA_256", "RSASSA_PSS_SHA_256"
DIGEST = utils.Prehashed(hashes.SHA256())


class Keys:
    """What the service holds."""

    def __init__(self) -> None:
        self.private: dict[str, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey] = {}
        self.disabled: set[str] = set()

    def create_key(self, request: dict[str, Any]) -> dict[str, Any]:
        key_id = str(uuid.uuid4())
        elliptic = request["KeySpec"] == "ECC_NIST_P256"
        self.private[key_id] = (
            ec.generate_private_key(ec.SECP256R1()) if elliptic else rsa.generate_private_key(65537, 2048)
        )
        return {"KeyMetadata": {"KeyId": key_id}}

    def disable_key(self, request: dict[str, Any]) -> dict[str, Any]:
        self.disabled.add(request["KeyId"])
        return {}

    def get_public_key(self, request: dict[str, Any]) -> dict[str, Any]:
        public = self.private[request["KeyId"]].public_key()
        content = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return {"KeyId": request["KeyId"], "PublicKey": base64.b64encode(content).decode()}

    def sign(self, request: dict[str, Any]) -> dict[str, Any]:
        key_id, message = request["KeyId"], base64.b64decode(request["Message"])
        if key_id in self.disabled:
            raise RefusedError("DisabledException")
        if request["MessageType"] != "DIGEST" or len(message) != hashes.SHA256.digest_size:
            raise RefusedError("ValidationException")
        key = self.private[key_id]
        if isinstance(key, rsa.RSAPrivateKey):
            if request["SigningAlgorithm"] != PSS:
                raise RefusedError("InvalidKeyUsageException")
            pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
            signature = key.sign(message, pss, DIGEST)
        else:
            if request["SigningAlgorithm"] != ECDSA:
                raise RefusedError("InvalidKeyUsageException")
            signature = key.sign(message, ec.ECDSA(DIGEST))
        return {"KeyId": key_id, "Signature": base64.b64encode(signature).decode()}


class RefusedError(Exception):
    """With one of the service's error codes."""


class Handler(BaseHTTPRequestHandler):
    """`TrentService.NAME`, JSON in and out."""

    keys = Keys()

    def do_POST(self) -> None:
        name = self.headers["X-Amz-Target"].partition(".")[2]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        act = {
            "CreateKey": self.keys.create_key,
            "DisableKey": self.keys.disable_key,
            "GetPublicKey": self.keys.get_public_key,
            "Sign": self.keys.sign,
        }[name]
        try:
            code, answer = 200, act(body)
        except KeyError as error:
            code, answer = 400, {"__type": "NotFoundException", "message": f"no key {error}"}
        except RefusedError as refusal:
            code, answer = 400, {"__type": str(refusal), "message": "refused"}
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """It is quiet."""


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Starts one, and yields its address."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.stdin.close()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
