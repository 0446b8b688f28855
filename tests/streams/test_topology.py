"""The pipeline's page says what the topic files and the processors say."""

import pytest

from headrace.schemas.topics import topic_specs
from headrace.streams.processors.assembler import Assembler
from headrace.streams.processors.batcher.batcher import Batcher
from headrace.streams.processors.dispatcher import Dispatcher
from headrace.streams.processors.sink.tables import TABLES
from headrace.streams.topology import ASSEMBLER, BATCHER, DISPATCHER, PIPELINE, SINK


def test_topic_files_name_the_stages_that_read_and_write_them() -> None:
    for name, spec in topic_specs().items():
        assert {stage.name for stage in PIPELINE if name in stage.reads} == set(spec.consumers) & {
            stage.name for stage in PIPELINE
        }, name
        assert {stage.name for stage in PIPELINE if name in stage.writes} == set(spec.producers) & {
            stage.name for stage in PIPELINE
        }, name


@pytest.mark.parametrize(
    ("stage", "processor"),
    [(ASSEMBLER, Assembler("p")), (BATCHER, Batcher("p")), (DISPATCHER, Dispatcher("p"))],
    ids=lambda x: str(x.name),
)
def test_processors_read_what_the_page_says(
    stage: object, processor: Assembler | Batcher | Dispatcher
) -> None:
    assert stage in PIPELINE
    found = next(each for each in PIPELINE if each.name == processor.name)
    assert set(processor.topics) == set(found.topics("p"))
    assert found.group("p") == f"p-{processor.name}"


def test_the_sink_stores_every_topic() -> None:
    assert set(TABLES) == set(SINK.reads) == set(topic_specs())


def test_co_partitioned_topics_are_those_that_a_processor_reads_together() -> None:
    for stage in (ASSEMBLER, DISPATCHER):
        assert all(topic_specs()[name].copartitioned for name in stage.reads)
