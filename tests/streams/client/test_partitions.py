import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.client.partitions import murmur2, partition_of

# From UtilsTest.testMurmur2 of Apache Kafka, whose integers are signed.
KAFKAS_OWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKAS_OWN.items(), ids=map(bytes.decode, KAFKAS_OWN))
def test_the_hash_is_kafka_s(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


@given(key=st.binary(max_size=64), num_partitions=st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, num_partitions: int) -> None:
    assert 0 <= partition_of(key, num_partitions) < num_partitions
