import pytest

from modelreg.registry.database_url import check_database_url, has_password, is_server, mask_secrets
from modelreg.registry.errors import UsageError

SERVER = "postgresql://ada:secret@db.example.com:5433/models"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("registry.db", "registry.db"),
        ("/srv/a@b:c/registry.db", "/srv/a@b:c/registry.db"),
        ("sqlite:////srv/registry.db", "sqlite:////srv/registry.db"),
        ("postgresql://db/models", "postgresql://db/models"),
        ("postgresql://ada@db/models", "postgresql://ada@db/models"),
        ("postgresql:///models?host=/var/run/postgresql", "postgresql:///models?host=/var/run/postgresql"),
        (SERVER, "postgresql://ada:***@db.example.com:5433/models"),
        ("postgresql://:secret@db/models", "postgresql://:***@db/models"),
        ("postgresql://ada:se@cret@db/models", "postgresql://ada:***@db/models"),
        ("postgresql://ada:1234/se@db/models", "postgresql://ada:***@db/models"),
        ("postgresql://ada:se?cret#@db/models", "postgresql://ada:***@db/models"),
        ("postgresql://db/models?user=ada&password=secret", "postgresql://db/models?user=ada&password=***"),
        ("postgresql://db/m?PASSWORD=secret&sslpassword=too", "postgresql://db/m?PASSWORD=***&sslpassword=***"),
        ("mysql://ada:secret@db/models", "mysql://ada:***@db/models"),
        ("host=db user=ada password=secret", "***"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert mask_secrets(url) == shown
    assert has_password(url) == (shown != url)
    assert "secret" not in mask_secrets(url)


@pytest.mark.parametrize(
    "url",
    [
        *("registry.db", "/srv/registry.db", "sqlite:////srv/registry.db", "odd name#%?.db"),
        *(SERVER, "postgres://db/models", "postgresql+psycopg://db/models", "postgresql:///models?host=/tmp"),
        *("postgresql://[::1]:5432/models", "postgresql://ada:p%40ss%2Fword@db/models"),
    ],
)
def test_files_and_servers_are_databases(url: str) -> None:
    assert check_database_url(url) == url


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("", "no such name"),
        ("a\0b", "no such name"),
        ("mysql://ada:secret@db/models", "'mysql' is no kind of database"),
        ("postgresql+psycopg2://db/models", "'postgresql\\+psycopg2' is no kind of database"),
        ("host=db password=secret", "by a URL, not by keywords"),
        ("postgresql://ada:se@cret@db/models", r"URL postgresql://ada:\*\*\*@db/models cannot be read"),
        ("postgresql://ada:1/secret@db/models", "cannot be read"),
        ("postgresql://ada:1?secret@db/models", "cannot be read"),
        ("postgresql://ada:secret#@db/models", "cannot be read"),
    ],
)
def test_what_is_none_is_refused_in_one_line_without_its_password(url: str, fact: str) -> None:
    with pytest.raises(UsageError, match=fact) as caught:
        check_database_url(url)
    assert "secret" not in str(caught.value) + caught.value.hint()
    assert caught.value.hint()


def test_a_file_is_no_server() -> None:
    assert is_server(SERVER)
    assert not any(is_server(url) for url in ("registry.db", "/srv/registry.db", "sqlite:////srv/registry.db"))
