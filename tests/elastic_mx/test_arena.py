"""Shared memory: pages that are made ready hold what they held."""

import os
import resource

import pytest

from elastic_mx.arena import Arena, open_peer


def blocks(arena):
    return os.fstat(arena.fd).st_blocks * 512


def test_pages_are_there_before_they_are_written_and_keep_what_they_hold():
    arena = Arena("test")
    arena.bytes[5000:5003] = 7
    before = blocks(arena)
    arena.populate(4000, 1 << 20)
    assert arena.bytes[4000:6000].sum() == 21
    if blocks(arena) == before:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert 1 << 20 <= blocks(arena) - before <= (1 << 20) + 8192
    peer = open_peer(os.getpid(), arena.fd, arena.nonce)
    assert peer is not None and peer[5000:5003].sum() == 21


def test_a_bound_on_the_address_space_is_told_with_its_remedy():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, before[1]))
    try:
        with pytest.raises(OSError, match=r"test cannot have 1 TiB of address space.*ulimit -v unlimited"):
            Arena("test")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
