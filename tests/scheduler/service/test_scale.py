"""The benchmark of the service's slot runs on a small size and tells what it promises."""

from benchmarks.service_scale import measure


def test_a_small_cluster_is_filled_and_measured():
    result = measure("drf", count=60, nodes_count=40, slots=8)
    assert result["fallback"] == "" and result["changes"] >= 30
    assert 0 < result["median_slot_s"] <= result["longest_slot_s"] and result["record_mb_a_day"] > 0
