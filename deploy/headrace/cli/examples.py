"""Examples at the end of a command's help."""


def examples(*lines: str) -> str:
    """An epilog for click: the lines as they are, not filled."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
