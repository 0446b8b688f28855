import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.dialect import Json
from headrace.proxy.responses.store import KeptResponse, ResponseBudget, ResponseStore


def item(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def test_a_conversation_is_kept_once() -> None:
    store = ResponseStore()
    store.keep("a", [item("1")], None)
    one = store.num_bytes
    store.keep("b", [item("2")], store.find("a"))
    store.keep("c", [item("3")], store.find("b"))
    kept = store.find("c")
    assert kept is not None
    assert kept.items() == [item("1"), item("2"), item("3")]
    assert kept.added() == [item("3")]
    assert store.num_bytes == 3 * one


def test_the_oldest_is_let_go_of_and_what_stands_on_it_stays_whole() -> None:
    store = ResponseStore(max_responses=2)
    store.keep("a", [item("1")], None)
    store.keep("b", [item("2")], store.find("a"))
    store.keep("c", [item("3")], store.find("b"))
    assert store.find("a") is None
    kept = store.find("c")
    assert kept is not None
    assert kept.items() == [item("1"), item("2"), item("3")]


def test_what_is_over_the_limit_alone_is_not_kept() -> None:
    store = ResponseStore(max_bytes=100)
    store.keep("a", [item("1" * 100)], None)
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_response_let_go_of_meanwhile_is_counted_again_with_the_next() -> None:
    store = ResponseStore(max_responses=1)
    store.keep("a", [item("1")], None)
    held = store.find("a")
    one = store.num_bytes
    store.keep("b", [item("2")], None)
    store.keep("c", [item("3")], held)
    assert store.num_bytes == 2 * one


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=60),
    st.integers(1, 8),
    st.integers(60, 800),
)
def test_it_keeps_within_its_limits_and_counts_what_it_holds(
    steps: list[tuple[int, int]], max_responses: int, max_bytes: int
) -> None:
    store = ResponseStore(max_responses, max_bytes)
    handles: list[KeptResponse | None] = [None]
    for number, (size, back) in enumerate(steps):
        name = str(number)
        store.keep(name, [item("x" * size)], handles[-1 - back % len(handles)])
        handles.append(store.find(name))
        held: dict[int, int] = {}
        for index in range(number + 1):
            kept = store.find(str(index))
            while kept is not None:
                held[id(kept)] = len(kept.data)
                kept = kept.previous
        assert store.num_bytes == sum(held.values()) <= max_bytes
        assert len(store) <= max_responses


def test_all_stores_share_a_budget_and_the_one_used_last_is_spared() -> None:
    size = len(orjson.dumps([item("x" * 100)]))
    budget = ResponseBudget(3 * size)
    stores = [ResponseStore(budget=budget) for _ in range(3)]
    for number, store in enumerate(stores):
        store.keep(f"{number}", [item("x" * 100)], None)
    assert budget.num_bytes == 3 * size
    assert stores[0].find("0") is not None
    stores[2].keep("more", [item("x" * 100)], None)
    assert [len(store) for store in stores] == [1, 0, 2]
    assert budget.num_bytes == 3 * size
    stores[2].close()
    assert budget.num_bytes == size
    stores[0].keep("large", [item("x" * 1000)], None)
    assert (budget.num_bytes, [len(store) for store in stores[:2]]) == (0, [0, 0])


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans()), max_size=40))
def test_a_budget_counts_what_its_stores_hold(steps: list[tuple[int, int, bool]]) -> None:
    budget = ResponseBudget(700)
    stores = [ResponseStore(max_bytes=500, budget=budget) for _ in range(4)]
    last: dict[int, str] = {}
    for number, (place, size, is_follower) in enumerate(steps):
        previous = stores[place].find(last.get(place, "")) if is_follower else None
        stores[place].keep(f"{number}", [item("x" * size)], previous)
        last[place] = f"{number}"
        assert budget.num_bytes == sum(store.num_bytes for store in stores) <= 700
