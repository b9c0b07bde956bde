from pathlib import Path

from modelreg_testing.cli import Shop


def test_a_lost_database_is_not_replaced_by_an_empty_one(in_memory: Path) -> None:
    shop = Shop(in_memory)
    shop.add_version(word=1)
    shop.add_version(word=2)
    for version in (1, 2):
        assert shop.cli("promote", f"lenet:{version}", "--to", "production").code == 0
    shop.database_path.unlink()
    for extra in ((), ("--dry-run",)):
        result = shop.cli("init", *extra)
        assert result.code == 1
        assert "is gone, and the store serves lenet@production" in result.err
    assert not shop.database_path.exists()
    assert shop.cli("rollback", "lenet", "--channel", "production").code == 0
    assert "Restore its backup" in shop.cli("list").err


def test_a_lost_database_of_a_registry_that_never_served_is_made_again(in_memory: Path) -> None:
    shop = Shop(in_memory)
    shop.database_path.unlink()
    assert shop.cli("init").code == 0
    assert shop.cli("list").code == 0
