"""Which partition a key is in: by murmur2, as in Kafka's own clients, our publisher and Faust."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, num_partitions: int) -> int:
    """The partition number that every writer puts this key into."""
    return (murmur2(key) & 0x7FFFFFFF) % num_partitions


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    whole = len(data) & ~3
    value = _SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        value = value * _M & _MASK ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
