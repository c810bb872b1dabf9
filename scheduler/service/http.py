"""The clients' side of the HTTP API: one request, one answer, errors of one line. What is printed is commands.py's."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any, Mapping, Optional

DEFAULT_ADDRESS = "127.0.0.1:8642"
PATIENCE_SECONDS = 30.0
AGAIN_SECONDS = 1.0


class ServiceError(RuntimeError):
    """The service refused, or cannot be reached; one line."""


class Refused(ServiceError):
    """The service refused what was asked for what it says."""


class NoAnswer(ServiceError):
    """No service could be reached."""


def token_of(environment: Mapping[str, str]) -> str:
    """The token that clients bear, empty if there is none; ServiceError where it cannot be one."""
    token = environment.get("ELASTIC_MX_TOKEN", "")
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        raise ServiceError("ELASTIC_MX_TOKEN: use printable ASCII characters, and no space around them")
    return token


class ServiceClient:
    """Args: the service's URL (ELASTIC_MX_SERVICE, else this machine's), or those of several on one record, separated
    by commas: the first that answers is asked. Its token is ELASTIC_MX_TOKEN."""

    def __init__(self, url: Optional[str] = None) -> None:
        given = url or os.environ.get("ELASTIC_MX_SERVICE") or DEFAULT_ADDRESS
        bare = [one.strip().rstrip("/") for one in given.split(",") if one.strip()]
        self.urls = [one if one.startswith(("http://", "https://")) else f"http://{one}" for one in bare]
        self._token = token_of(os.environ)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, method: str, path: str, body: Any = None, patience: float = 0.0) -> Any:
        """The answer, from JSON; where none can be reached, it is tried for ``patience`` seconds.

        Raises:
            ServiceError: the service refused (its reason).
            NoAnswer: it cannot be reached.
        """
        until = time.monotonic() + patience
        while True:
            for url in list(self.urls):
                try:
                    answer = self._ask(url, method, path, body)
                except NoAnswer as error:
                    last = error
                    continue
                self.urls.remove(url)
                self.urls.insert(0, url)
                return answer
            if time.monotonic() >= until:
                raise last
            time.sleep(AGAIN_SECONDS)

    def _ask(self, url: str, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            kind = Refused if error.code in (409, 422) else ServiceError
            raise kind(_reason(error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise NoAnswer(
                f"no service answers at {', '.join(self.urls)} ({reason}): start one with elastic-mx serve, "
                "or say --service"
            ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        detail = json.loads(error.read())["detail"]
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code}"
    if isinstance(detail, str):
        return detail
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail)
