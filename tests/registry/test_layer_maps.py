from __future__ import annotations

from pathlib import Path

from modelreg.registry import events
from modelreg.registry.layer_maps import read_layer_map, record_layer_map
from modelreg_testing.registry import ACTOR, add_version, make_database


def test_the_newest_table_of_a_version_counts_and_the_same_one_is_kept_once(tmp_path: Path) -> None:
    with make_database(tmp_path) as database:
        with database.write() as connection:
            one, other = (add_version(connection, model="lenet", word=word) for word in (1, 2))
            assert read_layer_map(connection, one) == {}
            assert record_layer_map(connection, one, {"c1": "t1"}, message="first", actor=ACTOR)
            assert record_layer_map(connection, one, {"c1": "t2", "c3": ""}, message="better", actor=ACTOR)
            assert not record_layer_map(connection, one, {"c3": "", "c1": "t2"}, message="again", actor=ACTOR)
        with database.read() as connection:
            assert read_layer_map(connection, one) == {"c1": "t2", "c3": ""}
            assert read_layer_map(connection, other) == {}
            assert events.verify_chain(connection).broken_at is None
