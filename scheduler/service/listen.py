"""Where the service listens, and the thread that serves its HTTP API there. What is answered is api.py's."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from typing import Tuple

import click
import uvicorn

from scheduler.service.api import create_app
from scheduler.service.http import token_of
from scheduler.service.service import Service


def address_of(listen: str) -> Tuple[str, int, str]:
    """Host, port and token; click.UsageError where they cannot be."""
    host, _, port = listen.rpartition(":")
    token = token_of(os.environ)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--listen: {listen!r} is no HOST:PORT")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback and len(token) < 16:
        raise click.UsageError(f"--listen: {host} is not loopback: set ELASTIC_MX_TOKEN to 16 characters or more")
    return host, int(port), token


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; click.ClickException where none can."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        reason = f"{host}:{port} cannot be listened at: {error.strerror}: choose another HOST:PORT"
        raise click.ClickException(f"--listen: {reason}") from error
    return listener


def serve_api(service: Service, listener: socket.socket, token: str) -> uvicorn.Server:
    """Serves the API in a thread; returns when it does."""
    server = uvicorn.Server(uvicorn.Config(create_app(service, token), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    return server
