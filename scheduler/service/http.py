"""The clients' side of the HTTP API: one request, one answer, errors of one line. What is printed is commands.py's."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any, Optional

DEFAULT_ADDRESS = "127.0.0.1:8642"
PATIENCE_SECONDS = 30.0


class ServiceError(RuntimeError):
    """The service refused, or cannot be reached; one line."""


class ServiceClient:
    """Args: the service's URL (ELASTIC_MX_SERVICE, else this machine's); its token is ELASTIC_MX_TOKEN."""

    def __init__(self, url: Optional[str] = None) -> None:
        self.url = (url or os.environ.get("ELASTIC_MX_SERVICE") or f"http://{DEFAULT_ADDRESS}").rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            self.url = f"http://{self.url}"
        self._token = os.environ.get("ELASTIC_MX_TOKEN", "")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, from JSON.

        Raises:
            ServiceError: the service refused (its reason), or cannot be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise ServiceError(_reason(error)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ServiceError(
                f"no service answers at {self.url} ({reason}): start one with elastic-mx serve, or say --service"
            ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.loads(error.read())["detail"]
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code}"
    if isinstance(detail, str):
        return detail
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail)
