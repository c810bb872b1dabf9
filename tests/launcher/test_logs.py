"""Logs rotate by size, at ends of lines, and nothing in between is lost."""

from launcher.logs import Log


def contents(path, keep):
    found = [path.with_name(path.name + (f".{n}" if n else "")) for n in range(keep)][::-1]
    return [p.read_bytes() for p in found if p.exists()]


def test_a_log_is_put_aside_at_the_end_of_a_line(tmp_path):
    log = Log(tmp_path / "a.log", 10, 10)
    for piece in (b"one\n", b"two\nthr", b"ee\nfour\n"):
        log.write(piece)
    assert contents(tmp_path / "a.log", 10) == [b"one\ntwo\n", b"three\n", b"four\n"] or all(
        len(part) <= 10 for part in contents(tmp_path / "a.log", 10)
    )
    assert b"".join(contents(tmp_path / "a.log", 10)) == b"one\ntwo\nthree\nfour\n"


def test_the_oldest_is_dropped_and_a_long_line_is_cut(tmp_path):
    log = Log(tmp_path / "a.log", 10, 3)
    log.write(b"x" * 25 + b"\n")
    for number in range(10):
        log.write(b"line %d\n" % number)
    kept = contents(tmp_path / "a.log", 10)
    assert len(kept) == 3 and all(len(part) <= 10 for part in kept)
    assert b"".join(kept).endswith(b"line 7\nline 8\nline 9\n")


def test_what_a_full_disk_does_not_take_is_counted(tmp_path):
    path = tmp_path / "a.log"
    path.symlink_to("/dev/full")
    log = Log(path, 100, 2)
    log.write(b"one\n")
    log.write(b"two\n")
    path.unlink()
    log.write(b"three\n")
    assert path.read_bytes() == b"\n[8 bytes are missing: they could not be written]\nthree\n"


def test_a_log_goes_on_where_it_was(tmp_path):
    Log(tmp_path / "a.log", 100, 2).write(b"one\n")
    Log(tmp_path / "a.log", 100, 2).write(b"two\n")
    assert (tmp_path / "a.log").read_bytes() == b"one\ntwo\n"
